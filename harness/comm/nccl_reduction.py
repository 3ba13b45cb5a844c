"""Sums over all ranks by NCCL: whether ranks take it, its library, and the operation on the GPU's stream."""

import atexit
import ctypes
import functools
import importlib.util
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import RunError, SharedError, UserError
from harness.comm.native.build import SUMS_BY_NCCL, build_operation
from harness.comm.native_group import new_group_number
from harness.comm.native_reduction import bits
from harness.comm.reduction import CPU, GPU, in_sequence
from harness.comm.world import World
from harness.schema.message_cost import Algorithm
from harness.schema.record_notes import Note, NoteCode

if TYPE_CHECKING:
    from mpi4py import MPI

# NCCL and the C++ part that sums by it: found, built and loaded where ranks have GPUs.

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


class NcclReduction:
    """One grouped allreduce inside the graph by NCCL, on the stream on which TensorFlow computes.

    A call returns when its sums are on the stream. They are made while the host goes on, so that no time of a call is
    known: a note says so. Ranks are not compared before they sum; they sum in the order in which calls were built.
    Values of 16 bits are added as such. A rank that NCCL has lost ends the next call with a sentence.
    """

    algorithm = Algorithm.NCCL
    overlapped = False

    def __init__(self, comm: "MPI.Intracomm", library: NcclLibrary) -> None:
        self._library = library
        self._number = new_group_number()
        self.name = f"NCCL {library.version}, on the GPU's stream"
        self.notes: tuple[Note, ...] = (Note(code=NoteCode.SUMS_NOT_TIMED),)
        try:
            with tf.device(CPU):
                identity = tf.constant(share_id(comm, library))
            with tf.device(GPU):
                library.operations.harness_nccl_open(
                    id=identity, group=self._number, ranks=comm.Get_size(), rank=comm.Get_rank()
                )
        except tf.errors.OpError as error:
            raise RunError(f"NCCL {library.version} does not open: {error.message}") from error
        _leave_at_exit(library)

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0, label: str = "sum") -> list[tf.Tensor]:
        """Return the element-wise sums over all ranks of scale * tensor; all of one dtype."""
        with in_sequence(device=GPU) as sequence:
            sums: list[tf.Tensor] = self._library.operations.harness_nccl_allreduce(
                values=tensors, sequence=sequence, group=self._number, scale=bits(scale)[0]
            )
        return sums

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return float64 [0, 2]: no call's time is known."""
        return np.empty((0, 2))

    def recent(self) -> npt.NDArray[np.float64]:
        """Return float64 [0, 4]: no call's time is known."""
        return np.empty((0, 4))


def share_id(comm: "MPI.Intracomm", library: NcclLibrary) -> bytes:
    """Return the id that rank 0 has made, on all ranks of `comm`.

    Raises:
        RunError: NCCL makes none, on every rank.
    """
    identity = b""
    failure = ""
    if comm.Get_rank() == 0:
        try:
            identity = library.new_id()
        except RunError as error:
            failure = str(error)
    answer: tuple[bytes, str] = comm.bcast((identity, failure), root=0)
    if answer[1]:
        raise RunError(answer[1])
    return answer[0]


@functools.cache
def _leave_at_exit(library: NcclLibrary) -> None:
    """Have the threads that watch communicators end before the process does."""
    atexit.register(library.functions.harness_nccl_leave)


# Whether ranks sum by NCCL on their GPUs, or through the host's memory and why.


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuOfRank:
    """What a rank says of itself before its ranks sum by NCCL.

    `has_gpu`: TensorFlow sees one. `place` is its host and PCI address. `missing_because` says why NCCL cannot be used
    there, empty where it can.
    """

    has_gpu: bool
    place: tuple[str, str] = ("", "")
    missing_because: str = ""


def open_nccl(world: World, *, shared: bool) -> NcclReduction | Note | None:
    """Return the sums by NCCL of the ranks of `world`, a note why there are none, or None where no rank has a GPU.

    On all ranks together, with the same answer. `shared` permits several ranks on one GPU, which NCCL refuses: it is
    told that each is on a host of its own, so that they exchange through sockets. That tests function, never speed.
    """
    gpus = world.comm.allgather(_own_gpu())
    reason = reason_against(gpus, shared=shared)
    if reason is None:
        return None
    if not reason:
        if shared and _sharing(gpus):
            os.environ["NCCL_HOSTID"] = f"{platform.node()}-{world.rank}"
        try:
            return world.on_all(lambda: NcclReduction(world.comm, load_nccl()))
        except SharedError as shared_error:
            reason = str(shared_error.error)
    return Note(code=NoteCode.STAGED, values={"reason": reason})


def reason_against(gpus: Sequence[GpuOfRank], *, shared: bool) -> str | None:
    """Return why the ranks with these `gpus` do not sum by NCCL, empty where they can, None where there is no GPU."""
    without = [rank for rank, gpu in enumerate(gpus) if not gpu.has_gpu]
    if len(without) == len(gpus):
        return None
    if without:
        return f"rank {without[0]} has no GPU"
    for rank, gpu in enumerate(gpus):
        if gpu.missing_because:
            return f"{gpu.missing_because} (rank {rank})"
    sharing = _sharing(gpus)
    if sharing and not shared:
        ranks = " and ".join(map(str, sharing))
        return (
            f"ranks {ranks} share a GPU, which NCCL refuses; HARNESS_REDUCTION=nccl has them sum, to test function only"
        )
    return ""


def _sharing(gpus: Sequence[GpuOfRank]) -> list[int]:
    """Return the ranks that share the first GPU that ranks share, none where each has its own."""
    counts = Counter(gpu.place for gpu in gpus)
    shared = next((place for place, count in counts.items() if count > 1), None)
    return [rank for rank, gpu in enumerate(gpus) if gpu.place == shared]


def _own_gpu() -> GpuOfRank:
    if not tf.config.list_logical_devices("GPU"):
        return GpuOfRank(has_gpu=False)
    if not tf.executing_eagerly():
        return GpuOfRank(has_gpu=True, missing_because="eager execution is switched off")
    try:
        with tf.device(GPU):
            bus: bytes = load_nccl().operations.harness_nccl_device().numpy()
    except (RunError, tf.errors.OpError) as error:
        return GpuOfRank(has_gpu=True, missing_because=str(error))
    return GpuOfRank(has_gpu=True, place=(platform.node(), bus.decode()))
