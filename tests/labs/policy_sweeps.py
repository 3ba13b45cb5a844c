"""Sweeps of two sync policies: one learns in fewer epochs, the other's epochs are faster."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.schema.record import RunRecord
from tests.labs.factories import make_point, make_run, write_run, write_study


def learning(
    ranks: int, repeat: int, seconds: float, accuracies: Sequence[float], sync: str = "gradients"
) -> RunRecord:
    """Epochs of `seconds` each with these test accuracies."""
    run = make_run(make_point(ranks, repeat, sync=sync), seconds=[[seconds] * ranks] * len(accuracies))
    epochs = tuple(replace(e, test_accuracy=a) for e, a in zip(run.epochs, accuracies, strict=True))
    return replace(run, epochs=epochs)


def write_policies(results: Path) -> tuple[Path, Path]:
    """Write a sweep of `gradients` and one of `weights:epoch` into `results`, and return their folders."""
    folders = (results / "every step", results / "every epoch")
    for folder, sync, seconds, accuracies in (
        (folders[0], "gradients", 1.2, (0.90, 0.95)),
        (folders[1], "weights:epoch", 1.0, (0.80, 0.88)),
    ):
        write_study(folder, sync=sync)
        for repeat in range(6):
            write_run(folder, learning(1, repeat, 2.0, (0.90, 0.95), sync))
            write_run(folder, learning(2, repeat, seconds, accuracies, sync))
    return folders
