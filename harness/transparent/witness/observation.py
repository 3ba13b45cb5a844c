"""What rank 0 and the witness compare: gradients, as lengths and projections, and numbers."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_FOLD = 65521
_DIRECTIONS = 4
_SMALL = 5e-2  # of the length of all gradients of a step: below it a single one's may be nothing but rounding
_LEAST = 0.05  # size of a number that a difference is a share of


class Observation(NamedTuple):
    """A gradient (`kind`) of several variables, or numbers: their `names`, and a row of float64 `measures` for each.

    `rows`: of the batch, of all ranks, 0 where they are not counted. `training`: the number of the script's training
    that a gradient is of.
    """

    kind: str
    names: tuple[str, ...]
    measures: npt.NDArray[np.float64]
    rows: float = 0.0
    training: int = -1

    @property
    def key(self) -> tuple[str, int, tuple[str, ...]]:
        """What identifies it: it is compared with the next observation that has the same key."""
        return self.kind, self.training, self.names


class Beginning(NamedTuple):
    """The begin of the `number`-th training by Keras's `fit` or by its steps by hand."""

    number: int

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it."""
        return "beginning", self.number


@np.errstate(all="ignore")  # the script may have asked NumPy to raise
def measures(values: Any, indices: Any = None) -> npt.NDArray[np.float64]:
    """Return the length and some projections of a gradient's `values`, float64 [5].

    Those of a sparse gradient do not depend on the order of its `indices`.
    """
    flat = np.asarray(values, np.float32).ravel()
    length = float(np.linalg.norm(flat))
    if indices is not None:
        weights = _directions()[0, np.asarray(indices) % _FOLD]
        flat = weights @ flat.reshape(len(weights), -1) if len(weights) else flat
    fold = min(len(flat), _FOLD)
    whole = len(flat) // max(fold, 1) * fold
    folded = flat[:whole].reshape(-1, fold).sum(0, dtype=np.float64) if whole else flat
    folded[: len(flat) - whole] += flat[whole:]
    return np.array([length, *(_directions()[:, :fold] @ folded)])


@cache
def _directions() -> npt.NDArray[np.float64]:
    return np.random.RandomState(0).choice([-1.0, 1.0], (_DIRECTIONS, _FOLD))


@np.errstate(all="ignore")  # the script may have asked NumPy to raise
def compared(first: Observation, second: Observation, least: float = 0.0) -> tuple[float, str]:
    """Return the greatest difference of two observations as a share of the size of what differs, and its name.

    The size of a gradient is taken to be `least` or more.
    """
    both = np.stack([first.measures, second.measures])
    gap = np.abs(both[0] - both[1]).max(1)
    gap[~np.isfinite(both).all(2).any(0)] = 0.0  # both overflow, as half precision may
    size = np.nan_to_num(np.abs(both[:, :, 0]).max(0), posinf=0.0)
    least_size = max(_SMALL * np.linalg.norm(size), least)
    size = np.maximum(size, _LEAST) if first.kind == "number" else size + least_size
    shares = np.nan_to_num(gap / np.maximum(size, np.finfo(np.float32).tiny), nan=np.inf)
    worst = int(np.argmax(shares))
    return float(shares[worst]), first.names[worst]
