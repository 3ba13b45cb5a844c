"""The efficiencies of every point of a sweep: how much of the cores' time is useful work, and what lowers it.

Their definitions are in `analysis.useful_time`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.block_table import trained_in_turns
from harness.analysis.comparison import comparable, layout_launches, undisturbed_launches
from harness.analysis.confidence_intervals import (
    FEWEST_LAUNCHES,
    Interval,
    percentiles,
    ratio_over_blocks,
    resampled_shares,
)
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.sync_calls import Calls, read_calls
from harness.analysis.time_parts import equal_shares, mean_launches, with_launch_parts
from harness.analysis.turn_blocks import BlockTimes
from harness.analysis.useful_time import (
    COMMUNICATION,
    COMPUTATION,
    GLOBAL,
    LOAD_BALANCE,
    PARALLEL,
    SERIALISATION,
    TRANSFER,
    LaunchTimes,
    efficiency_factors,
    useful_in_epochs,
    useful_ranks,
)
from harness.base.errors import UserError
from harness.schema.message_cost import MessageCost
from harness.schema.record import RunRecord, read_run
from harness.why.overheads import LastRank, last_ranks, skew_shares

# What single calls add to what the record of a launch says: useful time, the ideal network, causes of waiting.

_USEFUL_COLUMNS = ("seconds", "useful_seconds", "longest_seconds", "ideal_seconds")
CostOf = Callable[[RunRecord], MessageCost | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Detailed:
    """The valid launches of a sweep with what their calls add.

    `launches` is the `launch_frame` of them with more columns, all in seconds of an epoch, medians over the
    launch's epochs. Means over ranks: useful_seconds (outside of all synchronisation calls, input included);
    longest_seconds is that of the rank with most, ideal_seconds the epoch on a network that takes no time: of the
    rounds that no other work met where the steps tell it (`analysis.useful_time.useful_ranks`); useful_met: whether
    other work met all rounds in which steps were recorded, so that they are of whole epochs. The columns of
    `overheads.CAUSES` sum to their part of the epoch. The parts of `skew_shares` sum to skew_seconds. Latency and
    bandwidth, where a probe gives them, and sum_seconds, the rest, sum to wire_seconds. compute_seconds is the sum of
    the computation, queue_seconds (waiting for a core that other processes had) and unexplained_seconds (what epochs
    take beyond synchronisation and the useful time that the calls show, as ranks end at different times). `last` has by
    layout whom the ranks waited for, of every launch.
    """

    launches: pd.DataFrame
    last: Mapping[str, tuple[tuple[LastRank, ...], ...]]


def detailed(folder: Path, launches: pd.DataFrame, cost_of: CostOf = lambda _: None) -> Detailed:
    """Return the valid rows of `launches` of the sweep in `folder` with what their calls add.

    `cost_of` gives what the allreduce of a launch costs by its bytes, as a probe measured it, None where none did.

    Raises:
        UserError: a launch has no times of single calls, or its record lacks skew and wire.
    """
    rows: list[dict[str, Any]] = []
    last: dict[str, list[tuple[LastRank, ...]]] = {}
    for launch in with_launch_parts(launches[launches["valid"]]).to_dict("records"):
        row: dict[str, Any] = {str(name): value for name, value in launch.items()}
        run = read_run(folder / row["run"]).as_timed()
        epochs = read_calls(folder / row["run"], run)
        for record, calls in zip(run.epochs, epochs, strict=True):
            if max(record.sync_seconds) > 0 and (not len(calls.entry) or not record.skew_seconds):
                raise UserError(
                    f"launch {run.point.folder} has no times of single synchronisation calls in epoch {record.epoch}, "
                    "so nothing can be explained: an older harness or a script whose ranks made different numbers of "
                    "calls wrote it; run the sweep again"
                )
        shares = skew_shares(epochs, [rank.batch for rank in run.ranks])
        row |= {f"skew_{cause}_seconds": row["skew_seconds"] * share for cause, share in shares.items()}
        to_turns = row["seconds"] / row["recorded_seconds"]  # 1 but for launches in turns
        row |= _useful(run, epochs, row) | _wire(run, row, epochs, cost_of(run))
        rows.append(row | _compute(run, epochs, row, to_turns))
        last.setdefault(str(row["layout"]), []).append(last_ranks(epochs))
    return Detailed(launches=pd.DataFrame(rows), last={layout: tuple(ranks) for layout, ranks in last.items()})


def _useful(run: RunRecord, epochs: tuple[Calls, ...], row: Mapping[str, Any]) -> dict[str, float | bool]:
    """Return the `_USEFUL_COLUMNS` and useful_met (`Detailed`)."""
    times = LaunchTimes(seconds=row["seconds"], recorded_seconds=row["recorded_seconds"])
    block = row["turn_block"] if isinstance(row["turn_block"], BlockTimes) else None
    useful = useful_ranks(epochs, run, times, block)
    is_met = useful is None
    if useful is None:
        useful = useful_in_epochs(epochs, run, times, block)
    values = (useful.time.whole, useful.time.mean, useful.time.longest, useful.time.ideal)
    return {**dict(zip(_USEFUL_COLUMNS, values, strict=True)), "useful_met": is_met}


def _wire(
    run: RunRecord, row: Mapping[str, float], epochs: tuple[Calls, ...], cost: MessageCost | None
) -> dict[str, float]:
    """Return latency and bandwidth by the probe's line for the weights' bytes in every call, at most what was measured,
    and what that leaves."""
    measured = row["wire_seconds"]
    if cost is None:
        return {"latency_seconds": 0.0, "bandwidth_seconds": 0.0, "sum_seconds": measured}
    calls = float(np.median([len(epoch.entry) for epoch in epochs]))
    size = run.weights.bytes / (1 if run.point.workload.wire == "float32" else 2)
    latency = min(calls * cost.alpha_s.value, measured)
    bandwidth = min(calls * (cost.beta_s_per_byte.value * size), measured - latency)
    return {
        "latency_seconds": latency,
        "bandwidth_seconds": bandwidth,
        "sum_seconds": measured - latency - bandwidth,
    }


def _compute(run: RunRecord, epochs: tuple[Calls, ...], row: Mapping[str, float], to_turns: float) -> dict[str, float]:
    """Return the parts of computation. A rank's threads also wait for each other: no more than others' load counts.

    The times of launches in turns are without what others took.
    """
    queue = 0.0
    if math.isnan(row["ran_seconds"]):
        most = run.provenance.other_load
        waited = float(np.mean([min(rank.queued_share, most) + rank.stolen_share for rank in run.ranks]))
        queue = min(waited * row["seconds"], max(row["compute_seconds"], 0.0))
    unseen = [
        max(record.seconds) - float(np.mean(record.sync_seconds)) - calls.between.sum(axis=0).mean()
        for record, calls in zip(run.epochs, epochs, strict=True)
    ]
    rest = to_turns * float(np.median(unseen))
    return {
        "computing_seconds": row["compute_seconds"] - queue - rest,
        "queue_seconds": queue,
        "unexplained_seconds": rest,
    }


Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One node of the tree: `depth` 0 is the root."""

    name: str
    depth: int
    meaning: str


