"""Groups of the C++ part, as Python opens them through ctypes, and their sums without TensorFlow around."""

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from harness.base.errors import RunError
from harness.comm.lost_ranks import Loss, LostRankError, native_loss
from harness.comm.native_library import NativeLibrary
from harness.schema.message_cost import Algorithm
from harness.schema.record import LossReason

if TYPE_CHECKING:
    from mpi4py import MPI

Sum = Callable[[int, Sequence[int]], None]
"""Takes the address of float32 values and how many of them each tensor has, end to end."""

_BY_NUMBER = (Algorithm.MESSAGES, Algorithm.NATIVE, Algorithm.NODE_AWARE)  # of harness::Algorithm
_FAILURE_BYTES = 1000
_group_numbers = itertools.count()  # those of one communicator are opened by all its ranks in one order


def new_group_number() -> int:
    """Return a number that no group of this process has; the same on all ranks that open the same groups."""
    return next(_group_numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedGroup:
    """What a group sums by; `short_of_memory` says that shared memory was too short for what was asked for."""

    algorithm: Algorithm
    short_of_memory: bool


class NativeGroup:
    """A group of the C++ part by its number; it is opened, summed by and closed on all its ranks together."""

    def __init__(self, library: NativeLibrary) -> None:
        self.number = new_group_number()
        self._functions = library.functions

    def open(
        self,
        comm: "MPI.Intracomm",
        *,
        largest: int,
        algorithm: Algorithm,
        guard: bool = False,
        patient: bool = False,
    ) -> OpenedGroup:
        """Open the group on `comm` for calls of up to `largest` bytes; what was open under its number is closed.

        Raises:
            RunError: MPI fails; LostRankError where a rank is lost.
        """
        taken = ctypes.c_int()
        short = ctypes.c_int()
        self._call(
            "the native sums cannot be set up",
            "harness_open",
            comm.py2f(),
            ctypes.c_uint64(largest),
            _BY_NUMBER.index(algorithm),
            guard,
            patient,
            ctypes.byref(taken),
            ctypes.byref(short),
        )
        return OpenedGroup(algorithm=_BY_NUMBER[taken.value], short_of_memory=bool(short.value))

    def sum(self, address: int, counts: Sequence[int]) -> None:
        """Sum float32 values over all ranks in place, as `Sum`; raise a RunError when MPI fails."""
        numbers = (ctypes.c_uint64 * len(counts))(*counts)
        words = (ctypes.c_void_p(address), numbers, ctypes.c_uint64(len(counts)))
        self._call(f"the native sum of {4 * sum(counts)} bytes failed", "harness_sum", *words)

    def ping(self, rounds: int) -> float:
        """Return the ns of a ping-pong between two cores, the median of `rounds`; raise a RunError where it fails."""
        nanoseconds = ctypes.c_double()
        self._call("no ping", "harness_ping", ctypes.c_uint64(rounds), ctypes.byref(nanoseconds))
        return nanoseconds.value

    def close(self) -> None:
        """Close the group."""
        self._functions.harness_close(ctypes.c_int64(self.number))

    def _call(self, what: str, function: str, *words: Any) -> None:
        """Call a function of the C++ part; its code says whether it succeeded, failed, or lost a rank."""
        text = ctypes.create_string_buffer(_FAILURE_BYTES)
        number = ctypes.c_int64(self.number)
        code = getattr(self._functions, function)(number, *words, text, ctypes.c_uint64(_FAILURE_BYTES))
        if not code:
            return
        sentence = f"{what}: {text.value.decode(errors='replace')}"
        if code == tf.errors.ABORTED:
            raise LostRankError(sentence, native_loss() or Loss(reason=LossReason.MPI))
        raise RunError(sentence)


@contextmanager
def direct_sum(
    comm: "MPI.Intracomm", library: NativeLibrary, *, largest: int, algorithm: Algorithm
) -> Iterator[tuple[Algorithm, Sum]]:
    """Yield the algorithm that is taken, and a function that sums tensors over all ranks in place.

    Where the ranks cannot take `algorithm`, another is taken. `largest` is the bytes of the largest call. Opened and
    closed on all ranks together. The function raises a RunError when MPI fails.
    """
    group = NativeGroup(library)
    opened = group.open(comm, largest=largest, algorithm=algorithm)
    try:
        yield opened.algorithm, group.sum
    except Exception:
        library.functions.harness_give_up()  # or others wait for this rank in sums that it does not come to
        raise
    finally:
        group.close()
