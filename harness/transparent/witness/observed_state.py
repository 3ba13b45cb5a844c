"""The variables that a script has made, in rank 0 and in the witness: which there are, and what they hold.

Weights and the slots of optimizers follow from gradients, which are compared. All others are compared here: counters,
rates, statistics, states of generators, whatever the script keeps.
"""

import math
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.transparent.patch import script_place
from harness.transparent.witness.observation import measures
from harness.transparent.witness.written_outputs import Written

_NUMBERS = 1e-2  # of a variable's length, up to which it may differ, and in types of 16 bits
_COARSE = 5e-2
_LEAST = 1e-7  # of a length: below it there is nothing but rounding
_MAKERS_OF_SLOTS = frozenset({"add_variable_from_reference"})


class VariableKind(NamedTuple):
    """What variables have in common that cannot be told apart but by their order."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class VariableKey(NamedTuple):
    """A variable: the `number`-th that was made of its kind."""

    kind: VariableKind
    number: int


class ObservedState(NamedTuple):
    """What variables hold after a step at `place`, and what the script has written since the one before.

    `counts`: how many were made of each kind. `measures`: of those that are alive and have values: a single number, or
    the length and some projections of an array. `written`: by its source.
    """

    place: str
    counts: dict[VariableKind, int]
    measures: dict[VariableKey, npt.NDArray[np.float64]]
    written: Mapping[str, Written] = {}

    @property
    def key(self) -> tuple[str, str]:
        """What identifies it: it is compared with the next observation that has the same key."""
        return "state", self.place


class StateGap(NamedTuple):
    """How far a variable is from another process's.

    `share`: of its length. `excess`: a multiple of what is allowed. `values`: the two, if they are single numbers.
    """

    variable: VariableKey
    share: float
    excess: float
    values: tuple[float, float] | None


class LiveVariables:
    """The variables of a script that are alive, in the order in which they were made."""

    def __init__(self) -> None:
        self._made: Counter[VariableKind] = Counter()
        self._alive: dict[VariableKey, weakref.ref[Any]] = {}
        self._left_out: dict[int, weakref.ref[Any]] = {}
        self.places: dict[VariableKey, str] = {}

    def note(self, variable: Any) -> None:
        """Note a variable that has just been made, and where in the script."""
        if not variable.dtype.is_numpy_compatible or variable.dtype == "string" or variable.shape.rank is None:
            return
        kind = VariableKind(variable.name, variable.dtype.name, tuple(variable.shape.as_list()))
        if None in kind.shape or _makes_slot():
            return
        variable_key = VariableKey(kind, self._made[kind])
        self._made[kind] += 1
        self._alive[variable_key] = weakref.ref(variable)
        self.places[variable_key] = script_place()

    def leave_out(self, variables: Iterable[Any]) -> None:
        """Do not compare `variables`, Keras's or TensorFlow's: what they hold is judged otherwise, or is a rank's."""
        for variable in variables:
            inner = getattr(variable, "_value", variable)  # Keras's has one of TensorFlow
            if inner is not None:
                self._left_out[id(inner)] = weakref.ref(inner)

    def observe(self, place: str) -> ObservedState:
        """Return what the variables hold now that have values."""
        held = {}
        for variable_key, reference in list(self._alive.items()):
            variable = reference()
            if variable is None:
                del self._alive[variable_key]
                continue
            left_out = self._left_out.get(id(variable))
            if (left_out is None or left_out() is not variable) and bool(variable.is_initialized()):
                value = variable.numpy()
                held[variable_key] = measures(value) if np.ndim(value) else np.array([value], np.float64)
        return ObservedState(place, dict(self._made), held)


def _makes_slot() -> bool:
    """Tell whether an optimizer of Keras is making a slot for one of its weights."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in _MAKERS_OF_SLOTS:
            return True
        frame = frame.f_back
    return False


def _allowed_share(variable: VariableKey) -> float:
    """Return by which share of its length a variable may differ; 0 where it has no fractions."""
    dtype = variable.kind.dtype
    if "float" not in dtype and "complex" not in dtype:
        return 0.0
    return _COARSE if dtype in ("float16", "bfloat16") else _NUMBERS


def state_gaps(first: ObservedState, second: ObservedState) -> list[StateGap]:
    """Return the variables of which two processes hold other values, in the order in which they were made.

    Kinds of which one process has made more than the other are left out: they cannot be told apart.
    """
    gaps = []
    for variable, measured in first.measures.items():
        compared = second.measures.get(variable)
        if compared is None or first.counts[variable.kind] != second.counts.get(variable.kind):
            continue
        gap = _gap(variable, measured, compared)
        if gap.excess > 1.0:
            gaps.append(gap)
    return gaps


def _gap(variable: VariableKey, first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> StateGap:
    """Return how far two measures of a variable are apart."""
    values = (float(first[0]), float(second[0])) if len(first) == 1 else None
    if np.array_equal(first, second, equal_nan=True):
        return StateGap(variable, 0.0, 0.0, values)
    length = max(abs(float(first[0])), abs(float(second[0])))
    distance = float(np.abs(first - second).max())
    if not math.isfinite(length) or not math.isfinite(distance):
        return StateGap(variable, math.inf, math.inf, values)
    excess = distance / (_allowed_share(variable) * length + _LEAST)
    return StateGap(variable, distance / max(length, _LEAST), excess, values)
