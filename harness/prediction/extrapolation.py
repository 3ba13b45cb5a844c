"""Rank counts that were not measured: what a sweep's own launches say of them, with what is uncertain.

An epoch is computation, the wait for the slowest rank, and the sums. All three are measured on the most ranks that were
launched; what they become on more is drawn many times over from all that the records leave open (`Draws`), and the band
is what 95 % of the draws say. A predicted speedup goes on from the measured one: only ratios are predicted.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from harness.analysis.comparison import base_layout
from harness.analysis.confidence_intervals import LEVEL, Interval
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.sessions import DEFAULT_DEVIATION, EFFICIENCY
from harness.analysis.sync_calls import read_calls
from harness.analysis.units import percent
from harness.analysis.units import ranks as rank_words
from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.prediction.network_cost import OVERHEAD, Link, Uncertain, allreduce_seconds, calls
from harness.schema.layout import Layout
from harness.schema.record import RunRecord, read_run
from harness.schema.sync_policies import FORMS, Shape, SyncPolicy, known_policy
from harness.schema.workload import Workload

# What a prediction rests on: the sums of one workload, how ranks differ, and the wait for the slowest of many.

Array = NDArray[np.float64]
_MOST_JITTER = 20_000
_KNOTS = 160
_DRAWS = 4000
_MOST_BLOCKS = 64  # whose mean is drawn; that of more varies as theirs, over the root of how many times more there are
_MOST_RUNS = 24  # whose steps are read


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredBase:
    """What launches of one workload say of its sums, and of how ranks differ.

    `bytes` are the trained weights', `tensors` each one's and `shapes` its shape where they are known. `jitter` are
    compute times over their rank's mean, in order of time, each of `every` steps, without what slows all ranks at once.
    `imbalance` are the ranks' means over the mean of all ranks; if empty, no rank is slower than another.
    """

    workload: Workload
    bytes: int
    jitter: tuple[float, ...] = ()
    every: int = 1
    imbalance: tuple[float, ...] = ()
    tensors: tuple[int, ...] = ()
    shapes: tuple[Shape, ...] = ()

    def sums(self, counts: Array, link: Link) -> Array:
        """Return the seconds of the allreduces of one synchronisation, as they travel, over each count of ranks.

        Between hosts of one rank each large tensors have one each. Where no shapes are known it is one sum of all.
        """
        seconds = np.zeros_like(counts)
        for tensors in self._sums_of_tensors():
            for size in calls(tensors):
                seconds = seconds + allreduce_seconds(counts, size, link)
        return seconds

    def _sums_of_tensors(self) -> list[list[float]]:
        """Return the bytes, as they travel, of every tensor of each sum of one synchronisation."""
        narrowed = 1 if self.workload.wire == "float32" else 2
        if not self.shapes:
            return [[size / narrowed for size in self.tensors or (self.bytes,)]]
        value_bytes = self.bytes / narrowed / (sum(map(math.prod, self.shapes)) or 1)
        sums = []
        for values_of_tensors in predictable_policy(self.workload.sync).sums(self.shapes):
            sums.append([value_bytes * values for values in values_of_tensors])
        return sums


def predictable_policy(sync: str) -> SyncPolicy:
    """Return the policy that `sync` names.

    Raises:
        UserError: it is the user's own code, which nothing that reads records imports.
    """
    policy = known_policy(sync)
    if policy is None:
        raise UserError(
            f"{setting('sync', sync)} is not predicted, the policy is the user's own code: use one of {FORMS}"
        )
    return policy


def measured_base(loaded: Loaded) -> MeasuredBase:
    """Return what the valid launches of a sweep say, with the weights of those on the fewest ranks.

    Raises:
        UserError: their sync policy is the user's own code.
    """
    fewest = base_layout(run.point.layout for run in loaded.valid).ranks
    run = next(run for run in loaded.valid if run.point.layout.ranks == fewest)
    every = predictable_policy(run.point.workload.sync).period or 1
    jitter, imbalance = _unevenness(loaded, every)
    return MeasuredBase(
        workload=run.point.workload,
        bytes=run.weights.bytes,
        tensors=run.weights.tensors,
        shapes=run.weights.shapes,
        jitter=jitter,
        every=every,
        imbalance=imbalance,
    )


def _unevenness(loaded: Loaded, every: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the compute times of `every` steps over their rank's mean, and the ranks' means over that of all ranks.

    Of the launches on most ranks: the times between two synchronisation calls, of which one rank alone makes none.
    What one rank always takes longer is in the second, what differs from step to step in the first (`own_times`).
    """
    most = max(run.point.layout.ranks for run in loaded.valid)
    runs = [run for run in loaded.valid if run.point.layout.ranks == most and most > 1][:_MOST_RUNS]
    steps: list[Array] = []
    lasting: list[float] = []
    for run in runs:
        times = _times_between_calls(loaded, run, every)
        if len(times):
            means = times.mean(axis=0)
            steps += list(own_times(times / means).T)
            lasting += (means / means.mean()).tolist()
    if not steps:
        return (), ()
    most_of_rank = max(1, _MOST_JITTER // len(steps))
    values = np.concatenate([of_rank[:most_of_rank] for of_rank in steps])
    return tuple(map(float, values)), tuple(sorted(lasting))


def _times_between_calls(loaded: Loaded, run: RunRecord, every: int) -> Array:
    """Return the seconds from one call to the next [calls, ranks] where they are `every` steps apart; may be empty."""
    folder = loaded.folder / run.point.folder
    times = [np.zeros((0, len(run.ranks)))]
    with suppress(UserError):  # its record has what all else rests on
        for epoch_calls in read_calls(folder, read_run(folder).as_timed()):
            between = epoch_calls.entry[1:] - epoch_calls.exit[:-1]
            times.append(between[np.diff(epoch_calls.step) == every])
    return np.concatenate(times)


def own_times(times: Array) -> Array:
    """Return `times` [steps, ranks] over their rank's mean without what slows all ranks in the same step.

    That makes none wait for another. Residuals of n ranks from their mean have (n - 1) / n of the times' variance.
    """
    ranks = times.shape[1]
    differences: Array = 1 + (times - times.mean(axis=1, keepdims=True)) * np.sqrt(ranks / (ranks - 1))
    return differences


def measured_factor(times: ArrayLike, ranks: ArrayLike) -> Array:
    """Return E[max over p ranks] over the mean of measured compute `times`, for each count p of `ranks`.

    The p ranks draw from the measured distribution independently of each other: order statistic i of n has the
    weight (i/n)^p - ((i-1)/n)^p. For p beyond n that is the largest measured time, so a lower bound. Many counts are
    interpolated between knots that are even in the logarithm.
    """
    values = np.sort(np.asarray(times, dtype=float))
    relative = values / values.mean()
    levels = np.arange(len(relative) + 1) / len(relative)
    counts = np.asarray(ranks, dtype=float)
    knots = np.unique(counts)
    if len(knots) > _KNOTS:
        knots = np.unique(np.concatenate([knots[:16], np.geomspace(knots[0], knots[-1], _KNOTS)]))
    factors = np.array([float(np.diff(levels**p) @ relative) for p in knots])
    result: Array = np.interp(np.log(counts), np.log(knots), factors)
    return result


def slowest(base: MeasuredBase, counts: Array, between: Array) -> Array:
    """Return the slowest rank's computation over the mean rank's at each count, `between` steps apart (float64)."""
    lasting = measured_factor(base.imbalance, counts) if base.imbalance else np.ones_like(counts)
    if not base.jitter:
        return lasting
    factor = lasting.copy()
    means_of = np.maximum(1, np.round(between / base.every))
    for steps in np.unique(means_of[np.isfinite(means_of)]):  # without synchronisation only what lasts is waited for
        places = means_of == steps
        factor[places] *= measured_factor(block_means(base.jitter, int(steps)), counts[places])
    return factor


def block_means(times: ArrayLike, steps: int) -> Array:
    """Return drawn means over `steps` steps, float64 [draws], from the `times` of single steps in their order.

    A moving-block bootstrap (Kuensch, Annals of Statistics 17, 1989): slow steps come together, so that means vary
    more than single steps over a root. A block is four times as long as the autocorrelation is beyond noise, a tenth
    of the `times` at most.
    """
    values = np.asarray(times, dtype=float)
    rest = values - values.mean()
    size = len(values)
    products = np.fft.irfft(np.abs(np.fft.rfft(rest, 2 * size)) ** 2)[:size]
    related = products > 2 / np.sqrt(size) * products[0]
    lasts = size if related.all() else int(np.argmin(related))
    block = min(steps, max(1, min(4 * lasts, size // 10)))
    sums = np.concatenate([[0.0], values.cumsum()])
    means: Array = (sums[block:] - sums[:-block]) / block
    blocks = min(_MOST_BLOCKS, -(-steps // block))
    if blocks > 1:
        drawn = np.random.default_rng(0).choice(means, (_DRAWS, blocks)).mean(axis=1)
        means = drawn.mean() + (drawn - drawn.mean()) * np.sqrt(blocks * block / steps)
    return means


NODE = "on a node like this"
NODES = "on nodes like these"
NETWORK = "over the stated network"
_EDGE = 0.05  # a band of 95 % of the draws reaches the ends of a range that is drawn from a little beyond them
# What stands in on one rank, which sums nothing and waits for none. Said on the page.
SUMS = Uncertain(
    value=Link(alpha_s=3e-6, beta_s_per_byte=3e-10),
    low=Link(alpha_s=5e-7, beta_s_per_byte=1e-10),
    high=Link(alpha_s=2e-5, beta_s_per_byte=1e-9),
)
WAIT = (0.005, 0.1)  # of the computation, on 2 ranks
LATENCY = (5e-7, 5e-5)  # seconds of the sums on the most ranks that do not depend on their bytes
FIXED = 0.15  # of a step, as far as one count tells
SHARED = 0.15  # of the computation, at most, for each doubling of the ranks


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
        gains: Array = self.whole[:, -1:] / self.whole[:, :-1]
        return gains


class Draws:
    """Epochs on more ranks, drawn from all that the parts on the fewest and on the most measured ranks leave open.

    Each draw takes launches anew (a bootstrap), and one place, 0 to 1, in the range of each of these, for all counts:

    - `compute_place`: computation on the most ranks holds at least; at most it grows with log2 p as it did from the
      fewest ranks on, or by `SHARED` where these are the same. Where a rank's rows of a batch shrink, its fixed cost is
      anything from none to twice what the two say.
    - `wait_place`: the wait grows as the slowest of p draws of the measured times (`slowest`), to the
      power 1/2 to 3/2.
    - `latency_place`: of a sum `LATENCY` is latency and the rest its bytes.
    - `algorithm_place`: latency grows by log2 p to p - 1, the bytes from (p - 1)/p, where every rank moves its part, to
      p, where all share one memory. With `network`, one rank on each node, a sum is the cheapest allreduce in closed
      form, or as likely less as more, from its low to its high end times `OVERHEAD`.
    """

    def __init__(
        self,
        workload: Workload,
        scaling: str,
        base: MeasuredBase,
        fewest: MeasuredParts,
        most: MeasuredParts,
        *,
        network: Uncertain | None = None,
    ) -> None:
        self.workload = workload
        self.scaling = scaling
        self.base = base
        self.fewest = fewest
        self.most = most
        self.network = network
        if network is None and most.ranks == 1:
            self.network = SUMS
        self.growth_of_doubling = 0.0 if network else SHARED
        random = np.random.default_rng(0)
        places = random.beta(0.5, 0.5, (4, _DRAWS, 1))  # ends are likelier than middles: mechanisms are pure
        self.compute_place, self.wait_place, self.algorithm_place, self.latency_place = (1 + 2 * _EDGE) * places - _EDGE
        launches_of_fewest = _drawn_launches(random, fewest)
        launches_of_most = _drawn_launches(random, most)
        self.compute_on_fewest = _means(fewest.compute, launches_of_fewest)
        self.compute = _means(most.compute, launches_of_most)
        self.wait = _means(most.wait, launches_of_most)
        self.sums = _means(most.sums, launches_of_most)
        self.noise = random.standard_normal((_DRAWS, 1))

    def at(self, counts: Array) -> DrawnEpochs:
        """Return the epochs on each of `counts` ranks."""
        # The last count is that of the ranks that were measured.
        ranks = np.append(counts, self.most.ranks)
        relative = ranks / self.most.ranks
        is_batch_fixed = self.workload.global_batch is not None
        batch = np.full_like(ranks, self.most.batch) if is_batch_fixed else self.most.batch / self.most.ranks * ranks
        rows = self.most.rows * (relative if self.scaling == "weak" else np.ones_like(ranks))
        batches = epoch_batches(self.workload, rows, batch)
        calls = epoch_calls(self.workload, batches)
        share = self.most.ranks / ranks if is_batch_fixed else np.ones_like(ranks)
        compute = self._compute(ranks, share)
        wait = self._wait(ranks, batches / calls) * compute / self.compute
        sums = self._sums(ranks)
        wait[:, -1:] = self.wait
        sums[:, -1:] = self.sums
        parts = [compute * batches, wait * calls, sums * calls]
        return DrawnEpochs(
            parts=[part[:, :-1] for part in parts],
            whole=np.sum(parts, axis=0),
            steps=np.ceil(batches),
            noise=self.noise,
        )

    def _compute(self, ranks: Array, share: Array) -> Array:
        """Return the computation of a batch [draws, counts], of which a rank has the `share` of the measured rows."""
        measured_doublings = math.log2(self.most.ranks / self.fewest.ranks)
        if self.workload.global_batch is not None:
            fixed = self.compute * FIXED
            if measured_doublings:
                of_rows = (self.compute_on_fewest - self.compute) / (self.most.ranks / self.fewest.ranks - 1)
                fixed = np.clip(self.compute - of_rows, 0, self.compute / 2)
            shrunk: Array = self.compute * share + 2 * self.compute_place * fixed * (1 - share)
            return shrunk
        of_doubling = self.compute * self.growth_of_doubling
        if measured_doublings:
            of_doubling = np.maximum(0.0, self.compute - self.compute_on_fewest) / measured_doublings
        grown: Array = self.compute + self.compute_place * of_doubling * np.log2(ranks / self.most.ranks)
        return grown

    def _wait(self, ranks: Array, steps_between_calls: Array) -> Array:
        """Return the wait of a call [draws, counts] where computation stays as it was measured."""
        measured_ranks = max(2, self.most.ranks)
        counts = np.append(ranks, measured_ranks)
        # The mean of the largest of so many standard normal values (Blom, 1958).
        growth = np.maximum(1e-9, norm.ppf((counts - 0.375) / (counts + 0.25)))
        if self.base.jitter:
            between = np.append(steps_between_calls, steps_between_calls[-1])
            growth = np.maximum(1e-9, slowest(self.base, counts, between) - 1)
        wait = self.wait
        if self.most.ranks == 1:
            assumed = _between(WAIT[0], WAIT[1], self.wait_place)
            wait = self.compute * (growth[-1] if self.base.jitter else assumed)
        grown: Array = wait * (growth[:-1] / growth[-1]) ** (0.5 + self.wait_place)
        return grown

    def _sums(self, ranks: Array) -> Array:
        """Return the sum of a call [draws, counts]."""
        place = self.algorithm_place
        if self.network:
            low, value, high = (
                self.base.sums(ranks, link) for link in (self.network.low, self.network.value, self.network.high)
            )
            cheaper = _between(OVERHEAD[0] * low, value, 2 * place)
            dearer = _between(value, OVERHEAD[1] * high, 2 * place - 1)
            return np.where(place < 0.5, cheaper, dearer)
        measured = self.most.ranks
        power = 2 ** np.ceil(np.log2(ranks))
        measured_power = 2 ** np.ceil(np.log2(measured))
        messages = _between(np.log2(power) / np.log2(measured_power), (power - 1) / (measured_power - 1), place)
        moved = _between((ranks - 1) / ranks * measured / (measured - 1), power / measured_power, place)
        latency = np.minimum(self.sums, _between(LATENCY[0], LATENCY[1], self.latency_place))
        grown: Array = latency * messages + (self.sums - latency) * moved
        return grown


def _drawn_launches(random: np.random.Generator, parts: MeasuredParts) -> NDArray[np.int64]:
    """Return the numbers of the launches that each draw takes, [draws, launches]."""
    launches = len(parts.compute)
    return random.integers(0, launches, (_DRAWS, launches))


def _means(seconds: Array, launches: NDArray[np.int64]) -> Array:
    """Return the means of the drawn `launches` [draws, launches], [draws, 1]."""
    means: Array = seconds[launches].mean(axis=1, keepdims=True)
    return means


def _between(low: Array | float, high: Array | float, place: Array) -> Array:
    """Return what lies at `place` (0 to 1) from `low` to `high`, in proportions."""
    low = np.maximum(1e-12, low)
    value: Array = low * (np.maximum(low, high) / low) ** place
    return value


def epoch_batches(workload: Workload, rows: Array, batch: Array) -> Array:
    """Return the batches of an epoch of `rows`, `batch` rows each: the last one counts as the part that it is."""
    batches: Array = rows / batch
    return np.maximum(1.0, np.floor(batches)) if workload.drop_remainder else batches


def epoch_calls(workload: Workload, batches: Array) -> Array:
    """Return the synchronisations of an epoch of `batches`: none without a sync policy."""
    steps = np.ceil(batches)
    calls: Array = steps / steps_between(workload, steps)
    return calls


def steps_between(workload: Workload, steps: Array) -> Array:
    """Return the mean steps from one synchronisation to the next, of an epoch of `steps`: infinite without any."""
    policy = predictable_policy(workload.sync)
    if policy.shares_gradients:
        return np.ones_like(steps)
    if not policy.synchronises:
        return np.full_like(steps, np.inf)
    return steps if policy.period is None else np.minimum(float(policy.period), steps)


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
        return f"with {setting('sync', 'none')} ranks exchange nothing"
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
        return DEFAULT_DEVIATION[EFFICIENCY]
    interval = anchor.speedup_interval
    if interval is not None and interval.low > 0:
        return math.log(interval.high / interval.low) / 2 / float(norm.ppf(0.5 + LEVEL / 2))
    scatter = [(point.between or 0.0) / math.sqrt(point.launches) for point in (anchor, base)]
    return max(DEFAULT_DEVIATION[EFFICIENCY], math.hypot(*scatter))


def what_it_rests_on(
    fewest: PointScaling, most: PointScaling, base: MeasuredBase, network: str = ""
) -> tuple[str, ...]:
    """Return what a series rests on, measured or assumed, a sentence each.

    It goes on from `most`, and `fewest` is the point on the fewest ranks; `network` describes the stated one.
    """
    is_one_rank = most.ranks == 1
    start = rank_words(most.ranks)
    parts = "computation" if is_one_rank else "computation, waits and sums"
    return (
        f"Goes on from {start}: {parts} of a step as measured there.",
        _computation(fewest, most, base, network),
        _wait(base, is_one_rank=is_one_rank),
        _sums(start, network, is_one_rank=is_one_rank),
        "Assumed: every rank has a core like these to itself. The band holds 95 % of what these allow.",
    )


def _computation(fewest: PointScaling, most: PointScaling, base: MeasuredBase, network: str) -> str:
    start = rank_words(most.ranks)
    if base.workload.global_batch is not None:
        cost = "what the measured counts say" if fewest.ranks < most.ranks else f"{percent(FIXED)} of it"
        return f"Assumed: the fixed cost of a step is anything from none to twice {cost}."
    if network:
        return "Assumed: one rank on each node, which has the node's memory to itself."
    if fewest.ranks < most.ranks:
        return (
            f"Assumed: a rank computes as on {start}, or slows with each doubling up to as much as from "
            f"{rank_words(fewest.ranks)} to {start}."
        )
    return f"Assumed: each doubling of the ranks costs up to {percent(SHARED)} of the computation."


def _wait(base: MeasuredBase, *, is_one_rank: bool) -> str:
    if is_one_rank and not base.jitter:
        return f"Assumed, as one rank waits for none: a wait of {percent(WAIT[0], 1)} to {percent(WAIT[1])} on 2 ranks."
    growth = "as the slowest of p drawn from the measured steps" if base.jitter else "as the largest of p normals"
    return f"The wait for the slowest rank grows {growth}, to the power 1/2 to 3/2."


def _sums(start: str, network: str, *, is_one_rank: bool) -> str:
    if network:
        return (
            f"Sums: the cheapest allreduce in closed form with {network}, or up to {percent(OVERHEAD[1] - 1)} more, as "
            f"libraries are not that good, or {percent(1 - OVERHEAD[0])} less, as sums that follow each other overlap."
        )
    if is_one_rank:
        return (
            "Assumed, as one rank sums nothing: sums of 0.5 to 20 µs and 1 to 10 GB/s a message; "
            f"{setting('network', 'ALPHA,BETA')} states others."
        )
    return (
        f"The cost of the sums is that of the launches on {start}, not probed. Assumed: 0.5 to 50 µs of it are "
        "latency, which grows by log2 p to p - 1, the rest bytes, which grow from (p - 1)/p to p."
    )
