"""For whom ranks wait at synchronisation calls, and by which cause, from the times of single calls."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.analysis.sync_calls import Calls

Array = NDArray[np.float64]
SKEW_CAUSES = ("leaving", "rows", "rank", "rare", "jitter")
FAR_OUT = 3.0  # Tukey 1977: this many interquartile ranges beyond the quartiles


@dataclass(frozen=True, kw_only=True, slots=True)
class LastRank:
    """What the others waited for one rank: `seconds` of every epoch, means over the ranks; `calls` it was last in.

    `share` is its part of all waiting, `usual_s` by how much it usually came later than the mean of the ranks
    (negative: sooner), by the median of the calls.
    """

    rank: int
    seconds: float
    share: float
    calls: float
    usual_s: float


def skew_shares(epochs: Sequence[Calls], batch: ArrayLike) -> dict[str, float]:
    """Return which part of a launch's waiting has which of the SKEW_CAUSES; together 1, all 0 where nobody waits.

    `batch` [ranks] are the rows of a step by rank. Causes are taken away one after the other, and what no longer
    waits then is the cause's, so that they sum to the whole:

    leaving  ranks left the last allreduce at different times
    rows     ranks have unequal rows of a step: the part of `rank` that grows with them, at most in proportion
    rank     a rank usually takes longer than the others: medians over the calls
    rare     single calls that come far later than the same rank's others (Tukey's outer fences)
    jitter   what differs from call to call
    """
    late = np.concatenate([_lateness(calls.entry) for calls in epochs])
    left = np.concatenate([_lateness(np.vstack([calls.begin, calls.exit])[: len(calls.entry)]) for calls in epochs])
    waited = _waited(late)
    if not len(late) or waited <= 0:
        return dict.fromkeys(SKEW_CAUSES, 0.0)
    computed = late - left
    usual = np.median(computed, axis=0)
    usual -= usual.mean()
    by_rows = _by_rows(usual, epochs, np.asarray(batch, dtype=float))
    single = computed - usual
    low, high = np.percentile(single, [25, 75], axis=0)
    reach = FAR_OUT * (high - low)
    stages = [late, computed, computed - by_rows, single, np.clip(single, low - reach, high + reach)]
    left_over = [*(_waited(stage) for stage in stages), 0.0]
    gains = np.maximum(-np.diff(left_over), 0.0)
    return {cause: float(share) for cause, share in zip(SKEW_CAUSES, gains / gains.sum(), strict=True)}


def last_ranks(epochs: Sequence[Calls]) -> tuple[LastRank, ...]:
    """Return for each rank how long the others waited for it; empty where there is no call."""
    entry = np.concatenate([calls.entry for calls in epochs])
    if not len(entry):
        return ()
    ranks = entry.shape[1]
    last = entry.argmax(axis=1)
    waited = entry.max(axis=1) - entry.mean(axis=1)
    seconds = np.bincount(last, waited, ranks)
    calls = np.bincount(last, minlength=ranks)
    usual = np.median(_lateness(entry), axis=0)
    return tuple(
        LastRank(
            rank=rank,
            seconds=float(seconds[rank] / len(epochs)),
            share=float(seconds[rank] / waited.sum()) if waited.sum() > 0 else 0.0,
            calls=float(calls[rank] / len(entry)),
            usual_s=float(usual[rank]),
        )
        for rank in range(ranks)
    )


def _lateness(times: Array) -> Array:
    """Return how much later than the mean of the ranks each rank was, [calls, ranks]."""
    later: Array = times - times.mean(axis=1, keepdims=True)
    return later


def _waited(late: Array) -> float:
    """Return the seconds that ranks waited for the last of every call, mean over the ranks; `late` by `_lateness`."""
    return float((late.max(axis=1) - late.mean(axis=1)).sum()) if len(late) else 0.0


def _by_rows(usual: Array, epochs: Sequence[Calls], batch: Array) -> Array:
    """Return the part of `usual` [ranks] that the `batch` explains: a line through it, no steeper than in proportion.

    A step has costs that do not grow with its rows, so that it is less than in proportion.
    """
    more = batch - batch.mean()
    if not more.any():
        return np.zeros_like(usual)
    computing = np.median(np.concatenate([calls.between[:-1] for calls in epochs]).mean(axis=1))
    slope = float(np.clip((more * usual).sum() / (more**2).sum(), 0.0, computing / batch.mean()))
    explained: Array = slope * more
    return explained
