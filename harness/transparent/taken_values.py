"""What a training loop takes out of TensorFlow: single numbers are of all ranks' rows, and rows need whole batches."""

import bisect
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from harness.transparent.buffer_slot import BufferSlot
from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.patch import put, replace, script_place
from harness.transparent.probe import DoubledBatch
from harness.transparent.runtime import Runtime

_CONVERTING = ("tensorflow/python/framework/ops.py", "/numpy/", __file__)
_GENERATED = ("<frozen", "__autograph_generated_file")
_LIBRARIES = (
    f"{Path(__file__).parents[1]}/",
    *(f"{Path(str(module.__file__)).parent}/" for module in (tf, keras, np)),
)


class EndedBatches(NamedTuple):
    """Batches of a training loop that have ended, one after the other.

    `last_tensor`: the number of the last tensor that there was then. `rows`: how many this rank stood for in each, None
    where all ranks have computed the same. `are_doubled`: whether ranks above 0 had every row twice.
    """

    last_tensor: int
    rows: float | None
    are_doubled: bool


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
    what it makes of them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._taken: Counter[Any] = Counter()  # numbers of the batch at hand, by the place where they are asked for
        self._ended: list[EndedBatches] = []

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
        ended = EndedBatches(ops.uid(), self._rank_rows(loop), self._runtime.collectives.trial.active)
        if self._ended and self._ended[-1][1:] == ended[1:]:
            self._ended.pop()
        self._ended.append(ended)

    def _rank_rows(self, loop: DatasetLoop) -> float | None:
        """Return for how many rows this rank stands in what is made now; None where all ranks make the same."""
        if loop.part is None:
            return None
        if loop.batch is None and not loop.had_trial:  # it makes something of all its divided batches
            return 1.0
        return float(self._runtime.rows.weight())

    def _ended_with(self, tensor: Any) -> EndedBatches | None:
        """Return the batches of which one was at hand when `tensor` was made; None if that has not ended."""
        index = bisect.bisect_left(self._ended, tensor._id, key=lambda ended: ended.last_tensor)
        return self._ended[index] if index < len(self._ended) else None

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
            return value
        place = _script_line(frame)
        if place is None or not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype == tf.bool):
            return value
        ended = self._ended_with(tensor)
        rank_rows = self._rank_rows(loop) if ended is None else ended.rows
        if rank_rows is not None:
            value = self._agreed(value, rank_rows, place, ended)
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

    def _agreed(self, value: Any, rank_rows: float, place: tuple[str, int], ended: EndedBatches | None) -> Any:
        """Return the number of all ranks for this rank's `value`, which the script takes out at `place`.

        It is of `rank_rows` rows, and was made in batches that have `ended`, or in the one at hand.
        """
        trial = self._runtime.collectives.trial
        if ended is None:
            self._taken[place] += 1
            owner = trial.position(self, (*place, self._taken[place]))
            is_doubled = trial.active
        else:
            owner = trial.position(self, (*place, value.dtype.name))
            is_doubled = ended.are_doubled
        if np.issubdtype(value.dtype, np.integer) and not (is_doubled or trial.is_sum(owner)):
            return value
        rank_numbers = self._runtime.collectives.gather((float(value), rank_rows), "numbers that the script takes")
        if value.dtype == np.bool_:
            return np.bool_(rank_numbers[0][0])
        if ended is not None and is_doubled:
            doubled = DoubledBatch.of("reported numbers", [rank_numbers[-1][0]], [rank_numbers[0][0]])
            trial.note(owner, bool(doubled.is_sum()))
        if trial.is_sum(owner):
            agreed = sum(number for number, rows in rank_numbers if rows > 0)
        else:
            weighted = sum(number * rows for number, rows in rank_numbers if rows)
            agreed = weighted / sum(rows for _, rows in rank_numbers if rows)
        trial.observe(owner, "reported numbers", [float(value)], [agreed])
        return value.dtype.type(agreed)


def _array(tensor: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    """Return the value of a `tensor` as NumPy asks for it: an array of this type."""
    return np.array(tensor._numpy(), dtype, copy=copy)


def _script_line(frame: Any) -> tuple[str, int] | None:
    """Return file and line of the code that asks for a value at `frame`; None for a library's, or another thread's."""
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _CONVERTING):
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
