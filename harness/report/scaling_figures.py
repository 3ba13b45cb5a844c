"""Speedup, efficiency and absolute epoch time against ranks."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from harness.analysis import numbers
from harness.analysis.scaling import Scaling
from harness.report.axes import from_zero, medians, rank_axis, raw_launches
from harness.report.svg import MUTED, Picture, draw

_IDEAL: dict[str, Any] = {"color": MUTED.light, "linestyle": (0, (5, 3)), "linewidth": 1.2, "zorder": 1}


def scaling_pictures(scaling: Scaling, launches: pd.DataFrame, subject: str) -> tuple[Picture, ...]:
    """Return the pictures `speedup` and `efficiency` (with two points or more), `epoch-time` and `throughput`.

    `launches` are the rows behind `scaling` (`ratios_frame`); `subject` names the workload.
    """
    pictures = []
    if len(scaling.points) > 1:
        pictures = [
            speedup_picture(scaling, launches, subject, "speedup"),
            draw("efficiency", f"Parallel efficiency of {subject}", lambda axes: _efficiency(axes, scaling, launches)),
        ]
    pictures += [
        draw("epoch-time", f"Training time of one epoch of {subject}", lambda axes: _time(axes, scaling, launches)),
        draw("throughput", f"Training throughput of {subject}", lambda axes: _throughput(axes, scaling, launches)),
    ]
    return tuple(pictures)


def speedup_picture(scaling: Scaling, launches: pd.DataFrame, subject: str, name: str) -> Picture:
    """Return the picture of speedup against ranks, called `name`."""
    title = f"Speedup of {subject} over {numbers.ranks(scaling.base.ranks)}"
    return draw(name, title, lambda axes: _speedup(axes, scaling, launches))


def ratios_frame(scaling: Scaling, launches: pd.DataFrame) -> pd.DataFrame:
    """Return the valid rows of `launches` with speedup and efficiency of each: base median over its time.

    Points whose work differs from the base's get NaN.
    """
    points = {point.layout: point for point in scaling.points}
    valid = launches[launches["valid"]]
    valid = valid.sort_values(["ranks", "nodes", "threads", "repeat"], kind="stable")
    ideal = valid["layout"].map(lambda layout: points[layout].ideal)
    known = valid["layout"].map(lambda layout: points[layout].speedup is not None)
    ratio = (scaling.base.seconds / valid["seconds"]).where(known)
    strong = scaling.scaling == "strong"
    return valid.assign(
        speedup=ratio if strong else ratio * ideal,
        efficiency=ratio / ideal if strong else ratio,
    )


def speedup_label(scaling: Scaling) -> str:
    """Return what the ratio is called under this kind of scaling."""
    return "Speedup" if scaling.scaling == "strong" else "Scaled speedup"


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
    axes.set_ylabel("Parallel efficiency")


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


def time_unit(longest: float) -> tuple[float, str]:
    """Return the factor from seconds and the unit that suit an axis up to `longest` seconds."""
    if longest < 1:
        return 1e3, "ms"
    return (1.0, "s") if longest < 300 else (1 / 60, "min")
