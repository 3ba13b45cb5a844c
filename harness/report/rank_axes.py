"""What figures over ranks have in common: the axis of ranks, single launches, means with intervals, units of time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.analysis.scaling import PointScaling
from harness.base.own_matplotlib import Axes
from harness.report.svg import LAUNCH, MUTED, mark

_LOG_FROM = 8  # the ratio of the largest to the smallest count from which doublings are drawn equally far
_MOST_TICKS = 9
_MOST_DOTS = 2000
_BESIDE = (0.022, 0.06)  # where the launches of a point lie, right of its marker, in parts of the axis


def rank_axis(axes: Axes, ranks: Sequence[int], label: str = "MPI ranks") -> bool:
    """Set the x axis to the measured `ranks`; return whether it is logarithmic (base 2)."""
    counts = sorted(set(ranks))
    low = counts[0]
    high = counts[-1]
    logarithmic = high / low >= _LOG_FROM
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_xlim(low / 1.3, high * 1.3)
    else:
        room = max((high - low) * 0.12, 0.4)
        axes.set_xlim(low - room, high + room)
    axes.set_xticks(ticks := _ticks(counts, logarithmic), [f"{count:,}" for count in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    return logarithmic


def _ticks(counts: list[int], logarithmic: bool) -> list[int]:
    if len(counts) <= _MOST_TICKS:
        return counts
    if logarithmic:
        powers = [count for count in counts if count & (count - 1) == 0]
        counts = powers if len(powers) > 1 else counts
    step = -(-len(counts) // _MOST_TICKS)
    return counts[::step]


def some_of(frame: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the rows of at most `most` layouts of `frame`, evenly chosen with the first and the last among them.

    A figure of a thousand lines or bars shows nothing; tables and CSV files have them all.
    """
    layouts = list(dict.fromkeys(frame["layout"]))
    if len(layouts) <= most:
        return frame
    chosen = {layouts[round(place)] for place in np.linspace(0, len(layouts) - 1, most)}
    return frame[frame["layout"].isin(chosen)]


def speedup_axis(axes: Axes, label: str, *, logarithmic: bool) -> None:
    """Make the value axis one of speedups: logarithmic where the axis of ranks is, else linear from 0."""
    if logarithmic:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(label)


def error_bars(axes: Axes, bars: Sequence[tuple[float, float, Interval]], colour: str, **look: Any) -> None:
    """Draw the interval of each (x, y, interval)."""
    # A bootstrap interval may end short of the value, any by rounding: an error bar cannot be negative.
    lengths = [[max(0.0, y - interval.low), max(0.0, interval.high - y)] for _, y, interval in bars]
    places = [x for x, _, _ in bars]
    heights = [y for _, y, _ in bars]
    axes.errorbar(places, heights, yerr=np.transpose(lengths), fmt="none", ecolor=colour, **look)


def raw_launches(axes: Axes, launches: pd.DataFrame, column: str, logarithmic: bool) -> None:
    """Draw `column` of every row of `launches` as a light dot right of its rank count, linked to its launch.

    More dots than `_MOST_DOTS` are drawn as one image without links: a page must stay light.
    """
    low, high = axes.get_xlim()
    layouts = launches.groupby("layout", sort=False)["run"]
    number = layouts.cumcount()
    last = layouts.transform("size") - 1
    steps = _BESIDE[0] + (_BESIDE[1] - _BESIDE[0]) * (number / last).fillna(0.5)  # none hides another or the mean
    x = launches["ranks"] * (high / low) ** steps if logarithmic else launches["ranks"] + steps * (high - low)
    are_many = len(launches) > _MOST_DOTS
    dots = axes.scatter(
        x,
        launches[column],
        s=10,
        color=MUTED.light,
        alpha=0.6,
        linewidths=0,
        label="single launch",
        rasterized=are_many,
    )
    if not are_many:
        dots.set_urls([f"{LAUNCH}{run}" for run in launches["run"]])


def point_means(
    axes: Axes,
    points: Sequence[PointScaling],
    value: Callable[[PointScaling], float | None],
    interval: Callable[[PointScaling], Interval | None],
    label: str,
    *,
    joined: bool = True,
) -> None:
    """Draw the means of `points` with their intervals where there are any, one series for each thread count.

    They are `joined` by straight lines.
    """
    counts = sorted({point.threads for point in points})
    for number, threads in enumerate(counts):
        ranks: list[int] = []
        values: list[float] = []
        bars: list[tuple[float, float, Interval]] = []
        for point in points:
            y = value(point)
            if point.threads != threads or y is None:
                continue
            ranks.append(point.ranks)
            values.append(y)
            bounds = interval(point)
            if bounds is not None:
                bars.append((point.ranks, y, bounds))
        name = f"{label}, {units.plural(threads, 'thread')} per rank" if len(counts) > 1 else label
        look = mark(number)
        line = look.dashes if joined else "none"
        axes.plot(ranks, values, label=name, color=look.colour, marker=look.marker, linestyle=line, zorder=3)
        if bars:
            error_bars(axes, bars, look.colour, capsize=4, zorder=4)


def time_unit(longest: float) -> tuple[float, str]:
    """Return the factor from seconds and the unit that suit an axis up to `longest` seconds."""
    if longest < 1:
        return 1e3, "ms"
    return (1.0, "s") if longest < 300 else (1 / 60, "min")
