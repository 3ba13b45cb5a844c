"""Scaling laws fitted to what was measured, and how far each may be trusted.

All three are linear in the work per second or its inverse, so that non-negative least squares finds the fit:
Amdahl (AFIPS 1967) t(p) = t1 (s + (1 - s)/p) for strong scaling; Gustafson (CACM 31, 1988) x(p) = x1 (p - s (p - 1))
for weak scaling; Gunther's Universal Scalability Law x(p) = x1 p / (1 + a (p - 1) + b p (p - 1)) for both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from harness.analysis.scaling import Scaling
from harness.analysis.stats import LEVEL, NEEDED

Array = NDArray[np.float64]
_RESAMPLES = 400
_REACH = 4  # a law is drawn to this many times the largest measured count
_WIDEST = 2.0  # and no further than where its band's ends differ by this factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """A law: its coefficients' names, the columns whose combination it fits, and what that combination is.

    `columns` maps counts float64 [points] to float64 [points, coefficients + 1]; `inverse` says that the
    combination is the time of a unit of work (1/x), else the work per second x. The first weight scales, the
    others over it are the coefficients, but for `fractions`: where the weights are parts of a whole.
    """

    name: str
    coefficients: tuple[str, ...]
    columns: Callable[[Array], Array]
    inverse: bool
    fractions: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficient:
    """A coefficient with its 95 % interval (None without a bootstrap)."""

    name: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A law fitted to a sweep. `counts`, `speedup`, `low`, `high`: the curve over the base and its 95 % band.

    `worst_error` is the largest relative distance from a measured median, at `worst_ranks`. `doubt` says why the
    law is not identified by what was measured; then there is no curve beyond the measured counts. With fewer counts
    than the law has numbers there is no curve and there are no `estimates`: many laws fit.
    """

    law: str
    estimates: tuple[Coefficient, ...]
    worst_error: float
    worst_ranks: int
    doubt: str
    counts: tuple[float, ...]
    speedup: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


AMDAHL = Law(
    name="Amdahl",
    coefficients=("serial fraction",),
    columns=lambda p: np.stack([np.ones_like(p), 1 / p], axis=1),
    inverse=True,
    fractions=True,
)
GUSTAFSON = Law(
    name="Gustafson",
    coefficients=("serial fraction",),
    columns=lambda p: np.stack([np.ones_like(p), p], axis=1),
    inverse=False,
    fractions=True,
)
USL = Law(
    name="USL",
    coefficients=("contention", "coherency"),
    columns=lambda p: np.stack([1 / p, (p - 1) / p, p - 1], axis=1),
    inverse=True,
    fractions=False,
)


def fit_laws(scaling: Scaling, launches: pd.DataFrame, *, seed: int = 0) -> tuple[Fit, ...]:
    """Return Amdahl (strong scaling) or Gustafson (weak scaling), and USL, fitted to the medians of the points.

    `launches` are the rows that `scaling` was made of. Relative errors are minimised. The bands are percentiles
    of a bootstrap over the blocks of the launch order. Empty with fewer than two rank counts that compare.
    """
    points = [point for point in scaling.points if point.speedup is not None]
    counts = np.array([point.ranks for point in points], dtype=float)
    if len(set(counts)) < 2 or len(set(counts)) < len(counts):
        return ()  # one count, or two layouts of one count, say nothing about a law in the ranks
    rates = np.array([point.rows_per_second for point in points])
    samples = _samples([point.layout for point in points], launches, seed)
    first = AMDAHL if scaling.scaling == "strong" else GUSTAFSON
    return tuple(_fit(law, counts, rates, samples, float(scaling.base.ranks)) for law in (first, USL))


def _samples(layouts: list[str], launches: pd.DataFrame, seed: int) -> Array | None:
    """Return bootstrap medians of rows per second, float64 [resamples, points]; None below 6 whole blocks."""
    valid = launches[launches["valid"] & launches["layout"].isin(layouts)]
    blocks = valid.pivot_table(index="repeat", columns="layout", values="rows_per_second")[layouts].dropna()
    if len(blocks) < NEEDED:
        return None
    chosen = np.random.default_rng(seed).integers(0, len(blocks), (_RESAMPLES, len(blocks)))
    medians: Array = np.median(blocks.to_numpy()[chosen], axis=1)
    return medians


