"""How much longer the slowest of p ranks computes than the mean of them, from measured times of single steps."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.prediction.measured_base import MeasuredBase

Array = NDArray[np.float64]
_KNOTS = 160
_DRAWS = 4000
_MOST_BLOCKS = 64  # whose mean is drawn; that of more varies as theirs, over the root of how many times more there are


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
