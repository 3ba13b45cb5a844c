"""The line goes on: what a sweep's own launches say of rank counts that were not measured, with what is uncertain.

An epoch is computation, the wait for the slowest rank, and the sums. All three are measured on the most ranks that were
launched; what they become on more is drawn many times over from all that the records leave open
(`Draws`), and the band is what 95 % of the draws say. A predicted speedup goes on from the measured one:
only ratios are predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from harness.analysis.frames import launch_frame
from harness.analysis.numbers import percent
from harness.analysis.numbers import ranks as rank_words
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.stats import LEVEL, SESSION_SPREAD, Interval
from harness.base.files import write_atomic
from harness.prediction.network_cost import BEST, OVERHEAD, Levels, Link, Uncertain
from harness.prediction.step_model import Base, measured_base, slowest, steps_between
from harness.schema.record import SCHEMA, decode_file, encode
from harness.schema.sweep import Layout
from harness.schema.sweep_folder import SweepFolder
from harness.schema.workload import Workload, is_script

Array = NDArray[np.float64]
NODE, NODES, NETWORK = "on a node like this", "on nodes like these", "over the stated network"
_DRAWS = 4000
_EDGE = 0.05  # a band of 95 % of the draws reaches the ends of a range that is drawn from a little beyond them
# What stands in on one rank, which sums nothing and waits for none. Said on the page.
SUMS = Uncertain(
    value=Levels(network=Link(alpha_s=3e-6, beta_s_per_byte=3e-10)),
    low=Levels(network=Link(alpha_s=5e-7, beta_s_per_byte=1e-10)),
    high=Levels(network=Link(alpha_s=2e-5, beta_s_per_byte=1e-9)),
)
WAIT = (0.005, 0.1)  # of the computation, on 2 ranks
LATENCY = (5e-7, 5e-5)  # seconds of the sums on the most ranks that do not depend on their bytes
FIXED = 0.15  # of a step, as far as one count tells
SHARED = 0.15  # of the computation, at most, for each doubling of the ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredParts:
    """The parts of an epoch on `ranks` ranks: seconds [launches] of a batch's computation, of a wait and of a sum.

    Waits and sums are of one synchronisation. A batch has `batch` rows over all ranks, an epoch `rows`.
    """

    ranks: int
    rows: int
    batch: int
    compute: Array
    wait: Array
    sums: Array


def counted(workload: Workload, rows: Array, batch: Array) -> tuple[Array, Array]:
    """Return the batches of an epoch, the last one as the part that it is, and its synchronisations."""
    batches = np.maximum(1.0, np.floor(rows / batch) if workload.drop_remainder else rows / batch)
    steps = np.ceil(batches)
    return batches, steps / steps_between(workload, steps)


class Draws:
    """Epochs on more ranks, drawn from all that `first` and `last`, the parts on few and on most ranks, leave open.

    Each draw takes launches anew (a bootstrap), and one place in the range of each of these, for all counts:

    - Computation on `last` holds at least; at most it grows with log2 p as it did from `first` on, or by `SHARED` where
      that is `last`. Where a rank's rows of a batch shrink, its fixed cost is anything from none to twice what the two
      say.
    - The wait grows as the slowest of p draws of the measured times (`step_model.slowest`), to the power 1/2 to 3/2.
    - Of a sum `LATENCY` is latency, which grows by log2 p to p - 1, and the rest its bytes, which grow from (p - 1)/p,
      where every rank moves its part, to p, where all share one memory. With `network`, one rank on each node, it is
      the cheapest allreduce in closed form, or as likely less as more, from its low to its high end times `OVERHEAD`.
    """

    def __init__(
        self,
        workload: Workload,
        scaling: str,
        base: Base,
        first: MeasuredParts,
        last: MeasuredParts,
        *,
        network: Uncertain | None = None,
    ) -> None:
        self.workload, self.scaling, self.base, self.first, self.last = workload, scaling, base, first, last
        self.network = network if network else SUMS if last.ranks == 1 else None
        self.doubling = 0.0 if network else SHARED
        random = np.random.default_rng(0)
        places = random.beta(0.5, 0.5, (4, _DRAWS, 1))  # ends are likelier than middles: mechanisms are pure
        self.shared, self.wider, self.way, self.latency = (1 + 2 * _EDGE) * places - _EDGE
        few, many = (random.integers(0, len(one.compute), (_DRAWS, len(one.compute))) for one in (first, last))
        self.compute_first = first.compute[few].mean(axis=1, keepdims=True)
        self.compute, self.wait, self.sums = (
            part[many].mean(axis=1, keepdims=True) for part in (last.compute, last.wait, last.sums)
        )
        self.noise = random.standard_normal((_DRAWS, 1))

    def at(self, counts: Array) -> "DrawnEpochs":
        """Return the epochs on each of `counts` ranks."""
        both = np.append(counts, self.last.ranks)
        fixed = self.workload.global_batch is not None
        batch = np.full_like(both, self.last.batch) if fixed else self.last.batch / self.last.ranks * both
        rows = self.last.rows * (both / self.last.ranks if self.scaling == "weak" else np.ones_like(both))
        batches, calls = counted(self.workload, rows, batch)
        share = self.last.ranks / both if fixed else np.ones_like(both)
        compute = self._compute(both, share)
        wait, sums = self._wait(both, batches / calls) * compute / self.compute, self._sums(both)
        wait[:, -1:], sums[:, -1:] = self.wait, self.sums
        parts = [compute * batches, wait * calls, sums * calls]
        return DrawnEpochs(
            parts=[part[:, :-1] for part in parts],
            whole=np.sum(parts, axis=0),
            steps=np.ceil(batches),
            noise=self.noise,
        )

    def _compute(self, counts: Array, share: Array) -> Array:
        further, apart = np.log2(counts / self.last.ranks), math.log2(self.last.ranks / self.first.ranks)
        if self.workload.global_batch is not None:
            fixed = self.compute * FIXED
            if apart:
                of_rows = (self.compute_first - self.compute) / (self.last.ranks / self.first.ranks - 1)
                fixed = np.clip(self.compute - of_rows, 0, self.compute / 2)
            shrunk: Array = self.compute * share + 2 * self.shared * fixed * (1 - share)
            return shrunk
        more = np.maximum(0.0, self.compute - self.compute_first) / apart if apart else self.compute * self.doubling
        grown: Array = self.compute + self.shared * more * further
        return grown

    def _wait(self, counts: Array, between: Array) -> Array:
        ranks = max(2, self.last.ranks)
        own = np.append(counts, ranks)
        # The mean of the largest of so many standard normal values (Blom, 1958).
        growth = np.maximum(1e-9, norm.ppf((own - 0.375) / (own + 0.25)))
        if self.base.jitter:
            growth = np.maximum(1e-9, slowest(self.base, own, np.append(between, between[-1])) - 1)
        known = self.wait
        if self.last.ranks == 1:
            assumed = _between(WAIT[0], WAIT[1], self.wider)
            known = self.compute * (growth[-1] if self.base.jitter else assumed)
        result: Array = known * (growth[:-1] / growth[-1]) ** (0.5 + self.wider)
        return result

    def _sums(self, counts: Array) -> Array:
        if self.network:
            known = (self.network.low, self.network.value, self.network.high)
            low, value, high = (self.base.sums(BEST, counts, one) for one in known)
            less = _between(OVERHEAD[0] * low, value, 2 * self.way)
            return np.where(self.way < 0.5, less, _between(value, OVERHEAD[1] * high, 2 * self.way - 1))
        few, many = (2 ** np.ceil(np.log2(one)) for one in (self.last.ranks, counts))
        messages = _between(np.log2(many) / np.log2(few), (many - 1) / (few - 1), self.way)
        moved = _between((counts - 1) / counts * self.last.ranks / (self.last.ranks - 1), many / few, self.way)
        latency = np.minimum(self.sums, _between(LATENCY[0], LATENCY[1], self.latency))
        grown: Array = latency * messages + (self.sums - latency) * moved
        return grown


def _between(low: Array | float, high: Array | float, place: Array) -> Array:
    """Return what lies at `place` (0 to 1) of the way from `low` to `high`, in proportions."""
    low = np.maximum(1e-12, low)
    found: Array = low * (np.maximum(low, high) / low) ** place
    return found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DrawnEpochs:
    """Drawn epochs: `parts` (computation, wait, sums) [draws, counts] in seconds, `steps` [counts + 1] of an epoch.

    `whole` is their sum [draws, counts + 1], the last one on the ranks that the prediction goes on from. `noise` is
    standard normal [draws, 1], for the measured speedup.
    """

    parts: list[Array]
    whole: Array
    steps: Array
    noise: Array

    @property
    def gains(self) -> Array:
        """How many times as fast an epoch is as on the ranks that were measured, [draws, counts]."""
        found: Array = self.whole[:, -1:] / self.whole[:, :-1]
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class BeyondPoint:
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
class Beyond:
    """One predicted series: `where` the ranks are in words, its points, and what they rest on, a sentence each.

    `start`: the measured ranks that it goes on from.
    """

    where: str
    start: int
    points: tuple[BeyondPoint, ...]
    rests: tuple[str, ...]


def beyond(
    loaded: Loaded, scaling: Scaling, layouts: Sequence[Layout], network: Uncertain | None = None, said: str = ""
) -> tuple[tuple[Beyond, ...], str]:
    """Return what is predicted of those `layouts` without a launch: a series, and one over a stated `network`.

    `said` describes that. Where nothing can be predicted: no series, and why in one sentence.
    """
    measured = {point.ranks for point in scaling.points}
    wanted = {layout.ranks: layout for layout in layouts if layout.ranks > max(measured)}
    if not wanted:
        return (), ""
    counts = np.array(sorted(wanted), dtype=float)
    # The points on the fewest and on the most ranks that compare with the base and have its threads.
    points = [one for one in scaling.points if one.speedup is not None and one.threads == scaling.base.threads]
    few, many = points[0], points[-1]
    refused = _refused(loaded, few, many, list(wanted.values()))
    if refused:
        return (), f"Nothing is predicted: {refused}."
    base = measured_base(loaded)
    workload = base.workload
    first, last = (_parts(loaded, point) for point in (few, many))
    hosts = max(len({rank.host for rank in run.ranks}) for run in loaded.valid)
    drawn = Draws(workload, scaling.scaling, base, first, last)
    own = _series(drawn.at(counts), NODES if hosts > 1 else NODE, counts, wanted, scaling, many)
    found = [replace(own, rests=_rests(few, many, base, workload))]
    if network is not None:
        sums = Draws(workload, scaling.scaling, base, first, first, network=network)
        stated = _series(sums.at(counts), NETWORK, counts, wanted, scaling, few)
        found.append(replace(stated, rests=_rests(few, few, base, workload, said)))
    return tuple(found), ""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptBeyond:
    """What was predicted when a sweep's command ended: ``beyond.json``, to be scored by what is measured since."""

    schema: int
    made: datetime
    series: tuple[Beyond, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BeyondScore:
    """A predicted point of the series `where` beside what was `measured` since.

    `error` is the predicted speedup over the measured one less 1, `covered`: the band holds the measured one.
    """

    where: str
    predicted: BeyondPoint
    measured: PointScaling
    error: float
    covered: bool


def keep_beyond(loaded: Loaded, series: Sequence[Beyond]) -> None:
    """Write `series` into the sweep's folder; a prediction of counts that were measured since is kept instead.

    Raises:
        UserError: the file there is damaged, or the folder cannot be written to.
    """
    earlier = read_beyond(loaded)
    measured = {run.point.layout.ranks for run in loaded.valid}
    if series and not (earlier and any(point.ranks in measured for one in earlier.series for point in one.points)):
        kept = KeptBeyond(schema=SCHEMA, made=datetime.now(UTC), series=tuple(series))
        write_atomic(SweepFolder(loaded.folder).extrapolation, encode(kept))


def read_beyond(loaded: Loaded) -> KeptBeyond | None:
    """Return the prediction in the sweep's folder, None if there is none; raise a UserError if the file is damaged."""
    return decode_file(SweepFolder(loaded.folder).extrapolation, KeptBeyond)


def stated_before(loaded: Loaded, scaling: Scaling) -> tuple[Beyond, ...]:
    """Return the kept series over a stated network, without the counts that were measured since."""
    kept, most = read_beyond(loaded), scaling.points[-1].ranks
    series = [
        replace(one, points=tuple(point for point in one.points if point.ranks > most))
        for one in (kept.series if kept else ())
        if one.where == NETWORK
    ]
    return tuple(one for one in series if one.points)


def score_beyond(loaded: Loaded, scaling: Scaling, first: Mapping[str, datetime]) -> tuple[BeyondScore, ...]:
    """Return the score of every kept point that was measured since; `first` as in `forecast.score`."""
    kept = read_beyond(loaded)
    if kept is None:
        return ()
    since = {point.layout: point for point in scaling.points if point.speedup and first[point.layout] >= kept.made}
    return tuple(
        BeyondScore(
            where=one.where,
            predicted=predicted,
            measured=point,
            error=predicted.speedup / point.speedup - 1,
            covered=predicted.speedup_interval.low <= point.speedup <= predicted.speedup_interval.high,
        )
        for one in kept.series
        for predicted in one.points
        if (point := since.get(predicted.layout)) and point.speedup
    )


def _refused(loaded: Loaded, few: PointScaling, many: PointScaling, wanted: Sequence[Layout]) -> str:
    if loaded.valid[0].point.workload.sync == "none":
        return "with SYNC=none ranks exchange nothing"
    if any(layout.shares for layout in wanted):
        return "the ranks have unequal shares"
    if {layout.threads for layout in wanted} != {few.threads}:
        return "the counts asked for have other threads per rank than those measured"
    if is_script(loaded.valid[0].point.workload) and many.ranks == 1:
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
    rows, workload = int(frame["rows"].iloc[0]), runs[0].point.workload
    batches, calls = counted(workload, np.array([float(rows)]), np.array([float(point.global_batch)]))
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
    drawn: DrawnEpochs, where: str, counts: Array, wanted: dict[int, Layout], scaling: Scaling, anchor: PointScaling
) -> Beyond:
    """Return the points of the `drawn` epochs, which go on from the measured speedup of `anchor`."""
    assert anchor.speedup is not None
    weak, base = scaling.scaling == "weak", scaling.base
    speedups = anchor.speedup * np.exp(_spread(anchor, base) * drawn.noise) * drawn.gains
    speedups = speedups * (counts / anchor.ranks if weak else 1.0)
    tails = [50 * (1 - LEVEL), 50, 50 * (1 + LEVEL)]
    low, middle, high = np.percentile(speedups, tails, axis=0)
    # Of the base, as the anchor's launches say.
    alone = anchor.seconds * anchor.speedup / (anchor.ideal if weak else 1.0)
    parts = [np.median(part, axis=0) / drawn.steps[:-1] for part in drawn.parts]
    points = []
    for place, count in enumerate(map(int, counts)):
        layout, ideal = wanted[count], count / int(base.ranks)
        work = ideal if weak else 1.0
        band = Interval(low=float(low[place]), high=float(high[place]))
        value, one = float(middle[place]), float(alone * work)
        rows = float(base.rows * work)
        points.append(
            BeyondPoint(
                layout=str(layout),
                nodes=layout.nodes,
                ranks=count,
                steps=int(drawn.steps[place]),
                speedup=value,
                speedup_interval=band,
                efficiency=value / ideal,
                efficiency_interval=band.scaled(1 / ideal),
                seconds=one / value,
                seconds_interval=Interval(low=one / band.high, high=one / band.low),
                rows_per_second=rows / one * value,
                rows_interval=band.scaled(rows / one),
                **dict(zip(("compute_s", "straggler_s", "allreduce_s"), (float(p[place]) for p in parts), strict=True)),
            )
        )
    return Beyond(where=where, start=int(anchor.ranks), points=tuple(points), rests=())


