"""The reduction through Python: one `numpy_function` that calls mpi4py on the packed tensors."""

import math
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.comm.calls import CallLog

if TYPE_CHECKING:
    import keras
    from mpi4py import MPI

_RECENT = 32  # calls


class BridgeReduction:
    """Pack all tensors into one vector, hand it to ``MPI_Allreduce`` from Python, unpack.

    Works wherever mpi4py does. It needs the interpreter lock and two copies, which cost more than the
    allreduce of a small network.
    """

    name = "numpy_function bridge"
    descends = False

    def __init__(self, comm: "MPI.Intracomm", note: str = "") -> None:
        self.note = note
        self._comm = comm
        self._calls = CallLog()
        self._recent: deque[list[float]] = deque(maxlen=_RECENT)
        self._entered = 0

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0) -> list[tf.Tensor]:
        """Return the element-wise sums over all ranks of scale * tensor; one dtype, shapes known."""
        packed = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        if scale != 1.0:
            packed *= scale
        total = tf.numpy_function(self._allreduce, [packed], packed.dtype)
        total.set_shape(packed.shape)
        parts = tf.split(total, [math.prod(tensor.shape) for tensor in tensors])
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def descend(self, variables: "list[keras.Variable]", gradients: list[tf.Tensor], rate: tf.Tensor) -> None:
        """Never asked for: `descends` is False."""
        raise AssertionError("the bridge only adds up")

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return entry and exit (s, perf_counter) of every call since the last take."""
        return self._calls.take()

    def recent(self) -> npt.NDArray[np.float64]:
        """Return number, bytes, entry and exit of the last calls, oldest first; the exit is 0 inside a call."""
        return np.array([list(call) for call in self._recent]).reshape(-1, 4)

    def _allreduce(self, packed: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        entry = time.perf_counter()
        self._entered += 1
        self._recent.append([self._entered, packed.nbytes, entry, 0.0])
        total = np.empty_like(packed)
        self._comm.Allreduce(packed, total)
        left = time.perf_counter()
        self._recent[-1][3] = left
        self._calls.add(entry, left)
        return total
