"""The native reductions called from Python, without a graph: for measuring them."""

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RunError

if TYPE_CHECKING:
    from mpi4py import MPI

Sum = Callable[[int, int], None]
"""Takes the address and the number of float32 values."""

WAYS = ("messages", "native", "node-aware")  # by the numbers of harness::Way

_NUMBERS = itertools.count(1 << 32)  # of groups: training counts its own from 0


@contextmanager
def direct_sum(comm: "MPI.Intracomm", library: Path, *, largest: int, way: str) -> Iterator[tuple[str, Sum]]:
    """Yield the way that is taken, and a function that sums values over all ranks in place.

    `way` is one of WAYS; where the ranks cannot take it, another is taken. `largest` is the bytes of the largest
    call. Opened and closed on all ranks together. The function raises a RunError when MPI fails.
    """
    import tensorflow as tf

    tf.load_op_library(str(library))  # before ctypes: TensorFlow knows only the operations of libraries it loads first
    native = ctypes.CDLL(str(library))
    number = ctypes.c_int64(next(_NUMBERS))
    taken = native.harness_open(number, comm.py2f(), ctypes.c_uint64(largest), WAYS.index(way))

    def total(address: int, count: int) -> None:
        if native.harness_sum(number, ctypes.c_void_p(address), ctypes.c_uint64(count)):
            raise RunError(f"the native sum of {4 * count} bytes failed")

    try:
        yield WAYS[taken], total
    finally:
        native.harness_close(number)
