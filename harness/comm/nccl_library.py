"""NCCL and the C++ part that sums by it: found, built and loaded where ranks have GPUs."""

import ctypes
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from harness.base.errors import RunError, UserError
from harness.comm.native.build import SUMS_BY_NCCL, build_operation

ID_BYTES = 128
_FAILURE_BYTES = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclLibrary:
    """The loaded C++ part: `operations` is its module of TensorFlow operations, `functions` its C interface.

    `version` is NCCL's, such as 2.28.9.
    """

    operations: Any
    functions: Any
    version: str

    def new_id(self) -> bytes:
        """Return what all ranks of one communicator are opened with; raise a RunError where NCCL makes none."""
        identity = ctypes.create_string_buffer(ID_BYTES)
        _call(self.functions.harness_nccl_id, identity)
        return identity.raw


@functools.cache
def load_nccl() -> NcclLibrary:
    """Return the C++ part with NCCL loaded, compiled where that is still to do.

    Raises:
        RunError: it does not compile, TensorFlow does not load it, or there is no NCCL.
    """
    try:
        path = str(build_operation(SUMS_BY_NCCL))
        operations = tf.load_op_library(path)  # before ctypes: else TensorFlow would not know the operations
    except (UserError, tf.errors.OpError) as error:
        raise RunError(f"the operation for NCCL does not load: {error}") from error
    functions = ctypes.CDLL(path)
    version = ctypes.c_int()
    _call(functions.harness_nccl_load, str(installed_nccl() or "").encode(), ctypes.byref(version))
    return NcclLibrary(operations=operations, functions=functions, version=version_words(version.value))


def installed_nccl() -> Path | None:
    """Return the NCCL that is installed as a Python package, None where the system is to find one."""
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    folders = package.submodule_search_locations if package else None
    libraries = [library for folder in folders or () for library in Path(folder).glob("lib/libnccl.so.2")]
    return libraries[0] if libraries else None


def version_words(number: int) -> str:
    """Return NCCL's version as it is written, of the number that it gives: 22809 is 2.28.9."""
    major, rest = divmod(number, 10_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _call(function: Any, *words: Any) -> None:
    """Call a function of the C++ part; raise a RunError with its sentence where it fails."""
    text = ctypes.create_string_buffer(_FAILURE_BYTES)
    if function(*words, text, ctypes.c_uint64(_FAILURE_BYTES)):
        raise RunError(text.value.decode(errors="replace"))
