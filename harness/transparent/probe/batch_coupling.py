"""Whether the rows of a batch are independent: only then do the gradients of its parts make up that of the whole.

They are not in a loss of pairs of rows, in a loss that is divided by how many values a mask keeps, or in batches whose
first dimension is time. Then each rank computes the whole batch, which is right and no faster.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops_v2

from harness.transparent.batch_rows import some

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


@np.errstate(all="ignore")  # the script may have asked NumPy to raise
def mixes(gradients: Sequence["np.ndarray[Any, Any]"], rows: int, *, summed: bool) -> bool:
    """Tell from the `gradients` of a batch of `rows`, of its two parts and of the batch again if it mixes its rows.

    False where the two gradients of the same batch differ too much to tell: the witness is to judge.
    """
    half = tf.keras.config.dtype_policy().compute_dtype in ("float16", "bfloat16")
    gap, length = _gap(gradients, rows, summed=summed)
    noise = float(np.linalg.norm(gradients[0] - gradients[3]))
    return bool(np.isfinite(length + noise) and gap > (_HALF if half else _ROUNDING) * length + 2 * noise)


@np.errstate(all="ignore")  # the script may have asked NumPy to raise
def is_sum(gradients: Sequence["np.ndarray[Any, Any]"], rows: int) -> bool | None:
    """Tell whether what `mixes` takes is a sum over the rows of a batch, not a mean; None if it mixes them."""
    summed = _gap(gradients, rows, summed=True)[0] < _gap(gradients, rows, summed=False)[0]
    return None if mixes(gradients, rows, summed=summed) else summed


def _gap(gradients: Sequence["np.ndarray[Any, Any]"], rows: int, *, summed: bool) -> tuple[float, float]:
    """Return how far the batch's gradient is from the one made of its parts, and the length of the longest.

    Where the parts' gradients are nearly opposite, what is left of them is as much rounding as they are long.
    """
    whole, first, second, again = gradients
    weight = first_part(rows) / rows
    addends = (first, second) if summed else (weight * first, (1 - weight) * second)
    length = max(float(np.linalg.norm(each)) for each in (whole, *addends))
    return float(np.linalg.norm(addends[0] + addends[1] - (whole + again) / 2)), length


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Make random floats that are drawn eagerly in the block the same for every row and every draw."""
    ran_eagerly = tf.config.functions_run_eagerly()
    originals = [(module, name, getattr(module, name)) for module, names in _FLOATS.items() for name in names]
    for module, name, original in originals:
        setattr(module, name, _fixed(original))
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(ran_eagerly)
        for module, name, original in originals:
            setattr(module, name, original)


def _fixed(original: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        drawn = original(*args, **kwargs)  # also the generator's next state
        if not tf.executing_eagerly():
            return drawn
        row = np.random.RandomState(0).uniform(0.02, 0.98, drawn.shape[1:])
        return tf.broadcast_to(tf.cast(row, drawn.dtype), drawn.shape)

    return draw


@dataclass(kw_only=True)
class CouplingTrial:
    """Four steps of a hand-written loop that do not count on the ranks above 0, while rank 0's steps count.

    They take the `batch` of the first step, two parts of it and the batch again, all with the weights of the first
    step. The first gradient that the script takes in each step is kept in `gradients`, and its owner in `owners`.
    `untrained`: variables that no optimizer changes; they are put back too. `is_steady`: random numbers are the same
    for every row now.
    """

    batch: Any
    rows: int
    untrained: Sequence[Any]
    steps: int = 0
    is_steady: bool = False
    gradients: list["np.ndarray[Any, Any]"] = field(default_factory=list)
    owners: list[object] = field(default_factory=list)
    _first_values: dict[int, tuple[Any, tf.Tensor]] = field(default_factory=dict)
    _current_values: list[tuple[Any, tf.Tensor]] = field(default_factory=list)
    _has_gradient: bool = False
    _random: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def done(self) -> bool:
        """Whether all steps have been made; a batch of one row has no parts."""
        return self.steps == 4 or self.rows < 2

    def begin(self) -> Any:
        """Return what the next step takes, with the variables as they were in the first."""
        self._has_gradient = False
        self.is_steady = True
        self._random.enter_context(steady())
        if self.steps == 0:
            self._remember(self.untrained)
        self._current_values = [(variable, _copy(variable)) for variable, _ in self._first_values.values()]
        for variable, value in self._first_values.values():
            variable.assign(value)
        return trial_batches(self.batch, self.rows)[self.steps]

    def take(self, owner: object, tape: Any, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Keep the first gradient of a step; the variables are then again what they are on rank 0."""
        if self._has_gradient:
            return
        self._has_gradient = True
        self.owners.append(owner)
        self.gradients.append(vector(gradients))
        self._remember([*variables, *tape.watched_variables()])
        self.restore()

    def end(self) -> None:
        """End the step."""
        self.steps += 1
        self.restore()
        self._random.close()

    def restore(self) -> None:
        """Give the variables the values back that they have on rank 0."""
        for variable, value in self._current_values:
            variable.assign(value)
        self._current_values = []

    def _remember(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            if id(variable) not in self._first_values:
                self._first_values[id(variable)] = (variable, _copy(variable))

    def verdict(self, is_sum: Callable[[object], bool]) -> bool:
        """Tell whether rows are known to be mixed."""
        owners = {id(owner) for owner in self.owners}
        lengths = {len(gradient) for gradient in self.gradients}
        if self.rows < 2 or len(self.gradients) < 4 or len(owners) > 1 or len(lengths) > 1:
            return False
        return mixes(self.gradients, self.rows, summed=is_sum(self.owners[0]))


def _copy(variable: Any) -> tf.Tensor:
    return tf.identity(tf.convert_to_tensor(variable))