def _spread(anchor: PointScaling, base: PointScaling) -> float:
    """Return the standard deviation of the logarithm of the measured speedup that the line goes on from."""
    if anchor is base:  # known exactly, but every start of a launch has a speed of its own
        return SESSION_SPREAD
    found = anchor.speedup_interval
    if found is not None and found.low > 0:
        return math.log(found.high / found.low) / 2 / float(norm.ppf(0.5 + LEVEL / 2))
    scatter = [(one.between or 0.0) / math.sqrt(one.launches) for one in (anchor, base)]
    return max(SESSION_SPREAD, math.hypot(*scatter))


def _rests(few: PointScaling, many: PointScaling, base: Base, workload: Workload, network: str = "") -> tuple[str, ...]:
    """Return what a series rests on, measured or assumed, a sentence each."""
    alone, most = many.ranks == 1, rank_words(many.ranks)
    found = [f"Goes on from {most}: computation{'' if alone else ', waits and sums'} of a step as measured there."]
    if workload.global_batch is not None:
        say = "what the measured counts say" if few.ranks < many.ranks else f"{percent(FIXED)} of it"
        found.append(f"Assumed: the fixed cost of a step is anything from none to twice {say}.")
    elif network:
        found.append("Assumed: one rank on each node, which has the node's memory to itself.")
    elif few.ranks < many.ranks:
        found.append(
            f"Assumed: a rank computes as on {most}, or slows with each doubling up to as much as from "
            f"{rank_words(few.ranks)} to {most}."
        )
    else:
        found.append(f"Assumed: each doubling of the ranks costs up to {percent(SHARED)} of the computation.")
    if base.jitter or not alone:
        grown = "as the slowest of p drawn from the measured steps" if base.jitter else "as the largest of p normals"
        found.append(f"The wait for the slowest rank grows {grown}, to the power 1/2 to 3/2.")
    else:
        found.append(
            f"Assumed, as one rank waits for none: a wait of {percent(WAIT[0], 1)} to {percent(WAIT[1])} on 2 ranks."
        )
    if network:
        found.append(
            f"Sums: the cheapest allreduce in closed form with {network}, or up to {percent(OVERHEAD[1] - 1)} more, as "
            f"libraries are not that good, or {percent(1 - OVERHEAD[0])} less, as sums that follow each other overlap."
        )
    elif alone:
        found.append(
            "Assumed, as one rank sums nothing: sums of 0.5 to 20 µs and 1 to 10 GB/s a message; "
            "NETWORK=ALPHA,BETA states others."
        )
    else:
        found.append(
            f"The cost of the sums is that of the launches on {most}, not probed. Assumed: 0.5 to 50 µs of it are "
            "latency, which grows by log2 p to p - 1, the rest bytes, which grow from (p - 1)/p to p."
        )
    found.append("Assumed: every rank has a core like these to itself. The band holds 95 % of what these allow.")
    return tuple(found)
