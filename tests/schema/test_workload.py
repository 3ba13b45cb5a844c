"""The settings of a workload: what is refused, in one sentence."""

import pytest

from harness.schema.presets import resolve
from tests.labs.sentences import refuses


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            {"image_size": 20},
            ("out of range for", "20", "32", "4096"),
        ),
        (
            {"classes": 1},
            ("is too small: use", "1"),
        ),
        (
            {"input": "disk"},
            ("did you mean", "disk"),
        ),
        (
            {"precision": "float16"},
            ("did you mean", "float16"),
        ),
        (
            {"label_smoothing": 1.0},
            ("or more, below", "1.0"),
        ),
        (
            {"warmup_epochs": 9},
            ("warmup epochs", "9", "0", "3"),
        ),
        (
            {"decay": 1.5},
            ("is too large: use", "1.5"),
        ),
        (
            {"weight_decay": -1.0},
            ("is too small: use", "1.0"),
        ),
        ({"rate_scaling": "linear", "global_batch": 32}, ("rate scaling linear needs",)),
        (
            {"loss": "squared-error"},
            ("needs loss cross-entropy", "0.1"),
        ),
    ],
)
def test_settings_out_of_range_are_one_sentence(settings, refusal):
    with refuses(*refusal):
        resolve(dataset="imagenet", model="resnet50", **settings)


def test_image_settings_of_another_data_set_are_refused():
    with refuses("a setting of dataset", "64"):
        resolve(dataset="mnist", model="dnn", image_size=64)


@pytest.mark.parametrize(
    ("setting", "refusal"),
    [
        (
            {"learning_rate": -1.0},
            ("too small: use more", "1.0"),
        ),
        ({"learning_rate": float("nan")}, ("is not a finite",)),
        (
            {"optimizer": "adm"},
            ("did you mean", "adam"),
        ),
        (
            {"epochs": 0},
            ("is too small: use", "0"),
        ),
        (
            {"seed": -1},
            ("is too small: use", "1"),
        ),
        ({"batch_per_rank": 8, "global_batch": 8}, ("exactly one of batch",)),
    ],
)
def test_settings_that_make_no_sense_are_one_sentence(setting, refusal):
    with refuses(*refusal):
        resolve(dataset="mnist", model="dnn", **setting)
