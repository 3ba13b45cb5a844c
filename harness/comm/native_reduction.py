"""Sums over all ranks, and updates by them, in one operation of the C++ part inside the graph."""

import ctypes
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from harness.base import turns
from harness.base.errors import RunError
from harness.comm.native_group import NativeGroup
from harness.comm.native_library import NativeLibrary
from harness.comm.reduction import RECENT_CALLS, Descent, in_sequence
from harness.schema.message_cost import OVERLAPPED, REDUCTION_NAMES, Algorithm
from harness.schema.record_notes import Note

if TYPE_CHECKING:
    import keras
    from mpi4py import MPI


_PIECE = 2**20  # bytes: 8 ms at 1 Gbit/s, long beside what a message costs
_TURN_PINGS = 50  # rounds of a ping-pong between two turns
LARGEST_FUSED = 16 * 2**20
"""Bytes of a call that several sums of a step share, as in native/fuse.cc."""
_sum_numbers = itertools.count(1)  # of sums that may share a call, in the order in which they were built


def in_pieces(sizes: Sequence[int]) -> list[list[int]]:
    """Return the numbers of the tensors of each piece of a call, by their bytes: from the last on, closed with 1 MB."""
    pieces = [list[int]()]
    room = _PIECE
    for number in reversed(range(len(sizes))):
        if room <= 0:
            pieces.append([])
            room = _PIECE
        pieces[-1].append(number)
        room -= sizes[number]
    return pieces


class NativeReduction:
    """One grouped allreduce inside the graph, by one `Algorithm`; by messages where the ranks cannot take it.

    `largest` is the bytes of the largest call to be made; larger ones go by messages. `guard` has messages compared
    before they are summed, at the cost of a short one each; in shared memory that costs nothing and is always done.

    With `overlap` a call is made in pieces of about 1 MB, the last tensors, whose gradients are the first to be known,
    in the first piece: where TensorFlow has a second thread, a piece is summed while the gradients of others are still
    computed. Such a call is logged from when all tensors are there to the end of its last piece: what training waits
    for.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        library: NativeLibrary,
        *,
        largest: int,
        algorithm: Algorithm = Algorithm.NATIVE,
        guard: bool = False,
        overlap: bool = False,
    ) -> None:
        self._operations = library.operations
        self._functions = library.functions
        self._group = NativeGroup(library)
        self._number = ctypes.c_int64(self._group.number)
        self.overlapped = overlap
        self.notes: tuple[Note, ...] = ()
        opened = self._group.open(comm, largest=largest, algorithm=algorithm, guard=guard, patient=overlap)
        self.algorithm = opened.algorithm
        self.short_of_memory = opened.short_of_memory
        own_turns = turns.current_turns()
        if own_turns is not None and self.algorithm is Algorithm.NATIVE:
            own_turns.core_ns = self.core_ns
        self.name = f"native operation, {REDUCTION_NAMES[self.algorithm]}"
        if overlap:
            name = "shared memory" if self.algorithm is Algorithm.NATIVE else self.algorithm
            self.name = f"native operation, {name}, {OVERLAPPED}"

    def core_ns(self) -> float:
        """Return what `ping` does, of fewer rounds between calls on all ranks; 0 where they sum otherwise."""
        try:
            return self._group.ping(_TURN_PINGS) if self.algorithm is Algorithm.NATIVE else 0.0
        except RunError:  # a rank has failed, as the next call finds
            return 0.0

    def sum(self, tensors: list[tf.Tensor], scale: float = 1.0, label: str = "sum") -> list[tf.Tensor]:
        """Return the element-wise sums over all ranks of scale * tensor; all of one dtype."""
        sums = dict[int, tf.Tensor]()
        for piece, options in self._pieces(tensors, label):
            values = [tensors[index] for index in piece]
            totals = self._operations.harness_allreduce(values=values, scale=bits(scale)[0], **options)
            sums |= zip(piece, totals, strict=True)
        return [sums[index] for index in range(len(tensors))]

    def sum_fused(self, tensors: list[tf.Tensor], names: Sequence[str], label: str) -> list[tf.Tensor]:
        """Return the sums in a graph, in one call with others of its step that do not wait for each other (fuse.cc).

        Tensors of one dtype and known shapes. Where ranks ask for others of the `names`, types or shapes, the call
        fails with tf.errors.FailedPreconditionError.
        """
        graph = tf.compat.v1.get_default_graph()
        context = graph._get_control_flow_context()
        scope = f"{getattr(graph, 'name', '')} {context.name if context else ''}"
        size = sum(tensor.dtype.size * math.prod(tensor.shape) for tensor in tensors)
        with in_sequence() as sequence:
            totals = self._operations.harness_allreduce(
                values=tensors,
                sequence=sequence,
                group=self._group.number,
                label=label,
                scale=bits(1.0)[0],
                names=names,
                scope=scope,
                order=next(_sum_numbers),
                bytes=size if size <= LARGEST_FUSED else -1,
            )
        operation = totals[0].op
        operation._set_attr("place", attr_value_pb2.AttrValue(s=operation.name.encode()))
        return list(totals)

    def update(self, step: Descent, variables: "list[keras.Variable]", gradients: list[tf.Tensor], label: str) -> None:
        """Make the optimizer's `step` on the variables by the sums over all ranks of the gradients; one dtype."""
        rate = tf.cast(step.rate, gradients[0].dtype)
        for piece, options in self._pieces(gradients, label):
            self._operations.harness_update(
                variables=_handles(variables, piece),
                first=_handles(step.first, piece),
                second=_handles(step.second, piece),
                gradients=[gradients[index] for index in piece],
                rate=rate,
                steps=step.steps,
                rule=step.rule,
                constants=bits(step.decay1, step.decay2, step.epsilon),
                **options,
            )

    def _pieces(self, tensors: list[tf.Tensor], label: str) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """Yield the numbers of the tensors of every piece, and what its operation, built before the next, takes."""
        pieces = [list(range(len(tensors)))]
        if self.overlapped:
            pieces = in_pieces([tensor.dtype.size * math.prod(tensor.shape) for tensor in tensors])
        ready = []
        if len(pieces) > 1:
            with tf.control_dependencies(tensors), tf.device("CPU:0"):
                ready.append(self._operations.harness_ready(group=self._group.number))
        for number, piece in enumerate(pieces, start=1):
            last = number == len(pieces)
            with tf.control_dependencies(ready if last else []), in_sequence() as sequence:
                yield piece, {"sequence": sequence, "group": self._group.number, "label": label, "last": last}

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return entry and exit (s, perf_counter) of every call since the last take."""
        times = np.empty((self._functions.harness_calls(self._number), 2))
        self._functions.harness_take(self._number, times.ctypes.data_as(ctypes.POINTER(ctypes.c_double)))
        return times

    def recent(self) -> npt.NDArray[np.float64]:
        """Return number, bytes, entry and exit of the last calls, oldest first; the exit is 0 inside a call."""
        calls = np.empty((RECENT_CALLS, 4))
        count = self._functions.harness_recent(self._number, calls.ctypes.data_as(ctypes.POINTER(ctypes.c_double)))
        return calls[:count]


def _handles(variables: "Sequence[keras.Variable]", piece: Sequence[int]) -> list[tf.Tensor]:
    """Return the resource handles of the variables of a piece, none where the rule has no such values."""
    return [variables[index].value.handle for index in piece] if variables else []


def bits(*values: float) -> list[int]:
    """Return float64 values as an operation's attributes take them, whose own floats are of 32 bits."""
    bits: list[int] = np.array(values, np.float64).view(np.int64).tolist()
    return bits
