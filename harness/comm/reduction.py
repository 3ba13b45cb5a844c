"""Sums of tensors over all ranks, inside a TensorFlow graph: what a reduction can do, through Python and natively."""

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

from harness.base import turns
from harness.base.errors import RunError, SharedError
from harness.base.setting_names import setting
from harness.comm.lost_ranks import noting_loss
from harness.schema.message_cost import Algorithm
from harness.schema.record_notes import Note, NoteCode

if TYPE_CHECKING:
    import keras
    from mpi4py import MPI


class Reduction(Protocol):
    """One grouped allreduce: all tensors of a step in one call.

    `name` says what it is in the run record; `notes` why it is not what was wanted, and what it was chosen by.
    `overlapped`: sums go on while later gradients are computed.
    """

    algorithm: Algorithm
    overlapped: bool
    name: str
    notes: tuple[Note, ...]

    def sum(self, tensors: "list[tf.Tensor]", scale: float = 1.0, label: str = "sum") -> "list[tf.Tensor]":
        """Return the element-wise sums over all ranks of scale * tensor, for use in a graph.

        All tensors are of one dtype, float32 or float64, and of known shapes; `scale` is this rank's own. `label`
        says what is summed: ranks that meet in sums of another label, size or dtype are ended with a sentence.
        """

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


