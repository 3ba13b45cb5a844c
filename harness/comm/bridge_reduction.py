"""Sums over all ranks by way of Python and MPI_Allreduce: slow, and there wherever mpi4py is."""

import functools
import sys
import zlib
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base import turns
from harness.comm.lost_ranks import noting_loss
from harness.comm.reduction import RECENT_CALLS, in_sequence
from harness.schema.message_cost import Algorithm
from harness.schema.record_notes import Note

if TYPE_CHECKING:
    from mpi4py import MPI

_MESSAGE = 2**30  # elements: MPI counts those of one message in an int


class BridgeReduction:
    """Pack all tensors into one vector, hand it to ``MPI_Allreduce`` from Python, unpack.

    Works wherever mpi4py does. It needs the interpreter lock and two copies, which cost more than the
    allreduce of a small network.
    """

    algorithm = Algorithm.BRIDGE
    overlapped = False
    name = "numpy_function bridge"

    def __init__(self, comm: "MPI.Intracomm", notes: tuple[Note, ...] = ()) -> None:
        self.notes = notes
        self._comm = comm
        self._calls: list[tuple[float, float]] = []
        self._recent: deque[list[float]] = deque(maxlen=RECENT_CALLS)
        self._entered = 0

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0, label: str = "sum") -> list[tf.Tensor]:
        """Return the element-wise sums over all ranks of scale * tensor; one dtype, shapes known."""
        packed = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        if scale != 1.0:
            packed *= scale
        if tf.executing_eagerly():
            total = tf.constant(self._allreduce(label, packed.numpy()))
        else:
            with in_sequence() as sequence:
                total = tf.numpy_function(functools.partial(self._allreduce, label), [packed, sequence], packed.dtype)
        total.set_shape(packed.shape)
        parts = tf.split(total, tf.stack([tf.size(tensor) for tensor in tensors]), num=len(tensors))
        return [
            tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
            for part, tensor in zip(parts, tensors, strict=True)
        ]

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return entry and exit (s, perf_counter) of every call since the last take."""
        calls = self._calls
        self._calls = []
        return np.array(calls, np.float64).reshape(-1, 2)

    def recent(self) -> npt.NDArray[np.float64]:
        """Return number, bytes, entry and exit of the last calls, oldest first; the exit is 0 inside a call."""
        return np.array([list(call) for call in self._recent]).reshape(-1, 4)

    def _allreduce(self, label: str, packed: npt.NDArray[np.generic], *_: object) -> npt.NDArray[np.generic]:
        entry = turns.clock()
        self._entered += 1
        self._recent.append([self._entered, packed.nbytes, entry, 0.0])
        total = np.empty_like(packed)
        with noting_loss():
            self._compare(label, packed)
            for begin in range(0, packed.size, _MESSAGE):
                self._comm.Allreduce(packed[begin : begin + _MESSAGE], total[begin : begin + _MESSAGE])
        left = turns.clock()
        self._recent[-1][3] = left
        self._calls.append((entry, left))
        return total

    def _compare(self, label: str, packed: npt.NDArray[np.generic]) -> None:
        """End all ranks, with a sentence, when they are about to sum different things."""
        from mpi4py import MPI

        name = f"'{label}' of {packed.size} {packed.dtype}"
        call = np.array([self._entered, zlib.crc32(name.encode())], np.int64)
        extremes = np.empty(4, np.int64)
        self._comm.Allreduce(np.concatenate([call, -call]), extremes, op=MPI.MAX)
        if (extremes[:2] == -extremes[2:]).all():
            return
        names = self._comm.allgather(f"{name} in call {self._entered}")
        if self._comm.Get_rank() == 0:
            odd = next(rank for rank, text in enumerate(names) if text != names[0])
            print(
                f"harness: the ranks meet in different exchanges: rank 0 exchanges {names[0]}, rank {odd} "
                f"{names[odd]}; all ranks must make the same exchanges in the same order",
                file=sys.stderr,
                flush=True,
            )
            self._comm.Abort(1)
        self._comm.Barrier()  # until rank 0 has spoken
