"""Laws of how speed grows with the ranks, fitted to what was measured, and whether the measurements refute them.

Laws are of the whole speed, and linear in the work per second or its inverse, so that non-negative least squares finds
the fit: Amdahl (AFIPS 1967) t(p) = t1 (s + (1 - s)/p) for strong scaling; Gustafson (CACM 31, 1988)
x(p) = x1 (p - s (p - 1)) for weak scaling; Gunther's Universal Scalability Law x(p) = x1 p / (1 + a (p - 1) +
b p (p - 1)) for both; and what none of these has, the allreduce whose steps are log2 p: t(p) = t1 (s + (1 - s)/p +
c log2 p), weak scaling t1 (1 + c log2 p).

A law describes the measured counts and predicts nothing beyond them: several laws fit the same points and differ there.
More ranks are predicted from the measured parts of an epoch (`prediction.extrapolation`). The noise that a law is
compared with is what launches of one count differ by once the speed of their repeat is taken out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from harness.analysis.confidence_intervals import FEWEST_LAUNCHES, is_refuted
from harness.analysis.scaling import Scaling
from harness.analysis.sessions import sessions

Array = NDArray[np.float64]
_FEWEST_POINTS = 3
_CURVE_POINTS = 60
_REFUTED = "what was measured refutes it: its errors are beyond the noise of launches (F test for lack of fit, 5 %)"


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

    def rates(self, weights: Array, counts: Array) -> Array:
        """Return the rates [points] that `weights` [columns] give at `counts` [points]."""
        combined = self.columns(counts) @ weights
        rates: Array = 1 / combined if self.inverse else combined
        return rates

    def values(self, weights: Array) -> Array:
        """Return the values of its coefficients [coefficients] that `weights` [columns] mean."""
        scale = weights[:2].sum() if self.fractions else weights[0]
        parts = np.delete(weights, 1 if self.fractions else 0)
        values: Array = parts / max(float(scale), float(np.finfo(float).tiny))
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficient:
    """A coefficient of a law, as the fit has it."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A law fitted to a sweep. `counts` and `speedup` are the curve over the base, within the measured counts.

    `worst_error` is the largest relative distance from a measured point, at `worst_ranks`. `doubt` says why the law
    was not tested by what was measured, or that the measurements refute it; empty where they agree with it.
    """

    law: str
    estimates: tuple[Coefficient, ...]
    worst_error: float
    worst_ranks: int
    doubt: str
    counts: tuple[float, ...]
    speedup: tuple[float, ...]


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
class _MeasuredRates:
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
    whole repeats of the launch order, of medians where there are fewer than 6. Points of another session than the
    base's are left out. Empty with fewer than three rank counts that compare: a curve through two is no law.
    """
    points = [point for point in scaling.points if point.speedup is not None and not point.other_session]
    counts = np.array([point.ranks for point in points], dtype=float)
    if len(counts) < _FEWEST_POINTS or len(set(counts)) < len(counts):
        return ()  # two layouts of one count say nothing about a law in the ranks
    measured = _rates_of_repeats(counts, [point.layout for point in points], launches)
    if measured is None:
        measured = _MeasuredRates(counts=counts, rates=np.array([point.rows_per_second for point in points]))
    strong = scaling.scaling == "strong"
    laws = (AMDAHL, USL, LOGARITHM) if strong else (GUSTAFSON, USL, WEAK_LOGARITHM)
    return tuple(_fit(law, measured, float(scaling.base.ranks)) for law in laws)


def _rates_of_repeats(counts: Array, layouts: list[str], launches: pd.DataFrame) -> _MeasuredRates | None:
    """Return the geometric means over whole repeats and their noise, None for fewer than 6 of them.

    A whole repeat has a launch of each of the `layouts`, in one session.
    """
    valid = launches[launches["valid"]]
    session = sessions(list(zip(valid["session_begin"], valid["session_end"], strict=True)))
    table = valid.assign(session=session).pivot_table(
        index=["repeat", "session"], columns="layout", values="rows_per_second"
    )
    repeats = table[layouts].dropna().to_numpy(dtype=float)
    if len(repeats) < FEWEST_LAUNCHES:
        return None
    logs = np.log(repeats)
    residuals = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    freedom = (logs.shape[0] - 1) * (logs.shape[1] - 1)
    variance = float((residuals**2).sum() / freedom / len(logs))
    return _MeasuredRates(counts=counts, rates=np.exp(logs.mean(axis=0)), variance=variance, freedom=freedom)


def _fit(law: Law, measured: _MeasuredRates, base_ranks: float) -> Fit:
    """Return `law` with the weights that have the least relative errors, and its curve."""
    weights = solve(law, measured.counts, measured.rates)
    errors = np.abs(law.rates(weights, measured.counts) / measured.rates - 1)
    grid = np.geomspace(measured.counts.min(), measured.counts.max(), _CURVE_POINTS)
    counts = np.unique(np.concatenate([measured.counts, grid]))
    counts = counts[counts <= measured.counts.max()]
    curve = law.rates(weights, counts) / law.rates(weights, np.array([base_ranks]))
    values = law.values(weights)
    return Fit(
        law=law.name,
        estimates=tuple(
            Coefficient(name=name, value=float(value)) for name, value in zip(law.coefficients, values, strict=True)
        ),
        worst_error=float(errors.max()),
        worst_ranks=int(measured.counts[errors.argmax()]),
        doubt=_doubt(law, measured, weights),
        counts=tuple(map(float, counts)),
        speedup=tuple(map(float, curve)),
    )


def _design(law: Law, counts: Array, rates: Array) -> Array:
    """Return the columns over what they shall combine to: the best weights combine these to 1 everywhere."""
    target = 1 / rates if law.inverse else rates
    return law.columns(counts) / target[:, None]


def solve(law: Law, counts: Array, rates: Array) -> Array:
    """Return the weights of the columns, all at least 0, that fit `rates` [points] with the least relative errors."""
    weights: Array = nnls(_design(law, counts, rates), np.ones(len(counts)))[0]
    return weights


def _doubt(law: Law, measured: _MeasuredRates, weights: Array) -> str:
    """Return why the law is refuted, or was not tested; an empty text where it holds."""
    counts = len(measured.counts)
    freedom = counts - int((weights > 0).sum())
    if freedom > 0 and measured.freedom:
        errors = _design(law, measured.counts, measured.rates) @ weights - 1
        squares = float((errors**2).sum())
        if is_refuted(squares, freedom, variance=measured.variance, variance_freedom=measured.freedom):
            return _REFUTED
    if counts == law.numbers:  # an exact fit tests nothing
        return f"{counts} rank counts cannot test a law of as many numbers: measure at least {counts + 1}"
    if not measured.freedom:
        return f"fewer than {FEWEST_LAUNCHES} whole repeats of launches: their noise is not known"
    return ""
