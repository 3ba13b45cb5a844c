"""The pass of every training step at which a rank may have to wait for its turn (`harness.base.turns`)."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from harness.base import turns
from harness.comm.autotune import build_native
from harness.comm.reduction import in_sequence

_Boundary = ctypes.CFUNCTYPE(ctypes.c_int64)
_native: tuple[Any, Any] | None = None  # the operations' module, and what it calls, which must be kept


def pass_turn(gradients: Sequence[Any]) -> None:
    """Build, or eagerly make, the pass of a step whose `gradients` are to be exchanged next; nothing outside a block.

    By the native operation, which costs nothing that can be measured, else by way of Python.
    """
    current = turns.current()
    if current is None:
        return
    native = _operations(current)
    if native is None and tf.executing_eagerly():
        current.step()
        return
    ready = [gradient for gradient in gradients[-1:] if isinstance(gradient, tf.Tensor)]  # the first to be known
    with tf.control_dependencies([] if tf.executing_eagerly() else ready), in_sequence() as sequence:
        if native is not None:
            native.harness_turn(sequence=sequence)
        else:
            tf.numpy_function(_pass, [sequence], tf.int64)


def _pass(_: object) -> np.int64:
    current = turns.current()
    assert current is not None
    current.step()
    return np.int64(0)


def _operations(current: turns.Turns) -> Any:
    """Return the module of the native operation, which counts for `current` from now on; None without it."""
    global _native
    library = None if os.environ.get("HARNESS_REDUCTION") == "bridge" else build_native()[0]
    if library is None:
        return None
    if _native is None:
        module, loaded = tf.load_op_library(str(library)), ctypes.CDLL(str(library))
        shared = turns.TurnState.in_dll(loaded, "harness_turn_state")
        shared.left, shared.last, shared.paused = current.state.left, current.state.last, current.state.paused
        current.state, called = shared, _Boundary(current.boundary)
        loaded.harness_take_turns(called)
        _native = module, called
    return _native[0]
