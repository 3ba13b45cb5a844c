"""Speedup, efficiency, absolute epoch time and throughput against ranks."""

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from harness.analysis import numbers
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.stats import Interval
from harness.report import captions
from harness.report.answer import FigureBlock
from harness.report.axes import from_zero, medians, rank_axis, raw_launches, time_unit
from harness.report.captions import speedup_label
from harness.report.figures import SweepView, figure
from harness.report.svg import MUTED, Picture, draw

_IDEAL: dict[str, Any] = {"color": MUTED.light, "linestyle": (0, (5, 3)), "linewidth": 1.2, "zorder": 1}
_DOTS = "Markers: medians of launches, joined by straight lines; light dots: single launches, set beside them."
_COLUMNS: dict[str, tuple[Callable[[PointScaling], float | None], Callable[[PointScaling], Interval | None]]] = {
    "speedup": (lambda p: p.speedup, lambda p: p.speedup_interval),
    "efficiency": (lambda p: p.efficiency, lambda p: p.efficiency_interval),
    "seconds": (lambda p: p.seconds, lambda p: p.seconds_interval),
    "rows_per_second": (lambda p: p.rows_per_second, lambda p: p.rows_interval),
}


@figure("scaling")
def speedup(view: SweepView) -> FigureBlock | None:
    """Draw the speedup, None with a single point."""
    if len(view.scaling.points) == 1:
        return None
    name = speedup_label(view.scaling)
    base = numbers.ranks(view.scaling.base.ranks)
    text = f"{name} of {view.subject} over {base}. Dashed: ideal, the ratio of the ranks."
    return _block(view, speedup_picture(view.scaling, view.ratios, view.subject, "speedup"), "speedup", name, text)


@figure("scaling")
def efficiency(view: SweepView) -> FigureBlock | None:
    """Draw the parallel efficiency, None with a single point."""
    if len(view.scaling.points) == 1:
        return None
    name, base = speedup_label(view.scaling).lower(), numbers.ranks(view.scaling.base.ranks)
    units = "cores" if len({point.threads for point in view.scaling.points}) > 1 else "ranks"
    text = f"Efficiency of {view.subject}: {name} over {base} divided by the ratio of the {units}. Dashed: ideal."
    title = f"Parallel efficiency of {view.subject}"
    spoken = _spoken(view.scaling, "efficiency")
    picture = draw("efficiency", title, lambda axes: _efficiency(axes, view.scaling, view.ratios), numbers=spoken)
    return _block(view, picture, "efficiency", "Parallel efficiency", text)


@figure("scaling")
def epoch_time(view: SweepView) -> FigureBlock:
    """Draw the training time of an epoch."""
    constant = "constant" if view.scaling.scaling == "weak" else "the base divided by the ratio of the ranks"
    ideal = "" if len(view.scaling.points) == 1 else f" Dashed: ideal, {constant}."
    title = f"Training time of one epoch of {view.subject}"
    spoken = _spoken(view.scaling, "seconds")
    picture = draw("epoch-time", title, lambda axes: _time(axes, view.scaling, view.ratios), numbers=spoken)
    return _block(view, picture, "seconds", "Absolute time", f"{title}, slowest rank, without evaluation.{ideal}")


@figure("scaling")
def throughput(view: SweepView) -> FigureBlock:
    """Draw the rows per second."""
    ideal = "" if len(view.scaling.points) == 1 else " Dashed: ideal, the base times the ratio of the ranks."
    text = f"Rows per second of {view.subject}, all ranks together: the rows of an epoch over its training time.{ideal}"
    title = f"Training throughput of {view.subject}"
    spoken = _spoken(view.scaling, "rows_per_second")
    picture = draw("throughput", title, lambda axes: _throughput(axes, view.scaling, view.ratios), numbers=spoken)
    return _block(view, picture, "rows_per_second", "Throughput", text)


def _block(view: SweepView, picture: Picture, column: str, title: str, text: str) -> FigureBlock:
    caption = f"{text} {_DOTS} {captions.conditions(view.scaling, view.runs)}"
    return FigureBlock(
        picture=picture, title=title, caption=caption, table=series_table(view.scaling.points, view.ratios, column)
    )


