"""The C++ part of this process: built on first use, loaded, and the same on all ranks."""

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from harness.base.errors import RunError, UserError
from harness.comm.harness_variables import chosen_algorithm
from harness.comm.native import build as native_build
from harness.schema.message_cost import Algorithm

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeLibrary:
    """The loaded C++ part: `operations` is its module of TensorFlow operations, `functions` its C interface."""

    operations: Any
    functions: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryAnswer:
    """The C++ part where it is to be used, or None and why there is none: `missing_because`, a sentence."""

    library: NativeLibrary | None
    missing_because: str = ""


def find_library(comm: "MPI.Intracomm | None" = None) -> LibraryAnswer:
    """Return the C++ part, compiled where that is still to do; with a `comm` the same answer on all its ranks.

    There is none under HARNESS_REDUCTION=bridge, and where it does not compile: with a `comm` on any rank.

    Raises:
        UserError: HARNESS_REDUCTION is something unknown.
    """
    answer = _find()
    if comm is None:
        return answer
    reasons = [reason for reason in comm.allgather(answer.missing_because) if reason]
    return LibraryAnswer(library=None, missing_because=reasons[0]) if reasons else answer


def _find() -> LibraryAnswer:
    if chosen_algorithm() is Algorithm.BRIDGE:
        return LibraryAnswer(library=None, missing_because="HARNESS_REDUCTION=bridge is set")
    try:
        return LibraryAnswer(library=load_operations(native_build.build_operation()))
    except (RunError, UserError) as error:
        return LibraryAnswer(library=None, missing_because=str(error))


@functools.cache
def load_operations(path: Path) -> NativeLibrary:
    """Return the library at `path`, loaded into this process."""
    operations = tf.load_op_library(str(path))  # before ctypes: else TensorFlow would not know the operations
    functions = ctypes.CDLL(str(path))
    functions.harness_calls.restype = ctypes.c_uint64
    functions.harness_recent.restype = ctypes.c_uint64
    return NativeLibrary(operations=operations, functions=functions)