def _fit(law: Law, counts: Array, rates: Array, samples: Array | None, base: float) -> Fit:
    if len(counts) < _numbers(law):
        doubt = f"{len(counts)} rank counts cannot fix a law of {_numbers(law)} numbers"
        return _unknown(law, f"{doubt}: measure at least {_numbers(law) + 1}")
    weights = _solve(law, counts, rates)
    errors = np.abs(_rate(law, weights, counts) / rates - 1)
    resampled = None if samples is None else np.array([_solve(law, counts, row) for row in samples])
    estimates = _estimates(law, weights, resampled)
    doubt = _doubt(law, counts, resampled)
    reach = counts.max() * (1 if doubt else _REACH)
    grid = np.unique(np.concatenate([counts, np.geomspace(counts.min(), reach, 60)]))
    curve = _rate(law, weights, grid) / _rate(law, weights, np.array([base]))
    low, high = _band(law, resampled, grid, base)
    keep = np.ones(len(grid), dtype=bool)
    if low.size:
        keep = (grid <= counts.max()) | (high <= _WIDEST * low)
    return Fit(
        law=law.name,
        estimates=estimates,
        worst_error=float(errors.max()),
        worst_ranks=int(counts[errors.argmax()]),
        doubt=doubt,
        counts=tuple(map(float, grid[keep])),
        speedup=tuple(map(float, curve[keep])),
        low=tuple(map(float, low[keep])) if low.size else (),
        high=tuple(map(float, high[keep])) if high.size else (),
    )


def _numbers(law: Law) -> int:
    """Return how many numbers the law has: its coefficients and the scale."""
    return len(law.coefficients) + 1


def _unknown(law: Law, doubt: str) -> Fit:
    return Fit(
        law=law.name, estimates=(), worst_error=math.nan, worst_ranks=0, doubt=doubt,
        counts=(), speedup=(), low=(), high=(),
    )  # fmt: skip


def _solve(law: Law, counts: Array, rates: Array) -> Array:
    """Return the weights of the columns, all at least 0, that fit with the least relative errors."""
    target = 1 / rates if law.inverse else rates
    weights: Array = nnls(law.columns(counts) / target[:, None], np.ones(len(target)))[0]
    return weights


def _rate(law: Law, weights: Array, counts: Array) -> Array:
    combined = law.columns(counts) @ weights
    rate: Array = 1 / combined if law.inverse else combined
    return rate


def _coefficients(law: Law, weights: Array) -> Array:
    """Return the law's coefficients, float64 [..., coefficients], of weights [..., columns]."""
    scale = weights.sum(axis=-1) if law.fractions else weights[..., 0]
    parts = weights[..., :1] if law.fractions else weights[..., 1:]
    values: Array = parts / np.maximum(scale, np.finfo(float).tiny)[..., None]
    return values


def _estimates(law: Law, weights: Array, resampled: Array | None) -> tuple[Coefficient, ...]:
    values = _coefficients(law, weights)
    ends: list[tuple[float | None, float | None]] = [(None, None)] * len(values)
    if resampled is not None:
        tail = 50 * (1 - LEVEL)
        low, high = np.percentile(_coefficients(law, resampled), [tail, 100 - tail], axis=0)
        ends = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    return tuple(
        Coefficient(name=name, value=float(value), low=low_end, high=high_end)
        for name, value, (low_end, high_end) in zip(law.coefficients, values, ends, strict=True)
    )


def _band(law: Law, resampled: Array | None, grid: Array, base: float) -> tuple[Array, Array]:
    if resampled is None:
        return np.empty(0), np.empty(0)
    curves = np.array([_rate(law, row, grid) / _rate(law, row, np.array([base])) for row in resampled])
    low, high = np.percentile(curves, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
    return low, high


def _doubt(law: Law, counts: Array, resampled: Array | None) -> str:
    if len(counts) == _numbers(law):  # an exact fit tests nothing
        return f"{len(counts)} rank counts cannot test a law of as many numbers: measure at least {len(counts) + 1}"
    if resampled is None:
        return f"fewer than {NEEDED} whole blocks of launches: no band, so nothing is drawn beyond them"
    return ""
