"""Whether an error says that another rank is lost, and why: by codes of the C++ part and of MPI, never by words."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.base.errors import RunError, SharedError
from harness.schema.record import LossReason

_BY_NUMBER = (None, LossReason.GONE, LossReason.LATE, LossReason.GAVE_UP, LossReason.MPI)  # of harness::Loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Why a call cannot end. `rank` is the lost rank's number among those that made the call, None if not known."""

    reason: LossReason
    rank: int | None = None


class LostRankError(RunError):
    """A call of the C++ part that cannot end, as a rank is lost."""

    def __init__(self, sentence: str, loss: Loss) -> None:
        super().__init__(sentence)
        self.loss = loss

    def __reduce__(self) -> tuple[type["LostRankError"], tuple[str, Loss]]:
        return LostRankError, (str(self), self.loss)


_noted: Loss | None = None


def find_loss(error: BaseException) -> Loss | None:
    """Return the loss of a rank that `error`, or an error that caused it, tells of; None where it tells of none."""
    link: BaseException | None = error
    while link is not None:
        loss = _loss_of(link)
        if loss is not None:
            return loss
        link = link.error if isinstance(link, SharedError) else link.__cause__
    return None


def _loss_of(error: BaseException) -> Loss | None:
    from mpi4py import MPI

    if isinstance(error, LostRankError):
        return error.loss
    if isinstance(error, MPI.Exception):
        failures = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
        return Loss(reason=LossReason.MPI) if error.Get_error_class() in failures else None
    tensorflow = sys.modules.get("tensorflow")  # where it is not imported, the error is none of its own
    if tensorflow is None:
        return None
    if isinstance(error, tensorflow.errors.AbortedError):
        return native_loss()
    # TensorFlow makes an error of its own of what Python raises inside a graph.
    return _noted if isinstance(error, tensorflow.errors.UnknownError) else None


def native_loss() -> Loss | None:
    """Return the last loss of a rank that the C++ part has met since `forget_losses`; None without one."""
    from harness.comm.native_library import find_library

    library = find_library().library
    if library is None:
        return None
    rank = ctypes.c_int()
    reason = _BY_NUMBER[library.functions.harness_loss(ctypes.byref(rank))]
    if reason is None:
        return None
    return Loss(reason=reason, rank=rank.value if rank.value >= 0 else None)


@contextlib.contextmanager
def noting_loss() -> Iterator[None]:
    """Note the loss that an MPI error in the block tells of, where the block is Python's inside a graph."""
    global _noted
    try:
        yield
    except Exception as error:
        _noted = _loss_of(error) or _noted
        raise


def forget_losses(patience_s: float) -> None:
    """Begin an attempt that outlives ranks: earlier losses count no more.

    A rank that lives and does not come is given up in shared memory after `patience_s` seconds, 0 for never.
    """
    from harness.comm.native_library import find_library

    global _noted
    _noted = None
    functions: Any = getattr(find_library().library, "functions", None)
    if functions is not None:
        functions.harness_outlive(ctypes.c_double(patience_s))
