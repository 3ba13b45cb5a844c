"""Sums of tensors over all ranks, inside a TensorFlow graph: what a reduction can do, and the one through Python."""

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

if TYPE_CHECKING:
    import keras
    from mpi4py import MPI


class Reduction(Protocol):
    """One grouped allreduce: all tensors of a step in one call, so that no two calls can cross.

    `name` says what it is in the run record; `note` why it is not what was wanted, empty otherwise; `descends`
    whether it has `descend`, the fastest way from gradients to weights for plain gradient descent.
    """

    name: str
    note: str
    descends: bool

    def sum(self, tensors: "list[tf.Tensor]", scale: float = 1.0) -> "list[tf.Tensor]":
        """Return the element-wise sums over all ranks of scale * tensor, for use in a graph.

        All tensors are of one dtype, float32 or float64, and of known shapes; `scale` is this rank's own.
        """

    def descend(self, variables: "list[keras.Variable]", gradients: "list[tf.Tensor]", rate: "tf.Tensor") -> None:
        """Subtract rate times the sums over all ranks of the gradients from the variables, in one operation."""

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 2]: entry and exit (s, perf_counter) of every call since the last take."""

    def recent(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 4]: number, bytes, entry and exit of the last calls, oldest first.

        The exit is 0 while the call goes on. Any thread may ask at any time.
        """


_FIRST = 1024


class CallLog:
    """Entry and exit of synchronisation calls, in seconds on this rank's clock, for one epoch at a time."""

    def __init__(self) -> None:
        self._times = np.empty((_FIRST, 2))
        self._count = 0

    def add(self, entry: float, left: float) -> None:
        """Append one call."""
        if self._count == len(self._times):
            self._times = np.concatenate([self._times, np.empty_like(self._times)])
        self._times[self._count] = entry, left
        self._count += 1

    def take(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 2] (entry, exit) since the last take, and start anew."""
        times = self._times[: self._count].copy()
        self._count = 0
        return times


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


class OrderedReduction:
    """A reduction whose calls in one graph wait for each other in the order in which they were traced.

    TensorFlow runs independent operations in any order: two ranks would meet in different calls. The sums have
    a gradient, the sum over all ranks of the incoming gradients, so that a network may call it in its layers.
    """

    def __init__(self, reduction: "Reduction") -> None:
        self.name, self.note = reduction.name, reduction.note
        self._reduction = reduction
        self._last: Any = None

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Return the sum over all ranks of `vector`, float32 or float64 of known shape."""

        @tf.custom_gradient
        def summed(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return self._sum(values), self._sum

        return summed(vector)

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return entry and exit (s, perf_counter) of every call since the last take."""
        return self._reduction.take_calls()

    def _sum(self, values: tf.Tensor) -> tf.Tensor:
        before = self._last
        here = before is not None and before.graph is tf.compat.v1.get_default_graph()
        with tf.control_dependencies([before] if here else []):
            result = self._reduction.sum([values])[0]
        self._last = result.op
        return result
