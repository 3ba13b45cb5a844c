"""Gradients that travel as 16-bit floats: half the bytes, and a stated loss of precision."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import RunError, SharedError
from harness.comm.reduction import Reduction
from harness.schema.record_notes import Note, NoteCode

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
                    f"WIRE={self._wire} loses {100 * error:.3g} % of the gradients of {whose}, more than "
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
