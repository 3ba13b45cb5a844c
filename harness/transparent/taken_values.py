"""What a training loop takes out of TensorFlow: single numbers are of all ranks' rows, and rows need whole batches."""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from harness.transparent.dataset_loop import DatasetLoop
from harness.transparent.patch import put, replace, script_place
from harness.transparent.runtime import Runtime

_CONVERTING = ("tensorflow/python/framework/ops.py", "/numpy/")
_GENERATED = ("<frozen", "__autograph_generated_file")
_LIBRARIES = (
    f"{Path(__file__).parents[1]}/",
    *(f"{Path(str(module.__file__)).parent}/" for module in (tf, keras, np)),
)


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

    A single number that the script takes while it has a divided batch is the mean over all ranks' rows, or their sum
    where the trial has seen that. One without fractions is the sum, or the rank's own. A truth value is rank 0's: all
    ranks take the same branch. The witness compares these numbers.

    A loop that takes the rows of its first batch out of TensorFlow, or their number, gets whole batches: nobody knows
    what it makes of them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._taken: Counter[Any] = Counter()  # numbers of the batch at hand, by the place where they are asked for

    def install(self) -> None:
        """Put the replacements in place."""
        replace(ops._EagerTensorBase, "_numpy", ("self",), self._value)
        replace(ops._EagerTensorBase, "__len__", ("self",), self._rows)
        replace(tf.Tensor, "__iter__", ("self",), self._rows)
        shape = ops._EagerTensorBase.shape.fget
        put(ops._EagerTensorBase, "shape", property(lambda tensor: self._shape(shape(tensor))))

    def begin_batch(self) -> None:
        """Take note that the loop takes its next batch."""
        self._taken.clear()

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
        if loop.part is not None:
            value = self._agreed(value, loop, place)
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

    def _agreed(self, value: Any, loop: DatasetLoop, place: tuple[str, int]) -> Any:
        """Return the number of all ranks for this rank's `value`, which the script takes out at `place`."""
        runtime = self._runtime
        trial = runtime.collectives.trial
        self._taken[place] += 1
        owner = trial.position(self, (*place, self._taken[place]))
        is_whole = np.issubdtype(value.dtype, np.integer)
        if is_whole and not (trial.active or trial.is_sum(owner)):
            return value
        rank_rows = 1.0 if loop.is_over and not loop.had_trial else float(runtime.rows.weight())
        rank_numbers = runtime.collectives.gather((float(value), rank_rows), "numbers that the script takes")
        if value.dtype == np.bool_:
            return np.bool_(rank_numbers[0][0])
        if trial.is_sum(owner):
            agreed = sum(number for number, rows in rank_numbers if rows > 0)
        else:
            weighted = sum(number * rows for number, rows in rank_numbers if rows)
            agreed = weighted / sum(rows for _, rows in rank_numbers if rows)
        trial.observe(owner, "reported numbers", [float(value)], [agreed])
        return value.dtype.type(agreed)


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
