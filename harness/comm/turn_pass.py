"""The place in a step at which a rank may have to wait for its turn (`harness.base.turns`)."""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from harness.base import turns
from harness.comm.native_library import find_library
from harness.comm.reduction import GPU, in_sequence

_Boundary = ctypes.CFUNCTYPE(ctypes.c_int64)
_boundary: Any = None  # what the C++ part calls, which must be kept
built = 0
"""How many passes have been built or made, in a block."""


def pass_turn(gradients: Sequence[Any]) -> list[Any]:
    """Build, or eagerly make, the pass of a step whose `gradients` are to be exchanged next; nothing outside a block.

    By the native operation, which costs nothing that can be measured, else by way of Python. Return the operation that
    what is no exchange has to wait for, if there is one: exchanges wait by themselves.
    """
    global built
    current = turns.current_turns()
    if current is None:
        return []
    built += 1
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    if has_gpu and current.synchronise is None:
        current.synchronise = partial(synchronise, GPU)
    native = _operations(current)
    if native is None and tf.executing_eagerly():
        current.step()
        return []
    ready = [gradient for gradient in gradients[-1:] if isinstance(gradient, tf.Tensor)]  # the first to be known
    if has_gpu and not tf.executing_eagerly():
        with tf.device(GPU):  # what a boundary waits for is then put on the stream
            ready = [tf.group(*(gradient for gradient in gradients if isinstance(gradient, tf.Tensor)))]
    with tf.control_dependencies([] if tf.executing_eagerly() else ready), in_sequence() as sequence:
        if native is not None:
            passed = native.harness_turn(sequence=sequence)
        else:
            passed = tf.numpy_function(_pass, [sequence], tf.int64)
    return [] if passed is None or tf.executing_eagerly() else [passed]


def synchronise(device: str) -> None:
    """Wait until all that was given to `device` is done; in a graph of TensorFlow 1 nothing can be waited for."""
    if tf.executing_eagerly():
        with tf.device(device):
            tf.raw_ops.SyncDevice()


def _pass(_: object) -> np.int64:
    current = turns.current_turns()
    assert current is not None
    current.step()
    return np.int64(0)


def _operations(current: turns.Turns) -> Any:
    """Return the module of the native operation, which counts for `current` from now on; None without it."""
    global _boundary
    library = find_library().library
    if library is None:
        return None
    if _boundary is None:
        shared = turns.TurnState.in_dll(library.functions, "harness_turn_state")
        shared.left = current.state.left
        shared.last = current.state.last
        shared.paused = current.state.paused
        current.state = shared
        _boundary = _Boundary(current.boundary)
        library.functions.harness_take_turns(_boundary)
    return library.operations
