"""Overheads: what a point takes beyond its ideal time, by cause, in one vocabulary for reports and checks.

A part of the time (`time_parts.PART_NAMES`) is divided into causes, and each cause lowers one efficiency (`TREE`);
`why.known_causes` says which overhead what it finds is part of. Names and definitions of the efficiencies are those of
the POP Centre of Excellence ("Standard Metrics for Performance Analysis", https://co-design.pop-coe.eu/metrics): how
much of the cores' time is useful work, and what lowers it. Useful computation is all that a rank does outside of
synchronisation calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.comparison import comparable, undisturbed_launches
from harness.analysis.frames import launch_frame
from harness.analysis.inference import FEWEST_LAUNCHES, Interval, percentiles, resamples
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import PointScaling, Scaling, scale
from harness.analysis.time_parts import EPOCH_PARTS, LAUNCH_PARTS, PART_NAMES, mean_launches, median_launches
from harness.base.errors import UserError
from harness.probe.probe_store import newest_probe
from harness.schema.message_cost import ALLREDUCE, OVERLAPPED, REDUCTION, REDUCTION_NAMES, MessageCost, Probe
from harness.schema.record import RunRecord
from harness.why.launch_detail import USEFUL_COLUMNS, Detailed, detailed

Array = NDArray[np.float64]
LEAST = 0.01  # of the measured time: an overhead below this limits nothing
_LISTED = 0.001  # of the measured time: a cause below this is not worth a line


@dataclass(frozen=True, kw_only=True, slots=True)
class OverheadCause:
    """A cause of overhead: its column (seconds), its name, the column of the part of the time that it belongs to.

    `lowers` is the POP efficiency that it lowers, empty where there is no single one.
    """

    column: str
    name: str
    part: str
    lowers: str = ""


def _causes(part: str, *causes: tuple[str, str, str]) -> tuple[OverheadCause, ...]:
    return tuple(
        OverheadCause(column=f"{name}_seconds", name=words, part=part, lowers=lowers) for name, words, lowers in causes
    )


PARTS = tuple(OverheadCause(column=part, name=PART_NAMES[part], part=part) for part in EPOCH_PARTS)
CAUSES = (
    *_causes(
        "compute_seconds",
        ("computing", "slower computation", "computation scaling"),
        ("queue", "cores taken by others", "computation scaling"),
    ),
    *_causes("input_seconds", ("input", "input", "computation scaling")),
    *_causes(
        "skew_seconds",
        ("skew_rows", "unequal rows", "load balance"),
        ("skew_rank", "a slow rank", "load balance"),
        ("skew_rare", "rare delays", "serialisation efficiency"),
        ("skew_jitter", "jitter of every step", "serialisation efficiency"),
        ("skew_leaving", "leaving the last allreduce at different times", "serialisation efficiency"),
    ),
    *_causes(
        "wire_seconds",
        ("latency", "allreduce: latency", "transfer efficiency"),
        ("bandwidth", "allreduce: bandwidth", "transfer efficiency"),
        ("sum", "allreduce (wire)", "transfer efficiency"),
    ),
    *_causes("compute_seconds", ("unexplained", "not explained", "")),
)
"""The causes of the overhead of an epoch: those of a part sum to the part, all to the epoch's time."""
LAUNCH_CAUSES = tuple(OverheadCause(column=part, name=PART_NAMES[part], part=part) for part in LAUNCH_PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """What one cause takes beyond its ideal share: seconds, part of the measured time, part of all overhead.

    Below zero it is a gain. `share` is None where there is too little overhead to divide it. `speedup_without` is about
    the most speedup that there is without it, since that nothing else would change is an assumption; None for a gain.
    Intervals are bootstraps over the launches of both points, which all causes hold together with 95 %; None below 6 or
    where sessions differ, that of `share` also where there may be no overhead.
    """

    cause: OverheadCause
    seconds: float
    fraction: float
    fraction_interval: Interval | None
    share: float | None
    share_interval: Interval | None
    speedup_without: float | None
    speedup_interval: Interval | None

    @property
    def sure(self) -> bool:
        """Whether its interval, where there is one, excludes 0."""
        found = self.fraction_interval
        return found is None or found.low > 0 or found.high < 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PointOverheads:
    """The overhead of one point: `ideal` and `measured` seconds, and an item for each cause, in the order of these.

    `fraction_interval` is that of all overhead as part of the measured time, None where the items have none.
    """

    layout: str
    ranks: int
    ideal: float
    measured: float
    fraction_interval: Interval | None
    items: tuple[Overhead, ...]

    @property
    def seconds(self) -> float:
        """Seconds that the point takes beyond the ideal."""
        return self.measured - self.ideal

    @property
    def listed(self) -> tuple[Overhead, ...]:
        """The items that are worth a line, costliest first: those of at least 0.1 % of the measured time."""
        worth = [item for item in self.items if abs(item.fraction) >= _LISTED]
        return tuple(sorted(worth, key=lambda item: -item.seconds))

    @property
    def costs(self) -> tuple[Overhead, ...]:
        """The items that are not gains, costliest first."""
        costs = [item for item in self.items if item.speedup_without is not None]
        return tuple(sorted(costs, key=lambda item: -item.seconds))

    @property
    def largest(self) -> Overhead | None:
        """The item that limits the speedup most, None where all are below 1 %."""
        return self.costs[0] if self.costs and self.costs[0].fraction >= LEAST else None


def overheads(
    scaling: Scaling, launches: pd.DataFrame, causes: Sequence[OverheadCause] = CAUSES
) -> tuple[PointOverheads, ...]:
    """Return the overheads of every point with a speedup, other than the base; `launches` are those of `scaling`.

    The ideal share of a part of the time is the base's divided by the ratio of the ranks (strong scaling) or the same
    (weak). The CAUSES need the columns of `launch_detail.Detailed`; those of PARTS and LAUNCH_CAUSES are in every
    `frames.launch_frame` and `with_launch_parts`.
    """
    valid = launches[launches["valid"]]
    valid = valid.assign(whole=valid[[cause.column for cause in causes]].sum(axis=1))
    groups = {str(layout): group for layout, group in valid.groupby("layout", sort=False)}
    compared = [point for point in scaling.others if point.speedup is not None]
    return tuple(_point_overheads(point, groups, scaling, causes) for point in compared)


def _point_overheads(
    point: PointScaling, groups: Mapping[str, pd.DataFrame], scaling: Scaling, causes: Sequence[OverheadCause]
) -> PointOverheads:
    base, group = (undisturbed_launches(groups[layout]) for layout in (scaling.base.layout, point.layout))
    strong = scaling.scaling == "strong"
    share, factor = (point.ideal, 1.0) if strong else (1.0, point.ideal)
    every_launch = (np.arange(len(base))[None], np.arange(len(group))[None])
    parts = _overhead_parts(base, group, every_launch, causes, share)
    if causes is not LAUNCH_CAUSES:
        parts = parts.scaled(scaling.base.seconds / share, point.seconds)
    ideal, measured = float(parts.ideal[0]), float(parts.measured[0])
    excess = parts.excess[0]
    overhead = measured - ideal
    divided = overhead >= LEAST * measured
    intervals = _overhead_intervals(base, group, causes, share, divided=divided)
    items = []
    for number, cause in enumerate(causes):
        seconds = float(excess[number])
        is_cost = 0 < seconds < measured  # what is left of the time without it is never nothing
        speedup_interval = intervals.speedups[number]
        items.append(
            Overhead(
                cause=cause,
                seconds=seconds,
                fraction=seconds / measured,
                fraction_interval=intervals.fractions[number],
                share=seconds / overhead if divided else None,
                share_interval=intervals.shares[number],
                speedup_without=factor * share * ideal / (measured - seconds) if is_cost else None,
                speedup_interval=speedup_interval.scaled(factor) if is_cost and speedup_interval else None,
            )
        )
    return PointOverheads(
        layout=point.layout,
        ranks=int(point.ranks),
        ideal=ideal,
        measured=measured,
        fraction_interval=intervals.whole,
        items=tuple(items),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _OverheadParts:
    """Seconds of draws of launches: `ideal` and `measured` [draws], by cause `ideal_parts` and `excess`, which is
    beyond them [draws, causes]."""

    ideal: Array
    measured: Array
    excess: Array
    ideal_parts: Array

    def scaled(self, ideal: float, measured: float) -> "_OverheadParts":
        """Return them with other times, of which the causes keep their parts."""
        ideal_parts = self.ideal_parts * (ideal / self.ideal)[:, None]
        measured_parts = (self.excess + self.ideal_parts) * (measured / self.measured)[:, None]
        return _OverheadParts(
            ideal=np.full_like(self.ideal, ideal),
            measured=np.full_like(self.measured, measured),
            excess=measured_parts - ideal_parts,
            ideal_parts=ideal_parts,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _OverheadIntervals:
    """Intervals of all overhead as part of the time (`whole`), and by cause; None below 6 launches."""

    whole: Interval | None
    fractions: Sequence[Interval | None]
    shares: Sequence[Interval | None]
    speedups: Sequence[Interval | None]


def _overhead_intervals(
    base: pd.DataFrame, group: pd.DataFrame, causes: Sequence[OverheadCause], share: float, *, divided: bool
) -> _OverheadIntervals:
    """Return bootstraps over the launches of both points, which all causes hold together with 95 %."""
    rows = len(causes)
    nothing: list[Interval | None] = [None] * rows
    pair = comparable(base, group) if min(len(base), len(group)) >= FEWEST_LAUNCHES else None
    if pair is None:
        return _OverheadIntervals(whole=None, fractions=nothing, shares=nothing, speedups=nothing)
    fewest = min(len(pair.base), len(pair.group))
    drawn = resamples(len(pair.base), len(pair.group), paired=pair.paired)
    parts = _overhead_parts(pair.base, pair.group, drawn, causes, share)
    overhead = parts.measured - parts.ideal
    whole = percentiles(overhead / parts.measured, fewest)
    fractions = parts.excess / parts.measured[:, None]
    left = np.maximum(parts.measured[:, None] - parts.excess, np.finfo(float).tiny)
    speedups = share * parts.ideal[:, None] / left
    shares = nothing
    if divided and whole.low >= LEAST:  # else some draws have next to no overhead, which nothing can be a part of
        shares = [percentiles(values, fewest, rows=rows) for values in (parts.excess / overhead[:, None]).T]
    return _OverheadIntervals(
        whole=whole,
        fractions=[percentiles(values, fewest, rows=rows) for values in fractions.T],
        shares=shares,
        speedups=[percentiles(values, fewest, rows=rows) for values in speedups.T],
    )


def _overhead_parts(
    base: pd.DataFrame,
    group: pd.DataFrame,
    drawn: tuple[NDArray[np.int64], NDArray[np.int64]],
    causes: Sequence[OverheadCause],
    share: float,
) -> _OverheadParts:
    """Return what the causes take of the `drawn` launches; the base's parts over `share` are ideal."""
    columns = [cause.column for cause in causes]
    typical = typical_launches(base, group)
    base_seconds, base_parts = typical(base, drawn[0], columns, "whole")
    seconds, parts = typical(group, drawn[1], columns, "whole")
    ideal_parts = base_parts / share
    return _OverheadParts(
        ideal=base_seconds / share, measured=seconds, excess=parts - ideal_parts, ideal_parts=ideal_parts
    )


def typical_launches(*groups: pd.DataFrame) -> Callable[..., tuple[Array, Array]]:
    """Return how the launches of `groups` are averaged: geometric means of those in turns, medians of others."""
    in_turns = all(bool(group["ran_seconds"].notna().all()) for group in groups)
    return mean_launches if in_turns else median_launches


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
    if len(group) < FEWEST_LAUNCHES:
        return {}
    drawn, _ = resamples(len(group), 1, paired=True)
    times = _times(group, drawn)
    found = {name: percentiles(values, len(group)) for name, values in _metrics(times, times if same else None).items()}
    pair = comparable(base, group) if compared and not same and len(base) >= FEWEST_LAUNCHES else None
    if pair is not None:
        first, second = resamples(len(pair.base), len(pair.group), paired=pair.paired)
        against = _metrics(_times(pair.group, second), _times(pair.base, first))
        fewest = min(len(pair.base), len(pair.group))
        found |= {name: percentiles(against[name], fewest) for name in ("global efficiency", "computation scaling")}
    return found


def _times(group: pd.DataFrame, drawn: NDArray[np.int64]) -> Array:
    """Return seconds, useful, longest, ideal of the median launches [draws], and useful core-seconds of a row."""
    _, columns = typical_launches(group)(group, drawn, USEFUL_COLUMNS)
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

    def point_of(self, overheads: PointOverheads) -> PointScaling | None:
        """The row of the scaling table whose overheads these are."""
        return next((point for point in self.scaling.points if point.layout == overheads.layout), None)


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
