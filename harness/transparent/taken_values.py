"""What a training loop takes out of TensorFlow: single numbers are of all ranks' rows, and rows need whole batches."""

import bisect
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from harness.base.errors import UserError
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.patch import BufferSlot, put, replace, script_place
from harness.transparent.probe import DoubledBatch
from harness.transparent.runtime import Runtime
from harness.transparent.witness import measures

_CONVERTING = ("tensorflow/python/framework/ops.py", "/numpy/")
_ROUNDING = 1e-3  # of an array's length, by which it may differ from another rank's
_GENERATED = ("<frozen", "__autograph_generated_file")
_LIBRARIES = (
    f"{Path(__file__).parents[1]}/",
    *(f"{Path(str(module.__file__)).parent}/" for module in (tf, keras, np)),
)


class BatchKind(Enum):
    """How the ranks compute a batch."""

    WHOLE = "all of them alike"
    DOUBLED = "rank 0 as it is, the others with every row twice, which does not count"
    TRIED = "rank 0 as it is, the others something else, which does not count"
    DIVIDED = "each its own part"


class Batches(NamedTuple):
    """Batches of a loop, one after the other.

    `last_tensor`: the number of the last tensor that there was at their end; infinite for the one at hand, and for what
    comes after the loop. `rows`: how many this rank stands for in each.
    """

    last_tensor: float
    kind: BatchKind
    rows: float


class NotedShape(tf.TensorShape):
    """The shape of a tensor of a batch's rows: `note` is called with the frame that asks for their number."""

    def __init__(self, shape: tf.TensorShape, note: Callable[[Any], None]) -> None:
        super().__init__(shape)
        self._note = note

    def __getitem__(self, key: Any) -> Any:
        """Return what TensorFlow returns."""
        dimensions = range(self.rank)[key]
        if dimensions == 0 or (isinstance(dimensions, range) and 0 in dimensions):
            self._note(sys._getframe(1))
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        """Return what TensorFlow returns."""
        self._note(sys._getframe(1))
        return super().__iter__()

    def __str__(self) -> str:
        """Return what TensorFlow returns."""
        self._note(sys._getframe(1))
        return str(super().__str__())

    def __repr__(self) -> str:
        """Return what TensorFlow returns."""
        self._note(sys._getframe(1))
        return str(super().__repr__())

    def as_list(self) -> list[int]:
        """Return what TensorFlow returns."""
        self._note(sys._getframe(1))
        return list(super().as_list())

    def num_elements(self) -> int:
        """Return what TensorFlow returns."""
        self._note(sys._getframe(1))
        return int(super().num_elements())