TREE = (
    Metric(name=GLOBAL, depth=0, meaning="parallel efficiency x computation scaling"),
    Metric(name=PARALLEL, depth=1, meaning="mean useful time of the ranks over the epoch's time"),
    Metric(name=LOAD_BALANCE, depth=2, meaning="mean useful time over that of the rank with most"),
    Metric(name=COMMUNICATION, depth=2, meaning="useful time of the rank with most over the epoch's time"),
    Metric(
        name=SERIALISATION,
        depth=3,
        meaning="useful time of the rank with most over the epoch's time on a network that takes no time",
    ),
    Metric(
        name=TRANSFER,
        depth=3,
        meaning="the epoch's time on a network that takes no time over the measured one",
    ),
    Metric(
        name=COMPUTATION,
        depth=1,
        meaning="useful core-seconds of a row on the base over those here: instruction x IPC x frequency scaling, "
        "which records without hardware counters cannot divide",
    ),
)


_ROOT = TREE[0].name
_OVER_BASE = (GLOBAL, COMPUTATION)
NAMES = tuple(metric.name for metric in TREE)

# What TALP of the DLB library (https://pm.bsc.es/dlb) calls them. It has no name for serialisation and transfer.
TALP_NAMES = {
    GLOBAL: "globalEfficiency",
    PARALLEL: "parallelEfficiency",
    LOAD_BALANCE: "mpiLoadBalance",
    COMMUNICATION: "mpiCommunicationEfficiency",
    COMPUTATION: "computationScalability",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """One metric of one point, with its interval of 95 %.

    Of launches in turns it is Student's over blocks, of the logarithm as that of the speedup, None below 3. Of others
    it is a bootstrap over launches, None below 6 or where sessions differ.
    """

    value: float
    interval: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PointEfficiencies:
    """The efficiencies of one point by name: all of `NAMES`, where work differs no computation scaling and no root.

    Where the times of sums are not known it is the root alone. `met_launches` of the `launches` have useful times that
    include interference: other work met all rounds in which their steps were recorded.
    """

    layout: str
    ranks: int
    launches: int
    met_launches: int
    metrics: Mapping[str, Efficiency]


def efficiencies(scaling: Scaling, launches: pd.DataFrame) -> tuple[PointEfficiencies, ...]:
    """Return the efficiencies of every point of `scaling`; `launches` are `efficiencies.Detailed`'s.

    Values are geometric means over blocks, of launches that did not train in turns of the mean launch: so factors
    multiply up exactly. The ratio of two points' global efficiency is the efficiency of the scaling table.
    """
    groups = {str(layout): undisturbed_launches(group) for layout, group in launches.groupby("layout", sort=False)}
    base = groups[scaling.base.layout]
    return tuple(_point_efficiencies(point, groups[point.layout], base, scaling) for point in scaling.points)


def _point_efficiencies(
    point: PointScaling, group: pd.DataFrame, base: pd.DataFrame, scaling: Scaling
) -> PointEfficiencies:
    compared = point is scaling.base or point.speedup is not None
    make = _over_blocks if trained_in_turns(group) else _of_mean_launch
    metrics = make(group, base, compared=compared, same=point is scaling.base)
    if not group["sums_timed"].all():  # sums and waiting are in the useful time: only the whole is known
        metrics = {name: metric for name, metric in metrics.items() if name == _ROOT}
    return PointEfficiencies(
        layout=point.layout,
        ranks=int(point.ranks),
        launches=len(group),
        met_launches=int(group["useful_met"].sum()),
        metrics={name: metrics[name] for name in NAMES if name in metrics},
    )


def _over_blocks(group: pd.DataFrame, base: pd.DataFrame, *, compared: bool, same: bool) -> dict[str, Efficiency]:
    """Return the efficiencies of launches in turns: a value of each block, and what these differ by.

    Where no block has a launch of both, the times of the base are those of its mean launch, and what is a ratio to them
    has no interval.
    """
    pair = comparable(layout_launches(base), layout_launches(group)) if compared and not same else None
    in_blocks = pair is not None and pair.paired
    times = _times_of_each(group.iloc[pair.group.places] if pair is not None and in_blocks else group)
    base_times: Array | None = None
    if same:
        base_times = times
    elif pair is not None and in_blocks:
        base_times = _times_of_each(base.iloc[pair.base.places])
    elif compared:
        base_times = _times(base, equal_shares(len(base)))
    metrics = {}
    for name, values in efficiency_factors(times, base_times).items():
        logs: Array = np.log(values)
        over_blocks = ratio_over_blocks(logs) if in_blocks or same or name not in _OVER_BASE else None
        interval = over_blocks.interval if over_blocks is not None else None
        metrics[name] = Efficiency(value=math.exp(logs.mean()), interval=interval)
    return metrics


def _of_mean_launch(group: pd.DataFrame, base: pd.DataFrame, *, compared: bool, same: bool) -> dict[str, Efficiency]:
    """Return the efficiencies of the mean launch, with bootstraps over launches."""
    base_times = _times(base, equal_shares(len(base))) if compared else None
    values = efficiency_factors(_times(group, equal_shares(len(group))), base_times)
    intervals = _intervals(group, base, compared=compared, same=same)
    return {name: Efficiency(value=float(value[0]), interval=intervals.get(name)) for name, value in values.items()}


def _intervals(group: pd.DataFrame, base: pd.DataFrame, *, compared: bool, same: bool) -> dict[str, Interval]:
    """Return the intervals that there are; the base's computation scaling is 1 by definition."""
    if len(group) < FEWEST_LAUNCHES:
        return {}
    shares, _ = resampled_shares(len(group), len(group), paired=True)
    times = _times(group, shares)
    metrics = efficiency_factors(times, times if same else None)
    intervals = {name: percentiles(values, len(group)) for name, values in metrics.items()}
    pair = comparable(layout_launches(base), layout_launches(group)) if compared and not same else None
    if pair is not None and pair.fewest >= FEWEST_LAUNCHES:
        base = base.iloc[pair.base.places]
        group = group.iloc[pair.group.places]
        base_shares, group_shares = resampled_shares(len(base), len(group), paired=pair.paired)
        metrics = efficiency_factors(_times(group, group_shares), _times(base, base_shares))
        for name in _OVER_BASE:
            intervals[name] = percentiles(metrics[name], pair.fewest)
    return intervals


def _times_of_each(group: pd.DataFrame) -> Array:
    """Return the times of each launch, as `_times` returns those of mean launches."""
    return _times(group, np.eye(len(group)))


def _times(group: pd.DataFrame, shares: Array) -> Array:
    """Return seconds, useful, longest, ideal of the mean launches [draws], and useful core-seconds of a row.

    `shares` as of `time_parts.mean_launches`.
    """
    _, columns = mean_launches(group["seconds"].to_numpy(), group[list(_USEFUL_COLUMNS)].to_numpy(), shares)
    row_core_seconds = columns[:, 1] * int(group["cores"].iloc[0]) / float(group["rows"].iloc[0])
    times: Array = np.vstack([columns.T, row_core_seconds])
    return times
