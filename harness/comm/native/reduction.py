"""The reduction as a native TensorFlow operation."""

import ctypes
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.comm.direct import WAYS

if TYPE_CHECKING:
    import keras
    from mpi4py import MPI

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
