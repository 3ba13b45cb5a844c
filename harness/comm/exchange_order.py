"""Exchanges in the order in which they were built, on every rank."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

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
