"""Laws of how speed grows with the ranks, fitted to what was measured, and how far a fit may be trusted.

Laws are of the whole speed, and linear in the work per second or its inverse, so that non-negative least squares finds
the fit: Amdahl (AFIPS 1967) t(p) = t1 (s + (1 - s)/p) for strong scaling; Gustafson (CACM 31, 1988)
x(p) = x1 (p - s (p - 1)) for weak scaling; Gunther's Universal Scalability Law x(p) = x1 p / (1 + a (p - 1) +
b p (p - 1)) for both; and what none of these has, the allreduce whose steps are log2 p: t(p) = t1 (s + (1 - s)/p +
c log2 p), weak scaling t1 (1 + c log2 p). Beyond the counts the band of a law is that of all laws which the points do
not refute: what was measured cannot tell which of them holds.

The noise that a law is compared with is what launches of one count differ by once their block is taken out. From it
come the F test for lack of fit (Draper & Smith, "Applied Regression Analysis", 3rd edition, 1998, section 2.1), and
intervals by profile likelihood (Venzon & Moolgavkar, Applied Statistics 37, 1988): what all weights give whose
squared errors are not significantly larger than the least. At a bound, such as a coefficient of 0, these cover more
than 95 % (Self & Liang, JASA 82, 1987), where percentiles of a bootstrap cover less.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import f as f_distribution

from harness.analysis.scaling import Scaling
from harness.analysis.stats import LEVEL, NEEDED, sessions

Array = NDArray[np.float64]
_FEWEST_POINTS = 3
_REACH = {1: 2, 2: 4}  # a law that n counts beyond its numbers test is drawn to this many times the largest count
_WIDEST = 2.0  # and no further than where its band's ends differ by this factor
_RAYS = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """A law: its coefficients' names, the columns whose combination it fits, and what that combination is.

    `columns` maps counts float64 [points] to float64 [points, coefficients + 1]; `inverse` says that the
    combination is the time of a unit of work (1/x), else the work per second x. The first weight scales, the
    others over it are the coefficients, but for `fractions`: where the first two are parts of a whole, which scales.
    """

    name: str
    coefficients: tuple[str, ...]
    columns: Callable[[Array], Array]
    inverse: bool = True
    fractions: bool = False

    @property
    def numbers(self) -> int:
        """How many numbers it has: its coefficients and the scale."""
        return len(self.coefficients) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficient:
    """A coefficient with its 95 % interval (None below 6 whole blocks)."""

    name: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A law fitted to a sweep. `counts`, `speedup`, `low`, `high`: the curve over the base and its 95 % band.

    Beyond the counts the band is that of all laws that are not refuted. `worst_error` is the largest relative distance
    from a measured point, at `worst_ranks`. `doubt` says why the law
    is not identified by what was measured, or that the measurements refute it; then there is no curve beyond the
    measured counts, and of a refuted law neither band nor intervals.
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
)
LOGARITHM = Law(
    name="Amdahl and log2 p",
    coefficients=("serial fraction", "cost of a doubling"),
    columns=lambda p: np.stack([np.ones_like(p), 1 / p, np.log2(p)], axis=1),
    fractions=True,
)
WEAK_LOGARITHM = Law(
    name="log2 p", coefficients=("cost of a doubling",), columns=lambda p: np.stack([1 / p, np.log2(p) / p], axis=1)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rates:
    """What a law is fitted to: rows per second [points] at `counts`, and the noise of their logarithms.

    `variance` is that of one of the logarithms, with `freedom` degrees; 0 degrees: it is not known.
    """

    counts: Array
    rates: Array
    variance: float = 0.0
    freedom: int = 0


def fit_laws(scaling: Scaling, launches: pd.DataFrame) -> tuple[Fit, ...]:
    """Return Amdahl (strong scaling) or Gustafson (weak scaling), USL, and the law in log2 p, fitted to the points.

    `launches` are the rows that `scaling` was made of. Relative errors are minimised: of geometric means over the
    whole blocks of the launch order, of medians where there are fewer than 6. Points of another session than the base's
    are left out. Empty with fewer than three rank counts that compare: a curve through two is no law.
    """
    points = [point for point in scaling.points if point.speedup is not None and not point.other_session]
    counts = np.array([point.ranks for point in points], dtype=float)
    if len(counts) < _FEWEST_POINTS or len(set(counts)) < len(counts):
        return ()  # two layouts of one count say nothing about a law in the ranks
    found = _of_blocks(counts, [point.layout for point in points], launches)
    if found is None:
        found = _Rates(counts=counts, rates=np.array([point.rows_per_second for point in points]))
    strong = scaling.scaling == "strong"
    laws = (AMDAHL, USL, LOGARITHM) if strong else (GUSTAFSON, USL, WEAK_LOGARITHM)
    solved = [_solve(law, found) for law in laws]
    return tuple(_fit(one, solved, found, float(scaling.base.ranks)) for one in solved)


def _of_blocks(counts: Array, layouts: list[str], launches: pd.DataFrame) -> _Rates | None:
    """Return the geometric means of the whole blocks and their noise, None for fewer than 6 blocks.

    A block has one repeat of each of the `layouts`, in one session.
    """
    valid = launches[launches["valid"]]
    session = sessions(list(zip(valid["session_begin"], valid["session_end"], strict=True)))
    table = valid.assign(session=session).pivot_table(
        index=["repeat", "session"], columns="layout", values="rows_per_second"
    )
    blocks = table[layouts].dropna().to_numpy(dtype=float)
    if len(blocks) < NEEDED:
        return None
    logs = np.log(blocks)
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    freedom = (logs.shape[0] - 1) * (logs.shape[1] - 1)
    variance = float((rest**2).sum() / freedom / len(logs))
    return _Rates(counts=counts, rates=np.exp(logs.mean(axis=0)), variance=variance, freedom=freedom)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Solved:
    """A law with its best weights [columns], all likely ones [rays, columns], None without a band, and its doubt."""

    law: Law
    weights: Array
    likely: Array | None
    doubt: str

    def band(self, grid: Array, base: float) -> tuple[Array, Array]:
        """Return the least and the most of the speedup over `base` at `grid`; there are likely weights."""
        assert self.likely is not None
        curves = _rate(self.law, self.likely, grid) / _rate(self.law, self.likely, np.array([base]))
        return curves.min(axis=0), curves.max(axis=0)


def _solve(law: Law, found: _Rates) -> _Solved:
    weights = solve(law, found.counts, found.rates)
    refuted = _lack_of_fit(law, found, weights)
    likely = _likely(law, found, weights) if found.freedom and not refuted else None
    return _Solved(law=law, weights=weights, likely=likely, doubt=refuted or _doubt(law, found))


def _fit(one: _Solved, solved: Sequence[_Solved], found: _Rates, base: float) -> Fit:
    """Return the curve of `one` of the laws that were `solved`."""
    law, weights, counts = one.law, one.weights, found.counts
    errors = np.abs(_rate(law, weights, counts) / found.rates - 1)
    doubt = one.doubt or _untested(solved, found)
    end = counts.max() * (1 if doubt else _REACH[min(2, len(counts) - law.numbers)])
    grid = np.unique(np.concatenate([counts, np.geomspace(counts.min(), end, 60)]))
    curve = _rate(law, weights, grid) / _rate(law, weights, np.array([base]))
    low = high = np.empty(0)
    keep = np.ones(len(grid), dtype=bool)
    if one.likely is not None:
        low, high = one.band(grid, base)
        beyond = grid > counts.max()
        for other in (other for other in solved if other.likely is not None):
            least, most = other.band(grid, base)
            low, high = np.where(beyond, np.minimum(low, least), low), np.where(beyond, np.maximum(high, most), high)
        keep = ~beyond | (high <= _WIDEST * low)
    return Fit(
        law=law.name,
        estimates=_estimates(law, weights, one.likely),
        worst_error=float(errors.max()),
        worst_ranks=int(counts[errors.argmax()]),
        doubt=doubt,
        counts=tuple(map(float, grid[keep])),
        speedup=tuple(map(float, curve[keep])),
        low=tuple(map(float, low[keep])) if low.size else (),
        high=tuple(map(float, high[keep])) if high.size else (),
    )


def _untested(solved: Sequence[_Solved], found: _Rates) -> str:
    """Return that the counts are too few to test every law, the one in log2 p too, else an empty text."""
    most = max(one.law.numbers for one in solved)
    if len(found.counts) > most:
        return ""
    return f"{len(found.counts)} rank counts cannot test for a cost in log2 p: measure at least {most + 1}"


def _design(law: Law, counts: Array, rates: Array) -> Array:
    """Return the columns over what they shall combine to: the best weights combine these to 1 everywhere."""
    target = 1 / rates if law.inverse else rates
    return law.columns(counts) / target[:, None]


def solve(law: Law, counts: Array, rates: Array) -> Array:
    """Return the weights of the columns, all at least 0, that fit `rates` [points] with the least relative errors."""
    weights: Array = nnls(_design(law, counts, rates), np.ones(len(counts)))[0]
    return weights


def coefficients(law: Law, weights: Array) -> Array:
    """Return the law's coefficients, float64 [..., coefficients], of weights [..., columns]."""
    scale = weights[..., :2].sum(axis=-1) if law.fractions else weights[..., 0]
    parts = np.delete(weights, 1, axis=-1) if law.fractions else weights[..., 1:]
    values: Array = parts / np.maximum(scale, np.finfo(float).tiny)[..., None]
    return values


