"""The curve beyond the machine, in closed form: a step is computation, the slowest rank, and the allreduce.

The computation is measured: one workload's launches on the fewest ranks are the base of its prediction.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.analysis.frames import launch_frame
from harness.analysis.inference import Interval, median_interval
from harness.analysis.read_results import Loaded
from harness.analysis.sync_calls import read_calls
from harness.base.errors import UserError
from harness.prediction.network_cost import OVERHEAD, Levels, Uncertain, allreduce_seconds, calls
from harness.schema.record import read_run
from harness.schema.sync import PowerSGD, Shape, find_policy
from harness.schema.workload import Workload

Array = NDArray[np.float64]
_KNOTS = 160
_MOST_JITTER = 20_000
_MOST_RUNS = 24  # whose steps are read
_DRAWS = 4000
_MOST_BLOCKS = 64  # whose mean is drawn; that of more varies as theirs, over the root of how many times more there are


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """What was measured on few ranks: a step's computation, and what else its prediction needs.

    `compute_s` is of one step on `ranks` ranks without synchronisation, `low_s` and `high_s` the ends of its
    interval (or of the measured range). `rows` are an epoch's (strong scaling) or a rank's (weak). `bytes` are
    the trained weights', `tensors` each one's and `shapes` its shape where they are known. `jitter` are compute times
    over their rank's mean, in order of time, each of `every` steps, without what slows all ranks at once; `imbalance`
    the ranks' means over the mean of all ranks; without them no rank is slower than another. `source` says where all
    that comes from.
    """

    workload: Workload
    scaling: str
    ranks: int
    rows: int
    bytes: int
    compute_s: float
    low_s: float
    high_s: float
    jitter: tuple[float, ...] = ()
    every: int = 1
    imbalance: tuple[float, ...] = ()
    tensors: tuple[int, ...] = ()
    shapes: tuple[Shape, ...] = ()
    source: str = ""

    def sums(self, algorithm: str, counts: Array, levels: Levels) -> Array:
        """Return the seconds of the allreduces of one synchronisation, as they travel, over each count of ranks.

        Between hosts of one rank each large tensors have one each. Where no shapes are known it is one sum of all.
        """
        part = 1 if self.workload.wire == "float32" else 2
        sums = [[size / part for size in self.tensors or (self.bytes,)]]
        if self.shapes:
            size = self.bytes / part / (sum(map(math.prod, self.shapes)) or 1)
            made = find_policy(self.workload.sync).sums(self.shapes)
            sums = [[size * count for count in tensors] for tensors in made]
        sizes = [one for tensors in sums for one in (calls(tensors) if levels.ranks_per_node == 1 else (sum(tensors),))]
        found: Array = np.sum([allreduce_seconds(algorithm, counts, one, levels) for one in sizes], axis=0)
        return found


def measured_base(loaded: Loaded) -> Base:
    """Return the base that the valid launches of a sweep give: those on the fewest ranks."""
    fewest = min(run.point.layout.ranks for run in loaded.valid)
    runs = [run for run in loaded.valid if run.point.layout.ranks == fewest]
    frame = launch_frame(runs, loaded.epochs)
    compute = (frame["seconds"] - frame["sync_seconds"]) / frame["steps"]  # input too: a rank has to do it
    exact = median_interval(compute)
    run, scaling = runs[0], runs[0].point.scaling
    rows = int(frame["all_rows"].iloc[0])
    every = find_policy(run.point.workload.sync).period or 1
    jitter, imbalance = _unevenness(loaded, every)
    return Base(
        workload=run.point.workload,
        scaling=scaling,
        ranks=fewest,
        rows=rows if scaling == "strong" else rows // fewest,
        bytes=run.weights.bytes,
        tensors=run.weights.tensors,
        shapes=run.weights.shapes,
        compute_s=float(compute.median()),
        low_s=exact.low if exact else float(compute.min()),
        high_s=exact.high if exact else float(compute.max()),
        jitter=jitter,
        every=every,
        imbalance=imbalance,
        source=f"{len(runs)} launches on {fewest} rank{'s' if fewest > 1 else ''} of {loaded.folder.name}"
        + ("" if exact else ", range of the launches for want of an interval"),
    )


def under(base: Base, sync: str) -> Base:
    """Return `base` as if it had been trained under the policy `sync`: its computation is taken to be the same.

    Raises:
        UserError: the policy is none, or sums parts of weights whose shapes are not in the records.
    """
    if isinstance(find_policy(sync), PowerSGD) and not base.shapes:
        raise UserError(f"SYNC={sync} cannot be predicted from records without the weights' shapes: sweep again")
    source = f"{base.source}, which had SYNC={base.workload.sync}"
    return replace(base, workload=replace(base.workload, sync=sync), source=source)


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
        folder, times = loaded.folder / run.point.folder, [np.zeros((0, len(run.ranks)))]
        with suppress(UserError):  # its record has what all else rests on
            calls_made = read_calls(folder, read_run(folder))
            times += [(one.entry[1:] - one.exit[:-1])[np.diff(one.step) == every] for one in calls_made]
        own = np.concatenate(times)
        if len(own):
            means = own.mean(axis=0)
            steps += list(own_times(own / means).T)
            lasting += (means / means.mean()).tolist()
    if not steps:
        return (), ()
    values = np.concatenate([one[: max(1, _MOST_JITTER // len(steps))] for one in steps])
    return tuple(map(float, values)), tuple(sorted(lasting))


def own_times(times: Array) -> Array:
    """Return `times` [steps, ranks] over their rank's mean without what slows all ranks in the same step.

    That makes none wait for another. Residuals of n ranks from their mean have (n - 1) / n of the times' variance.
    """
    ranks = times.shape[1]
    found: Array = 1 + (times - times.mean(axis=1, keepdims=True)) * np.sqrt(ranks / (ranks - 1))
    return found


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


def predict_ratio(
    base: Base, over: int, count: int, network: Uncertain, algorithm: str, serial: float = 0.0
) -> tuple[float, Interval]:
    """Return how many times as fast an epoch is on `count` ranks as on `over`, and the least and the most of that.

    These are over the corners of all measured costs, each at its low or its high end: where computation and
    links move a ratio in opposite directions, ends of one kind cancel. `serial`: of an epoch's computation on the
    base's ranks, what every rank does besides, at any count; none of it is the other end.

    Raises:
        UserError: the algorithm is unknown.
    """
    counts = np.array([over, count], dtype=float)
    batches = float(epoch_batches(base, np.array([float(base.ranks)]))[0])
    values = [
        float((epochs.iloc[0] + besides) / (epochs.iloc[1] + besides))
        for compute_s, levels in [(base.compute_s, network.value), *_corners(base, network)]
        for epochs in [_points(replace(base, compute_s=compute_s), counts, levels, algorithm)["epoch_s"]]
        for besides in sorted({0.0, serial * compute_s * batches})
    ]
    return values[0], Interval(low=min(values), high=max(values))


def _corners(base: Base, network: Uncertain) -> Iterator[tuple[float, Levels]]:
    """Yield every corner: the computation, latencies and bandwidths at their low or high ends."""
    ends = (network.low, network.high)
    for compute_s, alpha, beta in product((base.low_s, base.high_s), ends, ends):
        links = [
            replace(first, beta_s_per_byte=second.beta_s_per_byte) if first and second else None
            for first, second in ((alpha.network, beta.network), (alpha.node, beta.node))
        ]
        assert links[0] is not None
        yield compute_s, replace(network.value, network=links[0], node=links[1])


def predict(base: Base, ranks: ArrayLike, network: Uncertain, algorithm: str) -> pd.DataFrame:
    """Return one row for each count of `ranks`: the fields of `PredictedPoint`, as columns.

    A step takes the base's computation, in proportion to a rank's rows of a batch, times what the slowest of p
    ranks takes longer, plus the allreduce of all weights. The low end has the low ends of all measured costs and of
    `OVERHEAD`, the high end the high ones. Speedup is over the predicted time of `base.ranks` ranks (work per second
    under weak scaling).

    Raises:
        UserError: the algorithm is unknown.
    """
    counts = np.asarray(ranks, dtype=float)
    frame = _points(base, counts, network.value, algorithm)
    own = _points(base, np.array([float(base.ranks)]), network.value, algorithm)
    low = _points(replace(base, compute_s=base.low_s), counts, network.low, algorithm, OVERHEAD[0])
    high = _points(replace(base, compute_s=base.high_s), counts, network.high, algorithm, OVERHEAD[1])
    frame["epoch_low_s"], frame["epoch_high_s"] = low["epoch_s"], high["epoch_s"]
    return with_speedup(frame, base, float(own["epoch_s"].iloc[0]))


def with_speedup(frame: pd.DataFrame, base: Base, own_s: float) -> pd.DataFrame:
    """Return `frame` with speedup and efficiency over `own_s`, the predicted epoch on `base.ranks` ranks."""
    ideal = frame["ranks"] / base.ranks
    gain = own_s / frame["epoch_s"]
    speedup = gain if base.scaling == "strong" else gain * ideal
    return frame.assign(speedup=speedup, efficiency=speedup / ideal)


def _points(base: Base, counts: Array, levels: Levels, algorithm: str, over: float = 1.0) -> pd.DataFrame:
    workload = base.workload
    batch, steps = _batches(workload, counts), epoch_steps(base, counts)
    share = (batch / counts) / (workload.batch(base.ranks) / base.ranks)  # of the rows that were timed in a step
    compute = base.compute_s * share
    between = steps_between(workload, steps)
    wait = compute * np.maximum(0.0, slowest(base, counts, between) - 1)
    reduce = np.where(np.isfinite(between) & (counts > 1), over * base.sums(algorithm, counts, levels) / between, 0.0)
    step = compute + wait + reduce
    columns = {"ranks": counts.astype(int), "steps": steps.astype(int), "compute_s": compute, "straggler_s": wait}
    return pd.DataFrame(columns | {"allreduce_s": reduce, "step_s": step, "epoch_s": step * steps})


def _batches(workload: Workload, counts: Array) -> Array:
    batches: Array = workload.batch(1) * (np.ones_like(counts) if workload.global_batch is not None else counts)
    return batches


def epoch_steps(base: Base, counts: Array) -> Array:
    """Return the steps of an epoch at each count, at least 1."""
    return np.maximum(1.0, np.ceil(epoch_batches(base, counts)))


def epoch_batches(base: Base, counts: Array) -> Array:
    """Return the batches of an epoch at each count: the last one counts as the part of a batch that it is."""
    rows = base.rows * (counts if base.scaling == "weak" else 1.0)
    batches: Array = rows / _batches(base.workload, counts)
    return np.maximum(1.0, np.floor(batches)) if base.workload.drop_remainder else batches


def steps_between(workload: Workload, steps: Array) -> Array:
    """Return the mean steps from one synchronisation to the next: infinite without any."""
    policy = find_policy(workload.sync)
    if policy.shares_gradients:
        return np.ones_like(steps)
    if not policy.synchronises:
        return np.full_like(steps, np.inf)
    return steps if policy.period is None else np.minimum(float(policy.period), steps)


def slowest(base: Base, counts: Array, between: Array) -> Array:
    """Return the slowest rank's computation over the mean rank's at each count, `between` steps apart (float64)."""
    lasting = measured_factor(base.imbalance, counts) if base.imbalance else np.ones_like(counts)
    if not base.jitter:
        return lasting
    factor = lasting.copy()
    apart = np.maximum(1, np.round(between / base.every))
    for steps in np.unique(apart[np.isfinite(apart)]):  # without synchronisation only what lasts is waited for
        own = apart == steps
        factor[own] *= measured_factor(block_means(base.jitter, int(steps)), counts[own])
    return factor


def block_means(times: ArrayLike, steps: int) -> Array:
    """Return what means of so many `steps` may be, float64 [draws], from the `times` of single ones in order.

    A moving-block bootstrap (Kuensch, Annals of Statistics 17, 1989): slow steps come together, so that means vary
    more than single steps over a root. A block is four times as long as the autocorrelation is beyond noise, a tenth
    of the `times` at most.
    """
    values = np.asarray(times, dtype=float)
    rest, size = values - values.mean(), len(values)
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


def assumptions(base: Base, ranks: ArrayLike) -> tuple[str, ...]:
    """Return what a prediction for `ranks` takes for granted, one sentence each."""
    counts = np.asarray(ranks)
    found = []
    if base.workload.global_batch is not None:
        found.append("A step's computation is taken to shrink with its rows: its fixed cost is left out.")
    if not base.jitter:
        found.append("Compute times of several ranks were not measured: no rank is taken to be slower than another.")
    elif counts.max() > len(base.jitter):
        found.append(f"Beyond {len(base.jitter):,} ranks the wait for the slowest is a lower bound.")
    if base.imbalance:
        found.append(
            f"Ranks are taken to differ permanently as the {len(base.imbalance)} measured ones did: the slowest "
            f"computed {max(base.imbalance):.3f} times the mean."
        )
    if isinstance(find_policy(base.workload.sync), PowerSGD) and base.ranks == 1:
        found.append("What several ranks compute to factor their gradients is left out.")
    found.append("Ranks are taken to have a core, and memory bandwidth, each as the base had.")
    return tuple(found)