class TakenValues:
    """Replaces what hands values of TensorFlow to Python: `numpy`, which `float` and formats use, `len` and `shape`.

    NumPy's own functions are made to use `numpy` too.

    A single number that the script has made of a divided batch is, where it takes it, the mean over all ranks' rows, or
    their sum where the trial has seen that. One without fractions is the sum, or the rank's own. A truth value is rank
    0's: all ranks take the same branch. The witness compares these numbers.

    A tensor may be taken long after it was made, such as all losses of an epoch at its end. Tensors are numbered by
    TensorFlow, so its number says which batch it was made of.

    A loop that takes the rows of its first batch out of TensorFlow, or their number, gets whole batches: nobody knows
    what it makes of them. One that takes rows of a divided batch later is refused.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._taken: Counter[Any] = Counter()  # numbers of the batch at hand, by the place where they are asked for
        self._ended: list[Batches] = []

    def install(self) -> None:
        """Put the replacements in place."""
        replace(ops._EagerTensorBase, "_numpy", ("self",), self._value)
        replace(ops._EagerTensorBase, "__len__", ("self",), self._rows)
        replace(tf.Tensor, "__iter__", ("self",), self._rows)
        shape = ops._EagerTensorBase.shape.fget
        put(ops._EagerTensorBase, "shape", property(lambda tensor: self._shape(shape(tensor))))
        put(ops._EagerTensorBase, "__array__", _array)
        put(BufferSlot(ops.EagerTensor), "function", None)

    def end_batch(self) -> None:
        """Take note that the loop at hand asks for its next batch."""
        self._taken.clear()
        loop = self._runtime.loop
        if loop is None or not loop.trains:
            return
        ended = self._at_hand(loop)._replace(last_tensor=ops.uid())
        if self._ended and self._ended[-1][1:] == ended[1:]:
            self._ended.pop()
        self._ended.append(ended)

    def _at_hand(self, loop: DatasetLoop) -> Batches:
        """Return the loop's batch of now; after its last one, what stands for all of its divided batches."""
        if loop.part is None:
            return Batches(math.inf, BatchKind.WHOLE, 0.0)
        is_over = loop.batch is None and not loop.had_trial
        rows = 1.0 if is_over else float(self._runtime.rows.weight())
        trial = self._runtime.collectives.trial
        if trial.active:
            return Batches(math.inf, BatchKind.DOUBLED, rows)
        return Batches(math.inf, BatchKind.TRIED if trial.goes_on else BatchKind.DIVIDED, rows)

    def _batches_of(self, tensor: Any, loop: DatasetLoop) -> Batches:
        """Return the batches of which one was at hand when `tensor` was made."""
        index = bisect.bisect_left(self._ended, tensor._id, key=lambda ended: ended.last_tensor)
        return self._ended[index] if index < len(self._ended) else self._at_hand(loop)

    def _rows(self, original: Callable[..., Any], tensor: Any) -> Any:
        """Return the number of rows of a `tensor`, or what goes through them."""
        if self._goes_on() and isinstance(tensor, ops.EagerTensor) and tensor.shape.rank:
            self._note_rows(int(tensor.shape[0]), sys._getframe(2))
        return original(tensor)

    def _shape(self, shape: tf.TensorShape) -> tf.TensorShape:
        """Return the `shape` of a tensor; in a loop's first batch, one that sees whether the script asks for rows."""
        loop = self._runtime.loop
        if loop is None or not loop.is_observed or loop.why_whole or not self._goes_on() or not shape.rank:
            return shape
        if _script_line(sys._getframe(2)) is None:
            return shape
        rows = int(shape[0])
        return NotedShape(shape, lambda frame: self._note_rows(rows, frame))

    def _value(self, original: Callable[..., Any], tensor: Any) -> Any:
        """Return the value of `tensor` as the script gets it: a single number of a divided batch is of all ranks."""
        value = original(tensor)
        loop = self._runtime.loop
        if loop is None or not self._goes_on():
            return value
        frame = sys._getframe(2)
        if np.ndim(value):
            self._note_rows(len(value), frame)
            self._check_array(tensor, value, loop, frame)
            return value
        place = _script_line(frame)
        if place is None or not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype == tf.bool):
            return value
        batches = self._batches_of(tensor, loop)
        if batches.kind is not BatchKind.WHOLE:
            value = self._agreed(value, batches, place)
        if loop.trains and tensor.dtype != tf.bool:
            self._runtime.witness.numbers(f"taken in line {place[1]}", value)
        return value

    def _goes_on(self) -> bool:
        """Tell whether the script's own loop has a batch, and nothing else is going on."""
        runtime = self._runtime
        return runtime.loop is not None and not (runtime.calls or runtime.in_trainer or runtime.quiet)

    def _note_rows(self, rows: int, frame: Any) -> None:
        """Have the loop at hand take whole batches if it has taken the `rows` of its first one out of TensorFlow."""
        loop = self._runtime.loop
        if loop is None or not loop.is_observed or loop.batch is None or loop.why_whole:
            return
        if rows == self._runtime.rows.present_rows > 1 and _script_line(frame) is not None:
            loop.why_whole = f"the loop takes rows of its batches out of TensorFlow ({script_place()})"

    def _check_array(self, tensor: Any, array: Any, loop: DatasetLoop, frame: Any) -> None:
        """Compare an `array` that the script takes with other ranks', if it may be of this rank's part of a batch.

        Fewer rows than the part has may be the first ones, which rank 0 has as one process would.

        Raises:
            UserError: the ranks have others; on all ranks.
        """
        runtime = self._runtime
        place = _script_line(frame)
        if place is None or array.dtype.kind not in "biuf" or not runtime.compares_with_one_process:
            return
        if self._batches_of(tensor, loop).kind is not BatchKind.DIVIDED:
            return
        has_part = len(array) >= runtime.rows.present_rows
        parts = runtime.collectives.gather((has_part, array.shape, measures(array)), "arrays that the script takes")
        if all(part[0] for part in parts) and not all(_is_alike(part, parts[0]) for part in parts):
            raise UserError(
                f"the script takes an array out of TensorFlow ({Path(place[0]).name}, line {place[1]}) that is of a "
                "rank's part of a batch, and has taken none of its first batch, so that batches are divided: take it "
                "there too, or run the script with -n 1, or with --unjudged all the same"
            )

    def _agreed(self, value: Any, batches: Batches, place: tuple[str, int]) -> Any:
        """Return the number of all ranks for this rank's `value`, made in `batches`, which is taken out at `place`."""
        trial = self._runtime.collectives.trial
        has_ended = batches.last_tensor < math.inf
        is_doubled = batches.kind is BatchKind.DOUBLED
        if has_ended:
            owner = trial.position(self, (*place, value.dtype.name))
        else:
            self._taken[place] += 1
            owner = trial.position(self, (*place, self._taken[place]))
        if np.issubdtype(value.dtype, np.integer) and not (is_doubled or trial.is_sum(owner)):
            return value
        rank_numbers = self._runtime.collectives.gather((float(value), batches.rows), "numbers that the script takes")
        if value.dtype == np.bool_:
            return np.bool_(rank_numbers[0][0])
        if has_ended and is_doubled:
            doubled = DoubledBatch.of("reported numbers", [rank_numbers[-1][0]], [rank_numbers[0][0]])
            trial.note(owner, bool(doubled.is_sum()))
        if trial.is_sum(owner):
            agreed = sum(number for number, rows in rank_numbers if rows > 0)
        else:
            weighted = sum(number * rows for number, rows in rank_numbers if rows)
            agreed = weighted / sum(rows for _, rows in rank_numbers if rows)
        trial.observe(owner, "reported numbers", [float(value)], [agreed])
        return value.dtype.type(agreed)


