"""The performance model normal form: how one part of a step grows with the ranks, chosen by cross-validation.

A model is c0 + c1 p^i log2(p)^j, with i and j from the sets of Extra-P (Calotoiu, Hoefler, Poke & Wolf, "Using
Automated Performance Modeling to Find Scalability Bugs in Complex Codes", SC'13, section 3), and as there the one
with the least leave-one-out error. A part that one rank alone has not may also be c0 (1 - 1/p) + c1 (p^i log2(p)^j - 1
or 0), which is 0 on one rank: an allreduce's bandwidth term grows like that (Thakur et al., see
`prediction.allreduce`). So do its steps at powers of two: then p is the power of two up to p, and the ranks beyond it
cost a constant more.

A band knows two doubts: the coefficients' (Student's t) and the model's. Each model is drawn as often as its
leave-one-out error deserves: the likelihood of normal errors of unknown variance, PRESS^(-n/2) (pseudo-Bayesian model
averaging, Yao et al., "Using Stacking to Average Bayesian Predictive Distributions", Bayesian Analysis 13, 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.analysis.numbers import seconds

Array = NDArray[np.float64]
Order = tuple[Fraction, int]
FEWEST = 5  # rank counts, as Extra-P asks for
LINEAR: Order = (Fraction(1), 1)  # all messages of an algorithm over one wire, or all ranks on one memory: p log p
# The slowest of p equal ranks: at most sqrt(p) (Hartley & David, Ann. Math. Stat. 25, 1954).
ROOT: Order = (Fraction(1, 2), 0)

# i: the js that go with it, as Extra-P 4 has them; i with j = 0 is there below 0 too, for what shrinks with the ranks.
_ORDERS: dict[str, tuple[int, ...]] = {
    "0": (1, 2), "1/4": (0, 1, 2), "1/3": (0, 1, 2), "1/2": (0, 1, 2), "2/3": (0, 1, 2), "3/4": (0, 1, 2), "4/5": (0,),
    "1": (0, 1, 2), "5/4": (0, 1), "4/3": (0, 1), "3/2": (0, 1, 2), "5/3": (0,), "7/4": (0,), "2": (0, 1, 2),
    "9/4": (0,), "7/3": (0,), "5/2": (0, 1, 2), "8/3": (0,), "11/4": (0,), "3": (0, 1),
}  # fmt: skip
_CONSTANT: Order = (Fraction(0), 0)
GROWING: tuple[Order, ...] = tuple((Fraction(i), j) for i, js in _ORDERS.items() for j in js)
ORDERS: tuple[Order, ...] = (_CONSTANT, *GROWING, *((-i, 0) for i, j in GROWING if j == 0))
_ROUNDING = 1e-9  # relative errors below this are rounding
_EQUAL = 0.005  # of a step: leave-one-out errors below this do not show which of two models is right
_STEPS = 2  # counts that are not powers of two, from which their cost can be distinguished from an error


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """A model without its coefficients. `alone`: it is 0 on one rank; `powers`: it steps at powers of two."""

    order: Order
    alone: bool = False
    powers: bool = False

    def columns(self, counts: Array) -> Array:
        """Return what the coefficients are factors of at `counts` [n], float64 [n, coefficients]."""
        p = _power(counts) if self.powers else counts
        found = [1 - 1 / p if self.alone else np.ones_like(p)]
        if self.order != _CONSTANT:
            i, j = self.order
            found.append(p ** float(i) * np.log2(p) ** j - (1.0 if self.alone and j == 0 else 0.0))
        if self.powers:
            found.append((p < counts).astype(float))
        return np.stack(found, axis=1)

    def possible(self, weights: Array) -> bool:
        """Tell whether a part of a step can be so at every count: what grows does not fall below 0 beyond."""
        grows = self.order != _CONSTANT and self.order[0] >= 0
        rests = self.alone or self.order[0] < 0  # the first coefficient is what is left at many ranks
        falls = (grows and weights[1] < 0) or (rests and weights[0] < 0) or (self.powers and weights[-1] < 0)
        return not falls

    def words(self, weights: Array) -> str:
        """Return the model as people write it, its coefficients in `seconds`."""
        p = "2^floor(log2 p)" if self.powers else "p"
        names = [f" (1 - 1/{p})" if self.alone else ""]
        if self.order != _CONSTANT:
            i, j = self.order
            power = f" {p}^({i})" if i not in (0, 1) else f" {p}" if i else ""
            names.append(f"{power}{f' log2({p})' if j else ''}{'^2' if j == 2 else ''}")
            if self.alone and j == 0:
                names[-1] = f" ({names[-1].strip()} - 1)"
        if self.powers:
            names.append(" where p is not a power of two")
        terms = [f"{seconds(float(weight))}{name}" for weight, name in zip(weights, names, strict=True) if weight]
        return " + ".join(terms).replace("+ -", "- ") or seconds(0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedForm:
    """A form with its coefficients. `error`: leave-one-out, root mean square, relative to the scales.

    `root` [coefficients, coefficients] is a root of the coefficients' covariance, with `freedom` degrees.
    """

    form: Form
    weights: Array
    error: float
    root: Array
    freedom: int

    def at(self, counts: ArrayLike) -> Array:
        """Return the values at `counts`, float64 like these."""
        values: Array = self.form.columns(np.asarray(counts, dtype=float)) @ self.weights
        return values

    @property
    def words(self) -> str:
        """The model as people write it."""
        return self.form.words(self.weights)


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """All possible models of one part, the chosen one first, and how likely each is."""

    models: tuple[FittedForm, ...]
    odds: Array

    @property
    def best(self) -> FittedForm:
        """The model with the least leave-one-out error; of equal ones that of the lowest order."""
        return self.models[0]

    def draws(self, counts: ArrayLike, number: int, random: np.random.Generator) -> Array:
        """Return what the part may be at `counts`, [number, counts], never below 0."""
        p = np.asarray(counts, dtype=float)
        found = np.empty((number, len(p)))
        chosen = random.choice(len(self.models), size=number, p=self.odds)
        for which in np.unique(chosen):
            model, rows = self.models[which], np.flatnonzero(chosen == which)
            off = random.standard_t(model.freedom, (len(rows), len(model.weights))) @ model.root.T
            found[rows] = (model.weights + off) @ model.form.columns(p).T
        return np.maximum(0.0, found)


def forms(highest: Order | None = None) -> tuple[Form, ...]:
    """Return the plain forms, up to the order `highest` (all of Extra-P's without)."""
    return tuple(Form(order=order) for order in ORDERS if highest is None or order <= highest)


def allreduce_forms(counts: ArrayLike, highest: Order) -> tuple[Form, ...]:
    """Return the forms of an allreduce, measured at `counts`: plain ones, and those that only allreduces have."""
    p = np.asarray(counts, dtype=float)
    orders = [order for order in (_CONSTANT, *GROWING) if order <= highest]
    found = [*forms(highest), *(Form(order=order, alone=True) for order in orders)]
    if (_power(p) < p).sum() >= _STEPS and len(p) > FEWEST:
        found += [Form(order=order, alone=alone, powers=True) for alone in (False, True) for order in orders]
    return tuple(found)


def grow(counts: ArrayLike, values: ArrayLike, scales: ArrayLike, allowed: Sequence[Form]) -> Growth:
    """Return the models of `values` at `counts` (at least `FEWEST` of them); errors are relative to `scales`, above 0.

    All three are [n]. `allowed` has a form of the constant order, which every part may be.
    """
    p, target, scale = (np.asarray(one, dtype=float) for one in (counts, values, scales))
    models = [model for form in allowed if (model := _fit(form, p, target, scale)) is not None]
    models.sort(key=lambda model: model.error)  # stable: of equals the lower order
    errors = np.maximum([model.error for model in models], _EQUAL)
    odds: Array = (errors / errors[0]) ** -float(len(p))
    return Growth(models=tuple(models), odds=odds / odds.sum())


def _fit(form: Form, counts: Array, values: Array, scales: Array) -> FittedForm | None:
    """Return the least squares fit of `form`, None where it cannot be tested or is not `possible`."""
    design, target = form.columns(counts) / scales[:, None], values / scales
    freedom = len(counts) - design.shape[1]
    inverse = np.linalg.pinv(design.T @ design)
    weights: Array = inverse @ design.T @ target
    if freedom < 1 or not form.possible(weights):
        return None
    rest = target - design @ weights
    own = np.einsum("nk,kl,nl->n", design, inverse, design)  # what each point does to its own fit
    error = float(np.sqrt(np.mean((rest / np.maximum(1 - own, _ROUNDING)) ** 2)))
    values_, vectors = np.linalg.eigh(inverse * float(rest @ rest) / freedom)
    root = vectors * np.sqrt(np.maximum(values_, 0.0))
    return FittedForm(form=form, weights=weights, error=max(error, _ROUNDING), root=root, freedom=freedom)


def _power(counts: Array) -> Array:
    power: Array = 2 ** np.floor(np.log2(counts))
    return power
