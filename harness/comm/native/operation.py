"""The reduction as a native TensorFlow operation, in a graph or called directly to time it."""

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import RunError

if TYPE_CHECKING:
    import keras
    from mpi4py import MPI


Sum = Callable[[int, int], None]
"""Takes the address and the number of float32 values."""

WAYS = ("messages", "native", "node-aware")  # by the numbers of harness::Way

_NUMBERS = itertools.count(1 << 32)  # of groups: training counts its own from 0


@contextmanager
def direct_sum(comm: "MPI.Intracomm", library: Path, *, largest: int, way: str) -> Iterator[tuple[str, Sum]]:
    """Yield the way that is taken, and a function that sums values over all ranks in place.

    `way` is one of WAYS; where the ranks cannot take it, another is taken. `largest` is the bytes of the largest
    call. Opened and closed on all ranks together. The function raises a RunError when MPI fails.
    """
    import tensorflow as tf

    tf.load_op_library(str(library))  # before ctypes: TensorFlow knows only the operations of libraries it loads first
    native = ctypes.CDLL(str(library))
    number = ctypes.c_int64(next(_NUMBERS))
    taken = native.harness_open(number, comm.py2f(), ctypes.c_uint64(largest), WAYS.index(way))

    def total(address: int, count: int) -> None:
        if native.harness_sum(number, ctypes.c_void_p(address), ctypes.c_uint64(count)):
            raise RunError(f"the native sum of {4 * count} bytes failed")

    try:
        yield WAYS[taken], total
    finally:
        native.harness_close(number)


_GROUPS = itertools.count()
_RECENT = 32  # Group::kRecent
_NAMES = {"messages": "MPI_Allreduce", "native": "shared memory", "node-aware": "node-aware"}


class NativeReduction:
    """One grouped allreduce inside the graph, in one of the WAYS; by messages where the ranks cannot take it.

    `largest` is the bytes of the largest call to be made; larger ones go by messages.
    """

    descends = True

    def __init__(self, comm: "MPI.Intracomm", library: Path, *, largest: int, way: str = "native") -> None:
        self._operation: Any = tf.load_op_library(str(library))
        self._library = ctypes.CDLL(str(library))
        self._library.harness_calls.restype = ctypes.c_uint64
        self._library.harness_recent.restype = ctypes.c_uint64
        self._group = next(_GROUPS)
        self._number = ctypes.c_int64(self._group)
        mode = self._library.harness_open(self._number, comm.py2f(), ctypes.c_uint64(largest), WAYS.index(way))
        self.way = WAYS[mode]
        self.note = ""
        self.name = f"native operation, {_NAMES[self.way]}"

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0) -> list[tf.Tensor]:
        """Return the element-wise sums over all ranks of scale * tensor; all of one dtype."""
        return list(self._operation.harness_allreduce(values=tensors, group=self._group, scale=scale))

    def descend(self, variables: "list[keras.Variable]", gradients: list[tf.Tensor], rate: tf.Tensor) -> None:
        """Subtract rate times the sums over all ranks of the gradients from the variables; all of one dtype."""
        self._operation.harness_allreduce_descend(
            variables=[variable.value.handle for variable in variables],
            gradients=gradients,
            rate=tf.cast(rate, gradients[0].dtype),
            group=self._group,
        )

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return entry and exit (s, perf_counter) of every call since the last take."""
        times = np.empty((self._library.harness_calls(self._number), 2))
        self._library.harness_take(self._number, times.ctypes.data_as(ctypes.POINTER(ctypes.c_double)))
        return times

    def recent(self) -> npt.NDArray[np.float64]:
        """Return number, bytes, entry and exit of the last calls, oldest first; the exit is 0 inside a call."""
        calls = np.empty((_RECENT, 4))
        count = self._library.harness_recent(self._number, calls.ctypes.data_as(ctypes.POINTER(ctypes.c_double)))
        return calls[:count]
