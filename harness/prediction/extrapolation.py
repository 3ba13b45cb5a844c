"""Rank counts that were not measured: what a sweep's own launches say of them, with what is uncertain.

An epoch is computation, the wait for the slowest rank, and the sums. All three are measured on the most ranks that were
launched; what they become on more is drawn many times over from all that the records leave open (`epoch_draws`), and
the band is what 95 % of the draws say. A predicted speedup goes on from the measured one: only ratios are predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from harness.analysis.confidence_intervals import LEVEL, Interval
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.sessions import SESSION_SPREAD
from harness.prediction.epoch_counts import epoch_batches, epoch_calls
from harness.prediction.epoch_draws import Draws, MeasuredParts
from harness.prediction.extrapolation_words import what_it_rests_on
from harness.prediction.measured_base import measured_base
from harness.prediction.network_cost import Uncertain
from harness.schema.layout import Layout
from harness.schema.sync_policies import known_policy

Array = NDArray[np.float64]
NODE = "on a node like this"
NODES = "on nodes like these"
NETWORK = "over the stated network"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtrapolatedPoint:
    """A predicted rank count: the fields of `PointScaling` that figures draw, predicted; intervals are the band's.

    `compute_s`, `straggler_s` and `allreduce_s` are of a step, medians of the draws.
    """

    layout: str
    nodes: int
    ranks: int
    steps: int
    speedup: float
    speedup_interval: Interval
    efficiency: float
    efficiency_interval: Interval
    seconds: float
    seconds_interval: Interval
    rows_per_second: float
    rows_interval: Interval
    compute_s: float
    straggler_s: float
    allreduce_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Extrapolation:
    """One predicted series: `where` the ranks are in words, its points, and what they rest on, a sentence each.

    `start`: the measured ranks that it goes on from.
    """

    where: str
    start: int
    points: tuple[ExtrapolatedPoint, ...]
    rests: tuple[str, ...]


def extrapolate(
    loaded: Loaded,
    scaling: Scaling,
    layouts: Sequence[Layout],
    network: Uncertain | None = None,
    network_words: str = "",
) -> tuple[tuple[Extrapolation, ...], str]:
    """Return what is predicted of those `layouts` without a launch: a series, and one over a stated `network`.

    `network_words` describe that. Where nothing can be predicted: no series, and why in one sentence.
    """
    most_measured = max(point.ranks for point in scaling.points)
    wanted = {layout.ranks: layout for layout in layouts if layout.ranks > most_measured}
    if not wanted:
        return (), ""
    # The points on the fewest and on the most ranks that compare with the base and have its threads.
    compared = [point for point in scaling.points if point.speedup is not None]
    points = [point for point in compared if point.threads == scaling.base.threads]
    fewest = points[0]
    most = points[-1]
    refused = _refused(loaded, fewest, most, list(wanted.values()))
    if refused:
        return (), f"Nothing is predicted: {refused}."
    base = measured_base(loaded)
    parts_on_fewest = _parts(loaded, fewest)
    draws = Draws(base.workload, scaling.scaling, base, parts_on_fewest, _parts(loaded, most))
    rests = what_it_rests_on(fewest, most, base)
    # Where the ranks of a series without a stated network are taken to be.
    hosts = max(run.hosts for run in loaded.valid)
    where = NODES if hosts > 1 else NODE
    series = [_series(draws, wanted, scaling, most, where=where, rests=rests)]
    if network is not None:
        draws = Draws(base.workload, scaling.scaling, base, parts_on_fewest, parts_on_fewest, network=network)
        rests = what_it_rests_on(fewest, fewest, base, network_words)
        series.append(_series(draws, wanted, scaling, fewest, where=NETWORK, rests=rests))
    return tuple(series), ""


def _refused(loaded: Loaded, fewest: PointScaling, most: PointScaling, wanted: Sequence[Layout]) -> str:
    if loaded.valid[0].point.workload.sync == "none":
        return "with SYNC=none ranks exchange nothing"
    if known_policy(loaded.valid[0].point.workload.sync) is None:
        return "the policy is the user's own code"
    if not all(run.sums_timed for run in loaded.valid):
        return "the times of sums on GPUs are not known"
    if {layout.threads for layout in wanted} != {fewest.threads}:
        return "the counts asked for have other threads per rank than those measured"
    if loaded.valid[0].point.workload.script and most.ranks == 1:
        return "a script was measured on 1 rank only, and what its sums cost is in the script"
    placed = {run.point.layout.ranks_per_node for run in loaded.valid if run.point.layout.nodes > 1}
    if not placed and any(layout.nodes > 1 and layout.ranks_per_node > 1 for layout in wanted):
        return "nothing was measured between nodes of several ranks"
    if len(placed | {layout.ranks_per_node for layout in wanted if layout.nodes > 1}) > 1:
        return "the layouts differ in ranks on a node, so that their sums take other ways"
    return ""


def _parts(loaded: Loaded, point: PointScaling) -> MeasuredParts:
    runs = [run for run in loaded.valid if str(run.point.layout) == point.layout]
    frame = launch_frame(runs, loaded.epochs)
    rows = int(frame["rows"].iloc[0])
    batch = np.array([float(point.global_batch)])
    workload = runs[0].point.workload
    batches = epoch_batches(workload, np.array([float(rows)]), batch)
    calls = epoch_calls(workload, batches)
    sync = calls if point.ranks > 1 else np.array([np.inf])
    return MeasuredParts(
        ranks=point.ranks,
        rows=rows,
        batch=point.global_batch,
        compute=((frame["seconds"] - frame["sync_seconds"]) / batches).to_numpy(),
        wait=(frame["skew_seconds"] / np.maximum(sync, 1)).to_numpy(),
        sums=(frame["wire_seconds"] / np.maximum(sync, 1)).to_numpy(),
    )


def _series(
    draws: Draws,
    wanted: Mapping[int, Layout],
    scaling: Scaling,
    anchor: PointScaling,
    *,
    where: str,
    rests: tuple[str, ...],
) -> Extrapolation:
    """Return the points of the drawn epochs, which go on from the measured speedup of `anchor`."""
    assert anchor.speedup is not None
    counts = np.array(sorted(wanted), dtype=float)
    drawn = draws.at(counts)
    is_weak = scaling.scaling == "weak"
    speedups = anchor.speedup * np.exp(_spread(anchor, scaling.base) * drawn.noise) * drawn.gains
    speedups = speedups * (counts / anchor.ranks if is_weak else 1.0)
    low, middle, high = np.percentile(speedups, [50 * (1 - LEVEL), 50, 50 * (1 + LEVEL)], axis=0)
    # The base's epoch, as the anchor's launches say.
    base_s = anchor.seconds * anchor.speedup / (anchor.ideal if is_weak else 1.0)
    compute, wait, sums = (np.median(part, axis=0) / drawn.steps[:-1] for part in drawn.parts)
    points = []
    for place, ranks in enumerate(map(int, counts)):
        ideal = ranks / int(scaling.base.ranks)
        work = ideal if is_weak else 1.0
        speedup = float(middle[place])
        band = Interval(low=float(low[place]), high=float(high[place]))
        work_s = float(base_s * work)
        rows = float(scaling.base.rows * work)
        points.append(
            ExtrapolatedPoint(
                layout=str(wanted[ranks]),
                nodes=wanted[ranks].nodes,
                ranks=ranks,
                steps=int(drawn.steps[place]),
                speedup=speedup,
                speedup_interval=band,
                efficiency=speedup / ideal,
                efficiency_interval=band.scaled(1 / ideal),
                seconds=work_s / speedup,
                seconds_interval=Interval(low=work_s / band.high, high=work_s / band.low),
                rows_per_second=rows / work_s * speedup,
                rows_interval=band.scaled(rows / work_s),
                compute_s=float(compute[place]),
                straggler_s=float(wait[place]),
                allreduce_s=float(sums[place]),
            )
        )
    return Extrapolation(where=where, start=int(anchor.ranks), points=tuple(points), rests=rests)


def _spread(anchor: PointScaling, base: PointScaling) -> float:
    """Return the standard deviation of the logarithm of the measured speedup that the line goes on from."""
    if anchor is base:  # known exactly, but every start of a launch has a speed of its own
        return SESSION_SPREAD
    interval = anchor.speedup_interval
    if interval is not None and interval.low > 0:
        return math.log(interval.high / interval.low) / 2 / float(norm.ppf(0.5 + LEVEL / 2))
    scatter = [(point.between or 0.0) / math.sqrt(point.launches) for point in (anchor, base)]
    return max(SESSION_SPREAD, math.hypot(*scatter))
