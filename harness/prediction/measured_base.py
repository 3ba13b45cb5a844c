"""What a prediction rests on: the sums of one workload, how ranks differ, and the wait for the slowest of many."""

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.analysis.comparison import base_layout
from harness.analysis.read_results import Loaded
from harness.analysis.sync_calls import read_calls
from harness.base.errors import UserError
from harness.prediction.network_cost import Link, allreduce_seconds, calls
from harness.schema.record import RunRecord, read_run
from harness.schema.sync_policies import FORMS, Shape, SyncPolicy, known_policy
from harness.schema.workload import Workload

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
        raise UserError(f"SYNC={sync} is not predicted, the policy is the user's own code: use one of {FORMS}")
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
