"""Sums of tensors over all ranks, inside a TensorFlow graph: what a reduction can do, and the one through Python."""

import functools
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.turns import clock

if TYPE_CHECKING:
    import keras
    from mpi4py import MPI


class Reduction(Protocol):
    """One grouped allreduce: all tensors of a step in one call.

    `name` says what it is in the run record; `note` why it is not what was wanted, empty otherwise. `way` is the choice
    of HARNESS_REDUCTION that it is.
    """

    way: str
    name: str
    note: str

    def sum(self, tensors: "list[tf.Tensor]", scale: float = 1.0, label: str = "sum") -> "list[tf.Tensor]":
        """Return the element-wise sums over all ranks of scale * tensor, for use in a graph.

        All tensors are of one dtype, float32 or float64, and of known shapes; `scale` is this rank's own. `label`
        says what is summed: ranks that meet in sums of another label, size or dtype are ended with a sentence.
        """

    def reopen(self, comm: "MPI.Intracomm") -> None:
        """Sum over the ranks of `comm`, in graphs that are built already too; on all of them together."""

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 2]: entry and exit (s, perf_counter) of every call since the last take."""

    def recent(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 4]: number, bytes, entry and exit of the last calls, oldest first.

        The exit is 0 while the call goes on. Any thread may ask at any time.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """One step of an optimizer, after `steps` (int64) steps: `rule` is sgd, momentum or adam.

    `first` and `second` are its own values for every variable: velocities, or the two moments. `decay1` is momentum or
    Adam's beta_1, `decay2` its beta_2; `rate` a scalar.
    """

    rule: str
    rate: "tf.Tensor"
    steps: "tf.Tensor"
    first: "Sequence[keras.Variable]" = ()
    second: "Sequence[keras.Variable]" = ()
    decay1: float = 0.0
    decay2: float = 0.0
    epsilon: float = 0.0


@runtime_checkable
class Updater(Protocol):
    """What a reduction has besides when it can update weights in the same pass."""

    def update(
        self, step: Descent, variables: "list[keras.Variable]", gradients: "list[tf.Tensor]", label: str
    ) -> None:
        """Make `step` on the variables by the sums over all ranks of the gradients, in one operation."""


_HANDLE = "harness_sequence"


@contextmanager
def in_sequence(*, apart: bool = False) -> "Iterator[tf.Tensor]":
    """Yield a resource handle, one for all exchanges of the process, for the exchange built in the block to take.

    Of itself TensorFlow runs independent operations in any order, so that two ranks could meet in different
    exchanges. Operations that take one resource run in the order in which they were built, across nested functions,
    conditionals and loops ("automatic control dependencies"). In a TensorFlow-1 graph, which has none of these, the
    operation waits for the last one built that took the handle. Nothing is ever stored under the handle.

    There, one that is `apart` has a run of its own: it waits for none, and none for it.

    What is built in the block runs on the processor, whatever device the script has chosen around it: TensorFlow copies
    tensors of another device to host memory before and back behind it.
    """
    with tf.init_scope():
        handle = _eager_handle() if tf.executing_eagerly() else _graph_handle(tf.compat.v1.get_default_graph())
    if tf.executing_eagerly():
        with tf.device("CPU:0"):
            yield handle
        return
    graph = tf.compat.v1.get_default_graph()
    if apart and not graph.building_function:
        with tf.device("CPU:0"):
            yield tf.constant(0.0)
        return
    local = graph.capture(handle) if graph.building_function else handle
    users = set(local.consumers())
    last = next((operation for operation in reversed(graph.get_operations()) if operation in users), None)
    with graph.control_dependencies([] if last is None else [last]), tf.device("CPU:0"):
        yield local


@functools.cache
def _eager_handle() -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.raw_ops.VarHandleOp(shape=[], dtype=tf.float32, shared_name=_HANDLE)


def _graph_handle(graph: tf.Graph) -> tf.Tensor:
    """Return the handle in a TensorFlow-1 graph, made on first use."""
    try:
        return graph.get_tensor_by_name(f"{_HANDLE}:0")
    except KeyError:
        with graph.name_scope(""), graph.device("CPU:0"), graph.control_dependencies(None):
            return tf.raw_ops.VarHandleOp(shape=[], dtype=tf.float32, shared_name=_HANDLE, name=_HANDLE)


def differentiable_sum(reduction: Reduction, vector: tf.Tensor, label: str) -> tf.Tensor:
    """Return the sum over all ranks of `vector`, for a network's layers: its gradient is summed over all ranks too."""

    @tf.custom_gradient
    def summed(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return reduction.sum([values], label=label)[0], lambda upstream: reduction.sum(
            [upstream], label=f"{label}, backward"
        )[0]

    return summed(vector)


_RECENT = 32  # calls
_MESSAGE = 2**30  # elements: MPI counts those of one message in an int


class BridgeReduction:
    """Pack all tensors into one vector, hand it to ``MPI_Allreduce`` from Python, unpack.

    Works wherever mpi4py does. It needs the interpreter lock and two copies, which cost more than the
    allreduce of a small network.
    """

    way = "bridge"
    name = "numpy_function bridge"

    def __init__(self, comm: "MPI.Intracomm", note: str = "") -> None:
        self.note = note
        self._comm = comm
        self._calls: list[tuple[float, float]] = []
        self._recent: deque[list[float]] = deque(maxlen=_RECENT)
        self._entered = 0

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0, label: str = "sum") -> list[tf.Tensor]:
        """Return the element-wise sums over all ranks of scale * tensor; one dtype, shapes known."""
        packed = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        if scale != 1.0:
            packed *= scale
        if tf.executing_eagerly():
            total = tf.constant(self._allreduce(label, packed.numpy()))
        else:
            with in_sequence() as sequence:
                total = tf.numpy_function(functools.partial(self._allreduce, label), [packed, sequence], packed.dtype)
        total.set_shape(packed.shape)
        parts = tf.split(total, tf.stack([tf.size(tensor) for tensor in tensors]), num=len(tensors))
        return [tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
                for part, tensor in zip(parts, tensors, strict=True)]  # fmt: skip

    def reopen(self, comm: "MPI.Intracomm") -> None:
        """Sum over the ranks of `comm` from now on."""
        self._comm, self._entered = comm, 0

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return entry and exit (s, perf_counter) of every call since the last take."""
        calls, self._calls = self._calls, []
        return np.array(calls, np.float64).reshape(-1, 2)

    def recent(self) -> npt.NDArray[np.float64]:
        """Return number, bytes, entry and exit of the last calls, oldest first; the exit is 0 inside a call."""
        return np.array([list(call) for call in self._recent]).reshape(-1, 4)

    def _allreduce(self, label: str, packed: npt.NDArray[np.generic], *_: object) -> npt.NDArray[np.generic]:
        entry = clock()
        self._entered += 1
        self._recent.append([self._entered, packed.nbytes, entry, 0.0])
        self._compare(label, packed)
        total = np.empty_like(packed)
        for begin in range(0, packed.size, _MESSAGE):
            self._comm.Allreduce(packed[begin : begin + _MESSAGE], total[begin : begin + _MESSAGE])
        left = clock()
        self._recent[-1][3] = left
        self._calls.append((entry, left))
        return total

    def _compare(self, label: str, packed: npt.NDArray[np.generic]) -> None:
        """End all ranks, with a sentence, when they are about to sum different things."""
        from mpi4py import MPI

        name = f"'{label}' of {packed.size} {packed.dtype}"
        own = np.array([self._entered, zlib.crc32(name.encode())], np.int64)
        extremes = np.empty(4, np.int64)
        self._comm.Allreduce(np.concatenate([own, -own]), extremes, op=MPI.MAX)
        if (extremes[:2] == -extremes[2:]).all():
            return
        names = self._comm.allgather(f"{name} in call {self._entered}")
        if self._comm.Get_rank() == 0:
            other = next(rank for rank, found in enumerate(names) if found != names[0])
            print(
                f"harness: the ranks meet in different exchanges: rank 0 exchanges {names[0]}, rank {other} "
                f"{names[other]}; all ranks must make the same exchanges in the same order",
                file=sys.stderr,
                flush=True,
            )
            self._comm.Abort(1)
        self._comm.Barrier()  # until rank 0 has spoken
