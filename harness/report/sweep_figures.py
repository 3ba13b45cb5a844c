"""All figures of a sweep, each with its caption and the table behind it."""

from collections.abc import Callable, Sequence

import pandas as pd

from harness.analysis import numbers
from harness.analysis.breakdown import split_frame
from harness.analysis.learning import curve_frame
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.stats import Interval
from harness.report import captions
from harness.report.breakdown_figures import MOST_BARS, split_pictures
from harness.report.learning_figures import MOST_LINES, learning_pictures
from harness.report.render import FigureBlock
from harness.report.scaling_figures import ratios_frame, scaling_pictures, speedup_label
from harness.schema.record import RunRecord

_COLUMNS: dict[str, tuple[Callable[[PointScaling], float | None], Callable[[PointScaling], Interval | None]]] = {
    "speedup": (lambda p: p.speedup, lambda p: p.speedup_interval),
    "efficiency": (lambda p: p.efficiency, lambda p: p.efficiency_interval),
    "seconds": (lambda p: p.seconds, lambda p: p.seconds_interval),
    "rows_per_second": (lambda p: p.rows_per_second, lambda p: p.rows_interval),
}


def scaling_blocks(
    scaling: Scaling, runs: Sequence[RunRecord], launches: pd.DataFrame, subject: str
) -> tuple[FigureBlock, ...]:
    """Return speedup, efficiency and epoch time of the launches' valid rows (`frames.launch_frame`)."""
    ratios = ratios_frame(scaling, launches)
    base = numbers.ranks(scaling.base.ranks)
    end = captions.conditions(scaling, runs)
    dots = "Markers: medians of launches, joined by straight lines; light dots: single launches, set beside them."
    alone = len(scaling.points) == 1
    constant = "constant" if scaling.scaling == "weak" else "the base divided by the ratio of the ranks"
    texts = {
        "speedup": (
            speedup_label(scaling),
            f"{speedup_label(scaling)} of {subject} over {base}. Dashed: ideal, the ratio of the ranks. {dots} {end}",
        ),
        "efficiency": (
            "Parallel efficiency",
            f"Efficiency of {subject}: {speedup_label(scaling).lower()} over {base} divided by the ratio of the "
            f"ranks. Dashed: ideal. {dots} {end}",
        ),
        "epoch-time": (
            "Absolute time",
            f"Training time of one epoch of {subject}, slowest rank, without evaluation. "
            f"{'' if alone else f'Dashed: ideal, {constant}. '}{dots} {end}",
        ),
        "throughput": (
            "Throughput",
            f"Rows per second of {subject}, all ranks together: the rows of an epoch over its training time. "
            f"{'' if alone else 'Dashed: ideal, the base times the ratio of the ranks. '}{dots} {end}",
        ),
    }
    columns = {
        "speedup": "speedup",
        "efficiency": "efficiency",
        "epoch-time": "seconds",
        "throughput": "rows_per_second",
    }
    return tuple(
        FigureBlock(
            picture=picture,
            title=texts[picture.name][0],
            caption=texts[picture.name][1],
            table=series_table(scaling.points, ratios, columns[picture.name]),
        )
        for picture in scaling_pictures(scaling, ratios, subject)
    )


def split_blocks(
    scaling: Scaling, runs: Sequence[RunRecord], launches: pd.DataFrame, subject: str
) -> tuple[FigureBlock, ...]:
    """Return the parts of an epoch and of a launch, from the launches' valid rows."""
    split = split_frame(launches)
    end = _drawn(len(split), MOST_BARS) + captions.conditions(scaling, runs, bars=False)
    texts = {
        "epoch-split": (
            "Where an epoch's time goes",
            f"Medians over launches of {subject}, means over ranks. Of a synchronisation call, skew is the wait for "
            "the last rank to enter it, wire the sum itself; input is drawing the order of rows or waiting for them; "
            f"computation is the rest of the slowest rank's epoch. {end}",
        ),
        "launch-split": (
            "Where a launch's time goes",
            f"Medians over launches of {subject}: all epochs, all evaluations and what is done once, slowest rank; "
            "overhead is what remains: checks before training, comparing the weights, gathering the record. "
            f"Only computation and synchronisation count in a speedup. {end}",
        ),
    }
    return tuple(
        FigureBlock(picture=p, title=texts[p.name][0], caption=texts[p.name][1], table=split)
        for p in split_pictures(split, subject)
    )


def learning_blocks(
    scaling: Scaling, runs: Sequence[RunRecord], epochs: pd.DataFrame, subject: str
) -> tuple[FigureBlock, ...]:
    """Return loss and accuracy against time and samples, from the valid rows of `frames.epoch_frame`."""
    curves = curve_frame(epochs)
    end = _drawn(curves["layout"].nunique(), MOST_LINES) + captions.conditions(scaling, runs, bars=False)
    over = "after each epoch: median of the launches, shaded from the least to the greatest."
    blocks = []
    for picture in learning_pictures(curves, subject):
        what, _, against = picture.name.partition("-")
        where = "training time (without evaluation)" if against == "time" else "training rows visited"
        name = "accuracy" if what == "accuracy" else "loss"
        blocks.append(
            FigureBlock(
                picture=picture,
                title=f"{name.capitalize()} against {'time' if against == 'time' else 'samples'}",
                caption=f"{name.capitalize()} of {subject} against {where}, {over} {end}",
                table=curves,
            )
        )
    return tuple(blocks)


def _drawn(layouts: int, most: int) -> str:
    return f"{most} of {numbers.count(layouts)} layouts are drawn, all are in the CSV. " if layouts > most else ""


def series_table(points: Sequence[PointScaling], launches: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the numbers drawn in a figure of `column`: a row per point (kind median) and per launch.

    Columns: kind, layout, ranks, value, low, high (95 % interval, empty where there is none), launches, run.
    """
    value, interval = _COLUMNS[column]
    rows = [
        {"kind": "median", "layout": point.layout, "ranks": point.ranks, column: value(point)}
        | _ends(interval(point))
        | {"launches": point.launches}
        for point in points
    ]
    raw = launches[["layout", "ranks", column, "run"]].assign(kind="launch", launches=1)
    order = ["kind", "layout", "ranks", column, "low", "high", "launches", "run"]
    return pd.concat([pd.DataFrame(rows), raw]).reindex(columns=order)


def _ends(interval: Interval | None) -> dict[str, float | None]:
    return {"low": interval.low if interval else None, "high": interval.high if interval else None}
