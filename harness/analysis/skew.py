"""Why ranks wait for the last one in a synchronisation call, and for whom they wait."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.analysis.calls import Calls

Array = NDArray[np.float64]
SKEW_CAUSES = ("rows", "rank", "rare", "jitter", "leaving")
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

    leaving  ranks left the sum before at different times
    rows     ranks have unequal rows of a step: the part of `rank` that grows with them, at most in proportion
    rank     a rank usually takes longer than the others: medians over the calls
    rare     single calls that come far later than the same rank's others (Tukey's outer fences)
    jitter   what differs from call to call
    """
    late, left = (np.concatenate([_apart(times) for times in group]) for group in _times(epochs))
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
    parts = dict(zip(("leaving", "rows", "rank", "rare", "jitter"), gains / gains.sum(), strict=True))
    return {cause: float(parts[cause]) for cause in SKEW_CAUSES}


def last_ranks(epochs: Sequence[Calls]) -> tuple[LastRank, ...]:
    """Return for whom the ranks of a launch waited, by rank; empty where there is no call."""
    entry = np.concatenate([calls.entry for calls in epochs])
    if not len(entry):
        return ()
    last, waited = entry.argmax(axis=1), entry.max(axis=1) - entry.mean(axis=1)
    ranks = entry.shape[1]
    seconds, calls = (np.bincount(last, weights, ranks) for weights in (waited, None))
    usual = np.median(_apart(entry), axis=0)
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


def _times(epochs: Sequence[Calls]) -> tuple[list[Array], list[Array]]:
    """Return when ranks came to every call, and when they had left the one before (or begun the epoch)."""
    came = [calls.entry for calls in epochs]
    before = [np.vstack([calls.begin, calls.exit])[: len(calls.entry)] for calls in epochs]
    return came, before


def _apart(times: Array) -> Array:
    """Return how much later than the mean of the ranks each was, [calls, ranks]."""
    later: Array = times - times.mean(axis=1, keepdims=True)
    return later


def _waited(late: Array) -> float:
    """Return the seconds that ranks waited for the last of every call, mean over the ranks; `late` by `_apart`."""
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
