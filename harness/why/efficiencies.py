"""The efficiencies of every point of a sweep: how much of the cores' time is useful work, and what lowers it.

Names and definitions are those of the POP Centre of Excellence ("Standard Metrics for Performance Analysis",
https://co-design.pop-coe.eu/metrics). Useful computation is all that a rank does outside of synchronisation calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.comparison import comparable, undisturbed_launches
from harness.analysis.confidence_intervals import FEWEST_LAUNCHES, Interval, percentiles, resamples
from harness.analysis.scaling import PointScaling, Scaling
from harness.why.launch_detail import USEFUL_COLUMNS
from harness.why.overheads import typical_launches

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One node of the tree: `depth` 0 is the root."""

    name: str
    depth: int
    meaning: str


TREE = (
    Metric(name="global efficiency", depth=0, meaning="parallel efficiency x computation scaling"),
    Metric(name="parallel efficiency", depth=1, meaning="mean useful time of the ranks over the epoch's time"),
    Metric(name="load balance", depth=2, meaning="mean useful time over that of the rank with most"),
    Metric(name="communication efficiency", depth=2, meaning="useful time of the rank with most over the epoch's time"),
    Metric(
        name="serialisation efficiency",
        depth=3,
        meaning="useful time of the rank with most over the epoch's time on a network that takes no time",
    ),
    Metric(
        name="transfer efficiency",
        depth=3,
        meaning="the epoch's time on a network that takes no time over the measured one",
    ),
    Metric(
        name="computation scaling",
        depth=1,
        meaning="useful core-seconds of a row on the base over those here: instruction x IPC x frequency scaling, "
        "which records without hardware counters cannot divide",
    ),
)


_ROOT = TREE[0].name
NAMES = tuple(metric.name for metric in TREE)

# What TALP of the DLB library (https://pm.bsc.es/dlb) calls them. It has no name for serialisation and transfer.
TALP_NAMES = {
    "global efficiency": "globalEfficiency",
    "parallel efficiency": "parallelEfficiency",
    "load balance": "mpiLoadBalance",
    "communication efficiency": "mpiCommunicationEfficiency",
    "computation scaling": "computationScalability",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """One metric of one point. `interval` is a bootstrap over launches, None below 6 or where sessions differ."""

    value: float
    interval: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PointEfficiencies:
    """The efficiencies of one point by name: all of `NAMES`, where work differs no computation scaling and no root.

    Where the times of sums are not known it is the root alone.
    """

    layout: str
    ranks: int
    launches: int
    metrics: Mapping[str, Efficiency]


def efficiencies(scaling: Scaling, launches: pd.DataFrame) -> tuple[PointEfficiencies, ...]:
    """Return the efficiencies of every point of `scaling`; `launches` are `launch_detail.Detailed`'s.

    Values are of the median launch, in turns of the mean over launches, so that factors multiply up exactly. The ratio
    of two points' global efficiency is the efficiency of the scaling table.
    """
    groups = {str(layout): undisturbed_launches(group) for layout, group in launches.groupby("layout", sort=False)}
    base = groups[scaling.base.layout]
    return tuple(_point_efficiencies(point, groups[point.layout], base, scaling) for point in scaling.points)


def _point_efficiencies(
    point: PointScaling, group: pd.DataFrame, base: pd.DataFrame, scaling: Scaling
) -> PointEfficiencies:
    compared = point is scaling.base or point.speedup is not None
    base_times = _times(base, np.arange(len(base))[None]) if compared else None
    values = _metrics(_times(group, np.arange(len(group))[None]), base_times)
    if not group["sums_timed"].all():  # sums and waiting are in the useful time: only the whole is known
        values = {name: value for name, value in values.items() if name == _ROOT}
    intervals = _intervals(group, base, compared=compared, same=point is scaling.base)
    return PointEfficiencies(
        layout=point.layout,
        ranks=int(point.ranks),
        launches=len(group),
        metrics={
            name: Efficiency(value=float(values[name][0]), interval=intervals.get(name))
            for name in NAMES
            if name in values
        },
    )


def _intervals(group: pd.DataFrame, base: pd.DataFrame, *, compared: bool, same: bool) -> dict[str, Interval]:
    """Return the intervals that there are; the base's computation scaling is 1 by definition."""
    if len(group) < FEWEST_LAUNCHES:
        return {}
    drawn, _ = resamples(len(group), 1, paired=True)
    times = _times(group, drawn)
    metrics = _metrics(times, times if same else None)
    intervals = {name: percentiles(values, len(group)) for name, values in metrics.items()}
    pair = comparable(base, group) if compared and not same and len(base) >= FEWEST_LAUNCHES else None
    if pair is not None:
        base_drawn, group_drawn = resamples(len(pair.base), len(pair.group), paired=pair.paired)
        metrics = _metrics(_times(pair.group, group_drawn), _times(pair.base, base_drawn))
        fewest = min(len(pair.base), len(pair.group))
        for name in ("global efficiency", "computation scaling"):
            intervals[name] = percentiles(metrics[name], fewest)
    return intervals


def _times(group: pd.DataFrame, drawn: NDArray[np.int64]) -> Array:
    """Return seconds, useful, longest, ideal of the median launches [draws], and useful core-seconds of a row."""
    _, columns = typical_launches(group)(group, drawn, USEFUL_COLUMNS)
    row_core_seconds = columns[:, 1] * int(group["cores"].iloc[0]) / float(group["rows"].iloc[0])
    times: Array = np.vstack([columns.T, row_core_seconds])
    return times


def _metrics(times: Array, base: Array | None) -> dict[str, Array]:
    seconds, useful, longest, ideal, row_core_seconds = times
    metrics = {
        "parallel efficiency": useful / seconds,
        "load balance": useful / longest,
        "communication efficiency": longest / seconds,
        "serialisation efficiency": longest / ideal,
        "transfer efficiency": ideal / seconds,
    }
    if base is not None:
        metrics["computation scaling"] = base[4] / row_core_seconds
        metrics["global efficiency"] = metrics["parallel efficiency"] * metrics["computation scaling"]
    return metrics