def _is_alike(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Tell whether two arrays that `_check_array` compares are equal but for rounding."""
    _, shape, measured = first
    _, other_shape, others = second
    size = max(abs(float(measured[0])), abs(float(others[0])), 1e-7)
    return bool(shape == other_shape and np.allclose(measured, others, rtol=0.0, atol=_ROUNDING * size, equal_nan=True))


def _array(tensor: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    """Return the value of a `tensor` as NumPy asks for it: an array of this type."""
    return np.array(tensor._numpy(), dtype, copy=copy)


def _script_line(frame: Any) -> tuple[str, int] | None:
    """Return file and line of the code that asks for a value at `frame`; None for a library's, or another thread's."""
    while frame.f_back is not None and (
        frame.f_code is _array.__code__ or any(part in frame.f_code.co_filename for part in _CONVERTING)
    ):
        frame = frame.f_back
    file = frame.f_code.co_filename
    if threading.current_thread() != threading.main_thread() or is_library(file):
        return None
    return file, frame.f_lineno


def is_library(file: str) -> bool:
    """Tell whether the code in `file` is TensorFlow's, Keras's, NumPy's or ours.

    What a script executes as a text, or has installed, is the script's own here.
    """
    return file.startswith(_LIBRARIES) or any(part in file for part in _GENERATED)