def differentiable_sum(reduction: Reduction, vector: tf.Tensor, label: str) -> tf.Tensor:
    """Return the sum over all ranks of `vector`, for a network's layers: its gradient is summed over all ranks too."""

    @tf.custom_gradient
    def summed(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return reduction.sum([values], label=label)[0], lambda upstream: reduction.sum(
            [upstream], label=f"{label}, backward"
        )[0]

    return summed(vector)


RECENT_CALLS = 32  # calls, as Group::kRecent


# Exchanges in the order in which they were built, on every rank.

CPU = "CPU:0"
GPU = "GPU:0"
_HANDLE = "harness_sequence"


@contextmanager
def in_sequence(*, unordered: bool = False, device: str = CPU) -> "Iterator[tf.Tensor]":
    """Yield a resource handle, one for all exchanges on `device`, for the exchange built in the block to take.

    TensorFlow runs independent operations in any order, so that two ranks could meet in different exchanges.
    Operations that take one resource run in the order in which they were built, across nested functions, conditionals
    and loops ("automatic control dependencies"). In a TensorFlow-1 graph, which has none of these, the
    operation waits for the last one built that took the handle. Nothing is ever stored under the handle.

    In such a graph an `unordered` exchange waits for no other one, and no other one for it.

    What is built in the block runs on `device`, whatever device the script has chosen around it: TensorFlow copies
    tensors of another device before and after it.

    TensorFlow places an operation where the handle that it takes is, so that every device with exchanges has a handle.
    They are one sequence all the same: a function with an exchange on any device captures all handles, and so do its
    callers, and an exchange waits for the last one that was built on any of them.
    """
    devices = exchange_devices()
    with tf.init_scope():
        eager = tf.executing_eagerly()
        outer = tf.compat.v1.get_default_graph()
        handles = {name: _eager_handle(name) if eager else _graph_handle(outer, name) for name in devices}
    if tf.executing_eagerly():
        with tf.device(device):
            yield handles[device]
        return
    graph = tf.compat.v1.get_default_graph()
    if unordered and not graph.building_function:
        with tf.device(CPU):
            yield tf.constant(0.0)
        return
    if graph.building_function:
        handles = {name: graph.capture(handle) for name, handle in handles.items()}
    users = {operation for handle in handles.values() for operation in handle.consumers()}
    last = next((operation for operation in reversed(graph.get_operations()) if operation in users), None)
    with graph.control_dependencies([] if last is None else [last]), tf.device(device):
        yield handles[device]


@functools.cache
def exchange_devices() -> tuple[str, ...]:
    """Return the devices of this process that exchanges run on: the processor, and the GPU where it has one."""
    return (CPU, GPU) if tf.config.list_logical_devices("GPU") else (CPU,)


@functools.cache
def _eager_handle(device: str) -> tf.Tensor:
    with tf.device(device):
        return tf.raw_ops.VarHandleOp(shape=[], dtype=tf.float32, shared_name=_HANDLE)


def _graph_handle(graph: tf.Graph, device: str) -> tf.Tensor:
    """Return the handle of `device` in a TensorFlow-1 graph, made on first use."""
    name = _HANDLE if device == CPU else f"{_HANDLE}_{device.replace(':', '_')}"
    try:
        return graph.get_tensor_by_name(f"{name}:0")
    except KeyError:
        with graph.name_scope(""), graph.device(device), graph.control_dependencies(None):
            return tf.raw_ops.VarHandleOp(shape=[], dtype=tf.float32, shared_name=_HANDLE, name=name)


# Sums over all ranks by way of Python and MPI_Allreduce: slow, and there wherever mpi4py is.

_MESSAGE = 2**30  # elements: MPI counts those of one message in an int


class BridgeReduction:
    """Pack all tensors into one vector, hand it to ``MPI_Allreduce`` from Python, unpack.

    Works wherever mpi4py does. It needs the interpreter lock and two copies, which cost more than the
    allreduce of a small network.
    """

    algorithm = Algorithm.BRIDGE
    overlapped = False
    name = "numpy_function bridge"

    def __init__(self, comm: "MPI.Intracomm", notes: tuple[Note, ...] = ()) -> None:
        self.notes = notes
        self._comm = comm
        self._calls: list[tuple[float, float]] = []
        self._recent: deque[list[float]] = deque(maxlen=RECENT_CALLS)
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
        return [
            tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
            for part, tensor in zip(parts, tensors, strict=True)
        ]

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return entry and exit (s, perf_counter) of every call since the last take."""
        calls = self._calls
        self._calls = []
        return np.array(calls, np.float64).reshape(-1, 2)

    def recent(self) -> npt.NDArray[np.float64]:
        """Return number, bytes, entry and exit of the last calls, oldest first; the exit is 0 inside a call."""
        return np.array([list(call) for call in self._recent]).reshape(-1, 4)

    def _allreduce(self, label: str, packed: npt.NDArray[np.generic], *_: object) -> npt.NDArray[np.generic]:
        entry = turns.clock()
        self._entered += 1
        self._recent.append([self._entered, packed.nbytes, entry, 0.0])
        total = np.empty_like(packed)
        with noting_loss():
            self._compare(label, packed)
            for begin in range(0, packed.size, _MESSAGE):
                self._comm.Allreduce(packed[begin : begin + _MESSAGE], total[begin : begin + _MESSAGE])
        left = turns.clock()
        self._recent[-1][3] = left
        self._calls.append((entry, left))
        return total

    def _compare(self, label: str, packed: npt.NDArray[np.generic]) -> None:
        """End all ranks, with a sentence, when they are about to sum different things."""
        from mpi4py import MPI

        name = f"'{label}' of {packed.size} {packed.dtype}"
        call = np.array([self._entered, zlib.crc32(name.encode())], np.int64)
        extremes = np.empty(4, np.int64)
        self._comm.Allreduce(np.concatenate([call, -call]), extremes, op=MPI.MAX)
        if (extremes[:2] == -extremes[2:]).all():
            return
        names = self._comm.allgather(f"{name} in call {self._entered}")
        if self._comm.Get_rank() == 0:
            odd = next(rank for rank, text in enumerate(names) if text != names[0])
            print(
                f"harness: the ranks meet in different exchanges: rank 0 exchanges {names[0]}, rank {odd} "
                f"{names[odd]}; all ranks must make the same exchanges in the same order",
                file=sys.stderr,
                flush=True,
            )
            self._comm.Abort(1)
        self._comm.Barrier()  # until rank 0 has spoken


# Gradients that travel as 16-bit floats: half the bytes, and a stated loss of precision.

_TYPES = {"bf16": tf.bfloat16, "fp16": tf.float16}


# bfloat16 has 8 significant bits, float16 has 11: rounding alone is well below this, lost small values are not.
_MOST = 0.02


class WireReduction:
    """Sums of float32 tensors by way of another reduction's sums of 16-bit ones, for use in a graph.

    The ranks' values are added up in float32 and rounded once (between hosts once more, where sums are node-aware).
    NCCL adds them in 16 bits, rounded at every rank.
    """

    def __init__(self, inner: Reduction, wire: str) -> None:
        self._inner = inner
        self._wire = wire
        self.algorithm = inner.algorithm
        self.name = f"{inner.name}, {wire} on the wire"
        self.overlapped = inner.overlapped
        self.notes = inner.notes
        self.take_calls = inner.take_calls
        self.recent = inner.recent
        self._checks = 0
        self._worst = 0.0

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0, label: str = "sum") -> list[tf.Tensor]:
        """Return the element-wise sums over all ranks of scale * tensor, of the tensors' dtype."""
        kind = _TYPES[self._wire]
        scaled = [tf.cast(tensor * tf.cast(scale, tensor.dtype), kind) for tensor in tensors]
        sums = self._inner.sum(scaled, label=label)
        return [tf.cast(total, tensor.dtype) for total, tensor in zip(sums, tensors, strict=True)]

    def check(self, gradients: list[tf.Tensor], whose: str) -> None:
        """Compare the sums of `gradients` with those in their own precision, and note the largest error so far.

        `whose` says which gradients they are.

        Raises:
            SharedError: a RunError on every rank, when the norm of the difference is above 2 % of the sums' norm.
        """
        exact = _vector(self._inner.sum(gradients, label="gradients in float32"))
        size = float(np.linalg.norm(exact))
        error = float(np.linalg.norm(_vector(self.sum(gradients, label="gradients")) - exact)) / (size or 1.0)
        if not error <= _MOST:
            raise SharedError(
                RunError(
                    f"{setting('wire', self._wire)} loses {100 * error:.3g} % of the gradients of {whose}, more than "
                    f"{100 * _MOST:g} %: use another wire type or leave it out"
                )
            )
        self._checks += 1
        self._worst = max(self._worst, error)
        values: dict[str, str | int | float] = {"wire": self._wire}
        values |= {"percent": 100 * self._worst, "batches": self._checks}
        self.notes = (*self._inner.notes, Note(code=NoteCode.WIRE_ERROR, values=values))


def _vector(tensors: list[tf.Tensor]) -> npt.NDArray[np.float64]:
    return np.concatenate([np.asarray(tensor, np.float64).ravel() for tensor in tensors])
