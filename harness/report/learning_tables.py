"""Tables of what was learnt: loss and accuracy after training, epoch by epoch, and the time to equal accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from harness.analysis import units
from harness.analysis.accuracy_times import Side, TimeToAccuracy
from harness.analysis.scaling import Scaling
from harness.report.answer import Cell, Table
from harness.report.sweep_tables import Names, rows_of
from harness.report.table_cells import NOT_MEASURED, percent_cell, ratio_cell, seconds_cell

_MOST_EPOCHS = 20


def learning_table(final: pd.DataFrame, names: Names) -> Table:
    """Return loss and accuracy after the last epoch; `final` is `launch_frames.final_frame`."""
    rows: list[tuple[str | Cell, ...]] = []
    for row in rows_of(final):
        metrics = (_metric_cell(row, name) for name in ("train_loss", "test_loss", "test_accuracy", "test_auc"))
        trained = units.seconds(row["trained_s"])
        rows.append((names[row["layout"]], str(row["launches"]), units.count(row["epochs"]), trained, *metrics))
    return Table(
        title="Loss and accuracy",
        headings=(
            "Layout",
            "Launches",
            "Epochs",
            "Training time",
            "Training loss",
            "Test loss",
            "Test accuracy",
            "Test AUC",
        ),
        rows=rows,
        texts=(),
        note="After the last epoch, not the best one. Medians over launches, below them the least and the greatest.",
    )


def _metric_cell(row: Mapping[str, Any], name: str) -> Cell:
    """Return a median over launches, the least and the greatest below it; `row` is of `launch_frames.final_frame`."""
    words = (lambda value: units.percent(value, 2)) if name == "test_accuracy" else units.significant
    low = row[f"{name}_low"]
    high = row[f"{name}_high"]
    spread = "" if low == high or row[name] != row[name] else f"{words(low)} to {words(high)}"
    return Cell(text=words(row[name]), note=spread)


def epochs_table(curves: pd.DataFrame, names: Names) -> Table:
    """Return what a user's script trained on each layout, epoch by epoch; `curves` is `learning.curve_frame`."""
    by_epoch = {(row["epoch"], row["layout"]): row for row in rows_of(curves)}
    layouts = list(dict.fromkeys(curves["layout"]))
    epochs = sorted(set(curves["epoch"]))
    rows: list[tuple[str | Cell, ...]] = []
    for epoch in epochs[:: -(-len(epochs) // _MOST_EPOCHS)]:
        cells = (_epoch_cell(by_epoch.get((epoch, layout))) for layout in layouts)
        rows.append((str(epoch + 1), *cells))
    return Table(
        title="Epoch by epoch",
        headings=("Timed epoch", *(names[layout] for layout in layouts)),
        rows=rows,
        texts=(),
        note="Training loss, below it test loss and accuracy; medians over launches. With the batch of all ranks the "
        "script trains on several ranks as on one: launches whose numbers differ from it by more than 5 % are invalid.",
    )


def _epoch_cell(row: Mapping[str, Any] | None) -> Cell:
    """Return the training loss of an epoch, test loss and accuracy below it; `row` is of `curve_frame`."""
    if row is None:
        return NOT_MEASURED
    tested = (units.significant(row["test_loss"]), units.percent(row["test_accuracy"], 2))
    note = ", ".join(text for text in tested if text != units.NONE)
    return Cell(text=units.significant(row["train_loss"]), note=note, value=row["train_loss"])


def targets_table(targets: Sequence[TimeToAccuracy], scaling: Scaling, goal: float, names: Names) -> Table:
    """Return the training time to the test accuracy `goal`, beside the speedup at equal samples."""
    speedups = {point.layout: point.speedup for point in scaling.points}
    return Table(
        title=f"Time to {units.percent(goal, 2)} test accuracy",
        headings=(
            "Ranks",
            "Layout",
            "Launches\nthat reach it",
            "Whole epochs\nto reach it",
            "Training time\nto reach it",
            "Speedup to\nthe accuracy",
            "Speedup at\nequal samples",
        ),
        rows=[
            (
                str(target.ranks),
                names[target.layout],
                f"{target.reached} of {target.launches}",
                NOT_MEASURED if target.epochs is None else Cell(text=f"{target.epochs:g}", value=target.epochs),
                *equal_accuracy(target),
                ratio_cell(speedups.get(target.layout)),
            )
            for target in targets
        ],
        left=0,
        texts=(1,),
        note="The target is the base's final accuracy less one percentage point. A launch reaches it after the first "
        "whole epoch that has it, so that a hair below the target costs another epoch; one that never does counts as "
        "infinitely long. Epochs and times are medians over launches.",
    )


def sides_table(first: str, sides: Sequence[tuple[Cell, Side]], goal: float | None, note: str = "") -> Table:
    """Return what was measured at equal samples, and to the test accuracy `goal` unless that is None.

    Each of the `sides` comes with what a reader calls its sweep, in the column `first`.
    """
    headings = [
        first,
        "Ranks",
        "Launches",
        "Epoch time",
        "Speedup at\nequal samples",
        "Test accuracy at\nequal samples",
    ]
    if goal is not None:
        level = units.percent(goal, 2)
        headings += [f"Training time\nto {level}", f"Speedup to\n{level}"]
    rows: list[list[str | Cell]] = []
    for name, side in sides:
        point = side.point
        accuracy = percent_cell(side.accuracy, 2)
        span = f"{units.percent(side.accuracy_low, 2)} to {units.percent(side.accuracy_high, 2)}"
        row: list[str | Cell] = [
            name,
            str(side.ranks),
            Cell(text=str(side.launches), note="" if point else "times not valid"),
            seconds_cell(point.seconds, point.seconds_interval) if point else NOT_MEASURED,
            ratio_cell(point.speedup, point.speedup_interval) if point else NOT_MEASURED,
            replace(accuracy, note=span if side.launches > 1 else ""),
        ]
        if goal is not None:
            target = side.target
            reached = f"{target.reached} of {units.plural(target.launches, 'launch')}" if target else ""
            row += equal_accuracy(target, reached)
        rows.append(row)
    title = "At equal samples and to equal accuracy"
    return Table(title=title, headings=headings, rows=rows, texts=(), note=note)


def equal_accuracy(target: TimeToAccuracy | None, note: str = "") -> tuple[Cell, Cell]:
    """Return the training time to an accuracy, the `note` below it, and the speedup to it; dashes without a target."""
    if target is None:
        return NOT_MEASURED, NOT_MEASURED
    text = "not reached" if target.seconds is None else units.seconds(target.seconds)
    soon = Cell(text=text, note=note, value="" if target.seconds is None else target.seconds)
    return soon, ratio_cell(target.speedup, target.interval)
