"""Presets: the published settings, each of which can be overridden."""

from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.schema.command_lines import repeat_command
from harness.schema.layout import Layout
from harness.schema.presets import JUPITER, PRESETS, resolve, usual_scaling
from harness.schema.sweep import Sweep

TRAINING = {"dataset": "imagenet", "model": "resnet50", "preset": "jupiter"}


def test_the_preset_scales_weakly_and_a_command_says_where_it_does_not() -> None:
    workload = resolve(**TRAINING)
    assert (workload.batch_per_rank, workload.global_batch) == (512, None)
    assert usual_scaling("jupiter") == "weak"
    assert usual_scaling("default") == "strong"
    layouts = (Layout(nodes=1, gpus_per_rank=1),)
    commands = {}
    for scaling in ("weak", "strong"):
        sweep = Sweep(workload=workload, layouts=layouts, repeats=6, scaling=scaling)
        commands[scaling] = repeat_command(Path("results/x"), sweep)
    assert "--scaling" not in commands["weak"]
    assert "--scaling=strong" in commands["strong"]


def test_the_preset_is_for_imagenet() -> None:
    with pytest.raises(UserError, match="--preset jupiter"):
        resolve(dataset="mnist", model="dnn", preset="jupiter")


def test_presets_are_the_groups_published_settings():
    march = resolve(dataset="mnist", model="dnn", preset="paper-2016-03")
    assert (march.optimizer, march.learning_rate, march.loss) == ("adagrad", 0.01, "squared-error")
    assert (march.batch_per_rank, march.sync, march.epochs, march.drop_remainder) == (10, "weights:epoch", 30, True)
    assert march.distribution == "scatter"
    april = resolve(dataset="mnist", model="dnn", preset="paper-2016-04")
    assert (april.optimizer, april.loss, april.sync) == ("sgd", "cross-entropy", "weights:epoch")
    assert (april.learning_rate, april.distribution) == (march.learning_rate, "scatter")
    matex = resolve(dataset="mnist", model="dnn", preset="matex-2016-12")
    assert (matex.optimizer, matex.learning_rate, matex.batch_per_rank, matex.sync) == ("sgd", 0.1, 128, "gradients")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_setting_of_a_preset_can_be_overridden(preset):
    network = (
        {"dataset": "imagenet", "model": "resnet50"} if preset == JUPITER else {"dataset": "mnist", "model": "dnn"}
    )
    workload = resolve(**network, preset=preset, global_batch=96, epochs=7, optimizer="momentum")
    assert (workload.global_batch, workload.batch_per_rank) == (96, None)
    assert (workload.epochs, workload.optimizer) == (7, "momentum")
