"""The command that repeats a study survives shell and make, and gives the same study."""

from pathlib import Path

import pytest

from harness.schema.command_lines import harness_command
from harness.schema.layout import Layout
from harness.schema.presets import resolve, script_workload
from harness.schema.setting_words import study_name
from harness.schema.sweep import Sweep
from harness.sweep.plan import Axes, combine
from tests.labs.asked import asked

MNIST = {"dataset": "mnist", "model": "dnn"}
GPUS = combine(Axes(gpus=(1, 2, 4, 6), ranks_per_node=(4,)), None)[0]
UNEVEN = combine(Axes(cores=(2, 4, 10), ranks_per_node=(4,)), None)[0]
GRID = combine(Axes(nodes=(1, 2), ranks_per_node=(1, 2), threads=(1, 2)), None)[0]
SWEEPS = [
    Sweep(workload=resolve(**MNIST), layouts=(Layout(nodes=1), Layout(nodes=2)), repeats=6),
    Sweep(workload=resolve(**MNIST, preset="paper-2016-03", epochs=2, samples=2000), layouts=GRID),
    Sweep(workload=resolve(**MNIST, global_batch=256, sync="weights:4", seed=7), layouts=UNEVEN, repeats=1),
    Sweep(workload=resolve(**MNIST, samples=1000, data="synthetic"), layouts=UNEVEN, scaling="weak"),
    Sweep(workload=resolve(dataset="imagenet", model="resnet50", image_size=64, xla=True), layouts=GPUS),
    Sweep(
        workload=resolve(dataset="imagenet", model="alexnet", global_batch=64, classes=10), layouts=(Layout(nodes=2),)
    ),
]


@pytest.mark.parametrize("sweep", SWEEPS, ids=study_name)
def test_the_command_on_a_page_gives_the_same_study(sweep: Sweep) -> None:
    parts = [asked(line) for line in harness_command(sweep).splitlines()]
    assert {part.name for part in parts} == {sweep.name}
    assert {layout for part in parts for layout in part.layouts} == set(sweep.layouts)
    assert {part.repeats for part in parts} == {sweep.repeats}


def test_a_script_with_hard_arguments_survives_shell_and_make(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text("")
    workload = script_workload(script, ["--name", "a $HOME 'b'"], sync="weights:epoch", batch="global")
    sweep = Sweep(workload=workload, layouts=(Layout(nodes=2),))
    assert asked(harness_command(sweep)).name == sweep.name
