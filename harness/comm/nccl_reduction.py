"""Sums over all ranks by NCCL, put on the GPU's stream by one operation of the graph."""

import atexit
import functools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.errors import RunError
from harness.comm.exchange_order import CPU, GPU, in_sequence
from harness.comm.native_group import new_group_number
from harness.comm.native_reduction import bits
from harness.comm.nccl_library import NcclLibrary
from harness.schema.message_cost import Algorithm
from harness.schema.record_notes import Note, NoteCode

if TYPE_CHECKING:
    from mpi4py import MPI


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
