"""Sums of tensors over all ranks, inside a TensorFlow graph: what a reduction can do, through Python and natively."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.schema.message_cost import Algorithm
from harness.schema.record_notes import Note

if TYPE_CHECKING:
    import keras


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
