"""What explains a sweep, from its records and the newest probe of its machine: POP's efficiencies and the overheads.

Names and definitions of the efficiencies are those of the POP Centre of Excellence ("Standard Metrics for Performance
Analysis", https://co-design.pop-coe.eu/metrics): how much of the cores' time is useful work, and what lowers it.
Useful computation is all that a rank does outside of synchronisation calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.frames import launch_frame, median_launches
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import PointScaling, Scaling, comparable, scale
from harness.analysis.stats import NEEDED, Interval, percentiles, resamples
from harness.base.errors import UserError
from harness.probe.probe_store import newest_probe
from harness.schema.message_cost import ALLREDUCE, OVERLAPPED, REDUCTION, REDUCTION_NAMES, MessageCost, Probe
from harness.schema.record import RunRecord
from harness.why.launch_detail import USEFUL_COLUMNS, Detailed, detailed
from harness.why.overheads import LAUNCH_CAUSES, PointOverheads, overheads

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
NAMES = tuple(metric.name for metric in TREE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """One metric of one point. `interval` is a bootstrap over launches, None below 6 or where sessions differ."""

    value: float
    interval: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PointEfficiencies:
    """The efficiencies of one point by name: all of `NAMES`, where work differs no computation scaling and no root."""

    layout: str
    ranks: int
    launches: int
    metrics: Mapping[str, Efficiency]


def efficiencies(scaling: Scaling, launches: pd.DataFrame) -> tuple[PointEfficiencies, ...]:
    """Return the efficiencies of every point of `scaling`; `launches` are `launch_detail.Detailed`'s.

    Values are of the median launch, so that factors multiply up exactly and the ratio of two points' global efficiency
    is the efficiency of the scaling table.
    """
    groups = {str(layout): group for layout, group in launches.groupby("layout", sort=False)}
    base = groups[scaling.base.layout]
    return tuple(_point_efficiencies(point, groups[point.layout], base, scaling) for point in scaling.points)


def _point_efficiencies(
    point: PointScaling, group: pd.DataFrame, base: pd.DataFrame, scaling: Scaling
) -> PointEfficiencies:
    compared = point is scaling.base or point.speedup is not None
    one = np.arange(len(group))[None], np.arange(len(base))[None]
    values = _metrics(_times(group, one[0]), _times(base, one[1]) if compared else None)
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
    if len(group) < NEEDED:
        return {}
    drawn, _ = resamples(len(group), 1, paired=True)
    times = _times(group, drawn)
    found = {name: percentiles(values, len(group)) for name, values in _metrics(times, times if same else None).items()}
    pair = comparable(base, group) if compared and not same and len(base) >= NEEDED else None
    if pair is not None:
        first, second = resamples(len(pair.base), len(pair.group), paired=pair.paired)
        against = _metrics(_times(pair.group, second), _times(pair.base, first))
        fewest = min(len(pair.base), len(pair.group))
        found |= {name: percentiles(against[name], fewest) for name in ("global efficiency", "computation scaling")}
    return found


def _times(group: pd.DataFrame, drawn: NDArray[np.int64]) -> Array:
    """Return seconds, useful, longest, ideal of the median launches [draws], and useful core-seconds of a row."""
    _, columns = median_launches(group, drawn, USEFUL_COLUMNS)
    spent = columns[:, 1] * int(group["cores"].iloc[0]) / float(group["rows"].iloc[0])
    times: Array = np.vstack([columns.T, spent])
    return times


def _metrics(times: Array, base: Array | None) -> dict[str, Array]:
    seconds, useful, longest, ideal, spent = times
    found = {
        "parallel efficiency": useful / seconds,
        "load balance": useful / longest,
        "communication efficiency": longest / seconds,
        "serialisation efficiency": longest / ideal,
        "transfer efficiency": ideal / seconds,
    }
    if base is not None:
        scaled = base[4] / spent
        found |= {"computation scaling": scaled, "global efficiency": found["parallel efficiency"] * scaled}
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """A sweep with its reasons. `overheads` are of an epoch, `launch_overheads` of a whole launch, by point.

    `network` says where the latency and the bandwidth of the allreduce are from, or why there are none.
    """

    loaded: Loaded
    scaling: Scaling
    detail: Detailed
    efficiencies: tuple[PointEfficiencies, ...]
    overheads: tuple[PointOverheads, ...]
    launch_overheads: tuple[PointOverheads, ...]
    network: str
    probe: Probe | None

    @property
    def main(self) -> PointOverheads | None:
        """The overheads of the largest point that has them: what the answer is about."""
        return self.overheads[-1] if self.overheads else None


def explain_sweep(folder: Path, base: int | None = None) -> Explanation:
    """Return what explains the sweep in `folder`; ratios are over `base` ranks, by default over the fewest.

    Raises:
        UserError: there is no valid launch, one has no times of single calls, `base` has none, or a probe is damaged.
    """
    loaded = load_sweep(folder)
    if not loaded.valid:
        raise UserError(f"sweep '{folder}' has no valid launch: `harness status {folder.name}` says why")
    frame = launch_frame(loaded.runs, loaded.epochs)
    scaling = scale(frame, base_ranks=base)
    assert scaling is not None
    machines = {run.provenance.machine.fingerprint for run in loaded.valid}
    probe = newest_probe(folder.resolve().parent, min(machines)) if len(machines) == 1 else None
    detail = detailed(folder, frame, lambda run: cost_of(probe, run) if probe else None)
    return Explanation(
        loaded=loaded,
        scaling=scaling,
        detail=detail,
        efficiencies=efficiencies(scaling, detail.launches),
        overheads=overheads(scaling, detail.launches),
        launch_overheads=overheads(scaling, detail.launches, LAUNCH_CAUSES),
        network=_network(probe, loaded),
        probe=probe,
    )


def cost_of(probe: Probe, run: RunRecord, way: str = "") -> MessageCost | None:
    """Return what an allreduce by `way` (a choice of HARNESS_REDUCTION, by default the one that `run` took) costs.

    None where the probe did not measure it on as many ranks, `run` had settings of its own, or overlapped them with
    computation, so that their times are not all that they cost.
    """
    if OVERLAPPED in run.provenance.reduction and not way:
        return None
    network = probe.by_setting[0]
    took = way or next((way for way, name in REDUCTION_NAMES.items() if name in run.provenance.reduction), "")
    found = network.find(f"{REDUCTION}{took}", network.widest)
    if found is None and took == "messages":
        found = network.find(ALLREDUCE, network.widest)
    usable = found is not None and found.ranks == run.point.layout.ranks and not run.point.settings
    return found if usable else None


def _network(probe: Probe | None, loaded: Loaded) -> str:
    summing = [run for run in loaded.valid if run.point.layout.ranks > 1]
    if probe is None or not any(cost_of(probe, run) for run in summing):
        return "Latency and bandwidth of the allreduce are one: no probe of this machine on as many ranks (make probe)"
    return f"Latency and bandwidth of the allreduce are those of the probe of {probe.measured:%Y-%m-%d %H:%M} UTC"
