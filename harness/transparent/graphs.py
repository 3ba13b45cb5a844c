"""What an operation of a TensorFlow-1 graph waits for, and what that says of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from harness.base.errors import UserError

_WRITES = ("Assign", "AssignV2", "AssignVariableOp", "RestoreV2")


def kinds(op: Any, averaging: set[str]) -> frozenset[str]:
    """Return what running `op` does: ``trains``, by operations in `averaging`, and ``writes`` variables otherwise."""
    found = _upstream([op])
    trains = {"trains"} if any(each.name in averaging for each in found) else set()
    return frozenset(trains | ({"writes"} if any(each.type in _WRITES for each in found) else set()))


def refuse_statistics(gradients: Sequence[tf.Tensor]) -> None:
    """Refuse statistics over rows in a graph: every rank would normalise with those of its own.

    Raises:
        UserError: batch normalisation, or `tf.nn.moments` over the first dimension, comes before the gradients.
    """
    if tf.executing_eagerly():
        return
    for op in _upstream([gradient.op for gradient in gradients]):
        fused = op.type.startswith("FusedBatchNorm") and "Grad" not in op.type and op.get_attr("is_training")
        axes = tf.get_static_value(op.inputs[1]) if op.type == "Mean" and "moments" in op.name else None
        if fused or (axes is not None and 0 in np.atleast_1d(axes)):
            raise UserError(
                f"batch normalisation '{op.name}' of a TensorFlow-1 graph has other statistics on every rank: leave it "
                "out, or use Keras's BatchNormalization in fit or in a loop"
            )


def _upstream(ops: Sequence[Any]) -> list[Any]:
    """Return `ops` and everything that they wait for."""
    waiting, seen = list(ops), {op.name: op for op in ops}
    while waiting:
        current = waiting.pop()
        for other in [*(tensor.op for tensor in current.inputs), *current.control_inputs]:
            if other.name not in seen:
                seen[other.name] = other
                waiting.append(other)
    return list(seen.values())
