"""The slowest of p ranks: how much longer than the mean a synchronous step waits for it."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

Array = NDArray[np.float64]
_GRID = np.linspace(-9.0, 12.0, 4001)  # standard deviations: all that 100,000 ranks can show
_KNOTS = 160


def lognormal_factor(sigma: float, ranks: ArrayLike) -> Array:
    """Return E[max of p lognormal times] over their median, for each count p of `ranks`.

    `sigma` is the standard deviation of the logarithm. Exact up to numerical integration of
    e^(sigma z) p phi(z) Phi(z)^(p-1).
    """

    def factor(p: float) -> float:
        density = np.log(p) + norm.logpdf(_GRID) + (p - 1) * norm.logcdf(_GRID)
        return float(np.trapezoid(np.exp(sigma * _GRID + density), _GRID))

    return _interpolated(factor, ranks)


def measured_factor(times: ArrayLike, ranks: ArrayLike) -> Array:
    """Return E[max over p ranks] over the mean of measured compute `times`, for each count p of `ranks`.

    The p ranks draw from the measured distribution independently of each other: order statistic i of n has the
    weight (i/n)^p - ((i-1)/n)^p. For p beyond n that is the largest measured time, so a lower bound.
    """
    values = np.sort(np.asarray(times, dtype=float))
    relative = values / values.mean()
    levels = np.arange(len(relative) + 1) / len(relative)
    return _interpolated(lambda p: float(np.diff(levels**p) @ relative), ranks)


def _interpolated(factor: Callable[[float], float], ranks: ArrayLike) -> Array:
    """Evaluate `factor` at every count, or at knots even in the logarithm where there are many."""
    counts = np.asarray(ranks, dtype=float)
    knots = np.unique(counts)
    if len(knots) > _KNOTS:
        knots = np.unique(np.concatenate([knots[:16], np.geomspace(knots[0], knots[-1], _KNOTS)]))
    values = np.array([factor(p) for p in knots])
    result: Array = np.interp(np.log(counts), np.log(knots), values)
    return result