def _rate(law: Law, weights: Array, counts: Array) -> Array:
    """Return the rates [..., points] that `weights` [..., columns] give at `counts` [points]."""
    combined = weights @ law.columns(counts).T
    rate: Array = 1 / combined if law.inverse else combined
    return rate


def _lack_of_fit(law: Law, found: _Rates, weights: Array) -> str:
    """Return that the law is refuted: its errors are beyond what noise makes in 1 of 20 sweeps, else an empty text."""
    free = len(found.counts) - int((weights > 0).sum())
    if not found.freedom or free < 1:
        return ""
    errors = _design(law, found.counts, found.rates) @ weights - 1
    worst, limit = (errors**2).sum(), free * found.variance * f_distribution.ppf(LEVEL, free, found.freedom)
    if worst <= max(limit, 1e-18):  # errors of rounding refute nothing where launches do not differ
        return ""
    return "what was measured refutes it: its errors are beyond the noise of launches (F test for lack of fit, 5 %)"


def _likely(law: Law, found: _Rates, weights: Array) -> Array:
    """Return weights [rays, columns] at the edge of the 95 % profile likelihood region around the best `weights`.

    The region is convex, the part of an ellipsoid where no weight is negative: rays from the best weights reach all
    of its edge, those inside the faces of weights that are 0 too.
    """
    design = _design(law, found.counts, found.rates)
    growth = found.variance * f_distribution.ppf(LEVEL, 1, found.freedom)
    root = np.linalg.cholesky(design.T @ design)
    rays = np.random.default_rng(0).standard_normal((_RAYS, len(weights)))
    rays = rays @ np.linalg.inv(root)  # even in the ellipsoid's own measure
    faces = [np.where(np.arange(len(weights)) == fixed, 0.0, rays) for fixed in np.flatnonzero(weights <= 0)]
    rays = np.concatenate([rays, *faces])
    # |design (w + t ray) - 1|^2 = least + 2 t slope + t^2 |design ray|^2, and that may be least + growth.
    along = rays @ design.T
    slope, square = along @ (design @ weights - 1), (along**2).sum(axis=1)
    reach = (-slope + np.sqrt(slope**2 + square * growth)) / np.maximum(square, np.finfo(float).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        walls = np.where(rays < 0, weights / -rays, np.inf).min(axis=1)
    edge: Array = np.maximum(0.0, weights + np.minimum(reach, walls)[:, None] * rays)
    return edge


def _estimates(law: Law, weights: Array, likely: Array | None) -> tuple[Coefficient, ...]:
    values = coefficients(law, weights)
    ends: list[tuple[float | None, float | None]] = [(None, None)] * len(values)
    if likely is not None:
        possible = coefficients(law, likely)
        ends = [(float(one.min()), float(one.max())) for one in possible.T]
    return tuple(
        Coefficient(name=name, value=float(value), low=low, high=high)
        for name, value, (low, high) in zip(law.coefficients, values, ends, strict=True)
    )


def _doubt(law: Law, found: _Rates) -> str:
    counts = len(found.counts)
    if counts == law.numbers:  # an exact fit tests nothing
        return f"{counts} rank counts cannot test a law of as many numbers: measure at least {counts + 1}"
    if not found.freedom:
        return f"fewer than {NEEDED} whole blocks of launches: no band, so nothing is drawn beyond them"
    return ""
