"""Whether the rows of a batch are independent: only then do the gradients of its parts make up that of the whole.

A loss of pairs of rows, one that is divided by what a mask keeps, or batches whose first dimension is time, do not: the
ranks then compute the whole batch, each of them, which is right and no faster.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops_v2

from harness.transparent.rows import some

MIXED = "the loss is not shown to be a mean or sum over independent rows, and parts of a batch may train otherwise"
_ROUNDING, _HALF = 2e-3, 0.03  # of the gradient's length, in float32 and in types of 16 bits
_FLOATS = {
    gen_random_ops: ("random_standard_normal", "random_uniform", "truncated_normal", "parameterized_truncated_normal"),
    gen_stateless_random_ops_v2: (
        "stateless_random_normal_v2",
        "stateless_random_uniform_v2",
        "stateless_truncated_normal_v2",
    ),
}


def vector(gradients: Sequence[Any]) -> "np.ndarray[Any, Any]":
    """Return all numbers of `gradients`, dense or sparse, in one array."""
    dense = [tf.convert_to_tensor(each) for each in gradients if each is not None]
    return np.concatenate([np.zeros(1, np.float32), *(tf.cast(each, tf.float32).numpy().ravel() for each in dense)])


def first_part(rows: int) -> int:
    """Return how many of `rows` are the first of the two parts that are tried: unlike the second's, and above 0."""
    return max(1, rows // 3)


def trial_batches(batch: Any, rows: int) -> tuple[Any, Any, Any, Any]:
    """Return the batches whose gradients `mixes` takes."""
    first = first_part(rows)
    return batch, some(batch, 0, first), some(batch, first, rows - first), batch


def mixes(seen: Sequence["np.ndarray[Any, Any]"], rows: int, *, summed: bool) -> bool:
    """Tell from the gradients of a batch of `rows`, of its two parts and of the batch again whether it mixes its rows.

    Where they change by themselves too much to tell, the witness is to judge.
    """
    half = tf.keras.config.dtype_policy().compute_dtype in ("float16", "bfloat16")
    gap, length = _apart(seen, rows, summed=summed)
    noise = float(np.linalg.norm(seen[0] - seen[3]))
    return bool(np.isfinite(length + noise) and gap > (_HALF if half else _ROUNDING) * length + 2 * noise)


def is_sum(seen: Sequence["np.ndarray[Any, Any]"], rows: int) -> bool | None:
    """Tell from what `mixes` takes whether it is a sum over the rows of a batch, not a mean; None if it mixes them."""
    summed = _apart(seen, rows, summed=True)[0] < _apart(seen, rows, summed=False)[0]
    return None if mixes(seen, rows, summed=summed) else summed


def _apart(seen: Sequence["np.ndarray[Any, Any]"], rows: int, *, summed: bool) -> tuple[float, float]:
    """Return how far the batch's is from what its parts make up, and the greater length of the two."""
    whole, one, two, again = seen
    weight = first_part(rows) / rows
    parts = one + two if summed else weight * one + (1 - weight) * two
    length = max(float(np.linalg.norm(each)) for each in (whole, parts))
    return float(np.linalg.norm(parts - (whole + again) / 2)), length


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Make random floats that are drawn eagerly in the block the same for every row and every draw."""
    functions = tf.config.functions_run_eagerly()
    held = [(room, name, getattr(room, name)) for room, names in _FLOATS.items() for name in names]
    for room, name, original in held:
        setattr(room, name, _fixed(original))
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(functions)
        for room, name, original in held:
            setattr(room, name, original)


def _fixed(original: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        drawn = original(*args, **kwargs)  # also the generator's next state
        if not tf.executing_eagerly():
            return drawn
        row = np.random.RandomState(0).uniform(0.02, 0.98, drawn.shape[1:])
        return tf.broadcast_to(tf.cast(row, drawn.dtype), drawn.shape)

    return draw


@dataclass(kw_only=True)
class Shadow:
    """Four steps of a hand-written loop that do not count on the rank that makes them, beside those that do on rank 0.

    It takes the `batch` of the first, two parts of it and the batch again, all with the weights of the first. The first
    gradient that the script takes in each is kept.
    """

    batch: Any
    rows: int
    kept: Sequence[Any]
    steps: int = 0
    steady: bool = False
    seen: list["np.ndarray[Any, Any]"] = field(default_factory=list)
    owners: list[object] = field(default_factory=list)
    _then: dict[int, tuple[Any, tf.Tensor]] = field(default_factory=dict)
    _now: list[tuple[Any, tf.Tensor]] = field(default_factory=list)
    _taken: bool = False
    _steady: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def done(self) -> bool:
        """Whether all steps have been made; a batch of one row has no parts."""
        return self.steps == 4 or self.rows < 2

    def begin(self) -> Any:
        """Return what the next step takes, with the variables as they were in the first."""
        self._taken, self.steady = False, True
        self._steady.enter_context(steady())
        if self.steps == 0:
            self._remember(self.kept)
        self._now = [(variable, _copy(variable)) for variable, _ in self._then.values()]
        for variable, value in self._then.values():
            variable.assign(value)
        return trial_batches(self.batch, self.rows)[self.steps]

    def take(self, owner: object, tape: Any, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Keep the gradient of a step, its first; the variables are then again what they are on rank 0."""
        if self._taken:
            return
        self._taken = True
        self.owners.append(owner)
        self.seen.append(vector(gradients))
        self._remember([*variables, *tape.watched_variables()])
        self.restore()

    def end(self) -> None:
        """End the step."""
        self.steps += 1
        self.restore()
        self._steady.close()

    def restore(self) -> None:
        """Give the variables the values back that they have on rank 0."""
        for variable, value in self._now:
            variable.assign(value)
        self._now = []

    def _remember(self, variables: Sequence[Any]) -> None:
        self._then |= {id(v): (v, _copy(v)) for v in variables if id(v) not in self._then}

    def verdict(self, is_sum: Callable[[object], bool]) -> bool:
        """Tell whether rows are known to be mixed."""
        owners = {id(owner) for owner in self.owners}
        if self.rows < 2 or len(self.seen) < 4 or len(owners) > 1 or len({len(each) for each in self.seen}) > 1:
            return False
        return mixes(self.seen, self.rows, summed=is_sum(self.owners[0]))


def _copy(variable: Any) -> tf.Tensor:
    return tf.identity(tf.convert_to_tensor(variable))
