"""Exchanges in the order in which they were built, on every rank."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

_HANDLE = "harness_sequence"


@contextmanager
def in_sequence(*, unordered: bool = False) -> "Iterator[tf.Tensor]":
    """Yield a resource handle, one for all exchanges of the process, for the exchange built in the block to take.

    TensorFlow runs independent operations in any order, so that two ranks could meet in different exchanges.
    Operations that take one resource run in the order in which they were built, across nested functions, conditionals
    and loops ("automatic control dependencies"). In a TensorFlow-1 graph, which has none of these, the
    operation waits for the last one built that took the handle. Nothing is ever stored under the handle.

    In such a graph an `unordered` exchange waits for no other one, and no other one for it.

    What is built in the block runs on the processor, whatever device the script has chosen around it: TensorFlow copies
    tensors of another device to host memory before and back after it.
    """
    with tf.init_scope():
        handle = _eager_handle() if tf.executing_eagerly() else _graph_handle(tf.compat.v1.get_default_graph())
    if tf.executing_eagerly():
        with tf.device("CPU:0"):
            yield handle
        return
    graph = tf.compat.v1.get_default_graph()
    if unordered and not graph.building_function:
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