def series_table(points: tuple[PointScaling, ...], launches: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the numbers drawn in a figure of `column`: a row per point (kind median) and per launch.

    Columns: kind, layout, ranks, value, low, high (95 % interval, empty where there is none), launches, run.
    """
    value, interval = _COLUMNS[column]
    rows = [
        {"kind": "median", "layout": point.layout, "ranks": point.ranks, column: value(point)}
        | {"low": found.low if (found := interval(point)) else None, "high": found.high if found else None}
        | {"launches": point.launches}
        for point in points
    ]
    raw = launches[["layout", "ranks", column, "run"]].assign(kind="launch", launches=1)
    order = ["kind", "layout", "ranks", column, "low", "high", "launches", "run"]
    return pd.concat([pd.DataFrame(rows), raw]).reindex(columns=order)


def speedup_picture(scaling: Scaling, launches: pd.DataFrame, subject: str, name: str) -> Picture:
    """Return the picture of speedup against ranks, called `name`."""
    title = f"Speedup of {subject} over {numbers.ranks(scaling.base.ranks)}"
    return draw(name, title, lambda axes: _speedup(axes, scaling, launches), numbers=_spoken(scaling, "speedup"))


_WORDS: dict[str, Callable[[float], str]] = {
    "speedup": lambda value: f"{value:.2f}",
    "efficiency": numbers.percent,
    "seconds": numbers.seconds,
    "rows_per_second": lambda value: f"{numbers.significant(value)} rows/s",
}


def _spoken(scaling: Scaling, column: str) -> str:
    """Return the medians and intervals of a figure to those who cannot see it."""
    value, interval = _COLUMNS[column]
    several, words, texts = len({point.threads for point in scaling.points}) > 1, _WORDS[column], []
    for point in scaling.points:
        median, found = value(point), interval(point)
        where = numbers.ranks(point.ranks) + (f" of {numbers.plural(point.threads, 'thread')}" if several else "")
        span = f" ({words(found.low)} to {words(found.high)})" if found else ""
        texts += [f"{where}: {words(median)}{span}"] if median is not None else []
    return "; ".join(texts)


def _speedup(axes: Axes, scaling: Scaling, launches: pd.DataFrame) -> None:
    ranks = [point.ranks for point in scaling.points]
    logarithmic = rank_axis(axes, ranks)
    ends = [min(ranks), max(ranks)]
    axes.plot(ends, [end / scaling.base.ranks for end in ends], label="ideal", **_IDEAL)
    raw_launches(axes, launches, "speedup", logarithmic)
    medians(axes, scaling.points, lambda p: p.speedup, lambda p: p.speedup_interval, "median of launches")
    if logarithmic:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        from_zero(axes)
    axes.set_ylabel(f"{speedup_label(scaling)} over {numbers.ranks(scaling.base.ranks)}")


def _efficiency(axes: Axes, scaling: Scaling, launches: pd.DataFrame) -> None:
    logarithmic = rank_axis(axes, [point.ranks for point in scaling.points])
    axes.axhline(1, label="ideal", **_IDEAL)
    raw_launches(axes, launches, "efficiency", logarithmic)
    medians(axes, scaling.points, lambda p: p.efficiency, lambda p: p.efficiency_interval, "median of launches")
    axes.set_ylim(bottom=0, top=max(1.1, 1.05 * launches["efficiency"].max()))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    several = len({point.threads for point in scaling.points}) > 1
    axes.set_ylabel("Parallel efficiency per core" if several else "Parallel efficiency")


def _time(axes: Axes, scaling: Scaling, launches: pd.DataFrame) -> None:
    ranks = [point.ranks for point in scaling.points]
    logarithmic = rank_axis(axes, ranks)
    factor, unit = time_unit(float(launches["seconds"].max()))
    base, strong = scaling.base, scaling.scaling == "strong"
    if len(ranks) > 1:
        # The ideal is a curve (base time over ranks), drawn finely: a straight line between points would lie.
        fine = [min(ranks) + (max(ranks) - min(ranks)) * step / 200 for step in range(201)]
        ideal = [base.seconds * factor * (base.ranks / rank if strong else 1) for rank in fine]
        axes.plot(fine, ideal, label="ideal", **_IDEAL)
    scaled = launches.assign(scaled=launches["seconds"] * factor)
    raw_launches(axes, scaled, "scaled", logarithmic)
    medians(
        axes,
        scaling.points,
        lambda p: p.seconds * factor,
        lambda p: p.seconds_interval.scaled(factor) if p.seconds_interval else None,
        "median of launches",
    )
    if logarithmic and strong:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        from_zero(axes)
    axes.set_ylabel(f"Training time of an epoch ({unit})")


def _throughput(axes: Axes, scaling: Scaling, launches: pd.DataFrame) -> None:
    ranks = [point.ranks for point in scaling.points]
    logarithmic = rank_axis(axes, ranks)
    base = scaling.base
    if len(ranks) > 1:
        ends = [min(ranks), max(ranks)]
        axes.plot(ends, [base.rows_per_second * end / base.ranks for end in ends], label="ideal", **_IDEAL)
    raw_launches(axes, launches, "rows_per_second", logarithmic)
    medians(axes, scaling.points, lambda p: p.rows_per_second, lambda p: p.rows_interval, "median of launches")
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        from_zero(axes)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylabel("Training rows per second")
