"""Which reduction a launch takes: what was asked for, what can be built, what is faster on these hosts.

And gradients that travel as 16-bit floats, half the bytes and a stated loss of precision; the pass of every step at
which a rank may have to wait for its turn (`harness.base.turns`); and sums on reductions that are opened by need.
"""

import ctypes
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base import turns
from harness.base.errors import RunError, SharedError, UserError, unknown
from harness.comm.hang import HangWatch
from harness.comm.native import build as native_build
from harness.comm.placement import observe
from harness.comm.reduction import (
    BridgeReduction,
    NativeReduction,
    Reduction,
    Updater,
    direct_sum,
    in_pieces,
    in_sequence,
    ping,
)
from harness.comm.world import World, needs_sync
from harness.schema.note import Note, NoteCode

_CALLS = 15  # of each way, in a trial
_SMALLEST = 64 * 1024  # bytes; calls of less share one group
_TYPES = {"bf16": tf.bfloat16, "fp16": tf.float16}
# bfloat16 has 8 significant bits, float16 has 11: rounding alone is well below this, lost small values are not.
_MOST = 0.02

CHOICES = ("native", "messages", "node-aware", "bridge")
_BETWEEN_HOSTS = ("messages", "node-aware")


def select(
    world: World,
    tensors: Sequence[int],
    wire: str = "float32",
    *,
    room: int = 0,
    guard: bool = False,
    threads: int = 1,
    whole: bool = False,
) -> Reduction:
    """Return the reduction on `world` for calls of up to so many `tensors`, by their bytes; `wire` as in `Workload`.

    With `room` a call may have more bytes in all, up to as many. `guard` has every message compared with the other
    ranks' before it is sent, at the cost of a short message; what goes through shared memory or the bridge always is.

    HARNESS_REDUCTION chooses: ``native`` (default: the C++ operation, in shared memory where all ranks are on one
    host, else in the faster of the next two ways, by a short trial), ``messages`` (the operation, by MPI_Allreduce),
    ``node-aware`` (the operation: shared memory on each host, where each rank adds up a slice, then messages for the
    sum of every slice over the hosts) or ``bridge`` (through Python). Where the operation cannot be built on some
    rank, all take the bridge; the note says why.

    Where a rank has several `threads`, sums between hosts are made in pieces while gradients are still computed; those
    of one host, which take less, are not. HARNESS_OVERLAP=1 or 0 chooses by hand. Where failures are to be outlived a
    step is made `whole`, as a rank may fail between two pieces of one.

    Raises:
        UserError: HARNESS_REDUCTION or HARNESS_OVERLAP is something else.
        SharedError: the wire type needs the operation and there is none, on every rank.
    """
    sent = [size // 2 for size in tensors] if wire != "float32" else tensors
    overlap = _overlap(world, sent, threads)
    reduction = _select(world, tensors, max(room, sum(tensors)), guard, overlap and not whole)
    if overlap and whole and os.environ.get("HARNESS_OVERLAP"):
        reduction.notes = (*reduction.notes, Note(code=NoteCode.OVERLAP_IGNORED))
    if wire == "float32" or not needs_sync(world.size):
        return reduction
    if not isinstance(reduction, Updater):
        why = "; ".join(map(str, reduction.notes)) or "HARNESS_REDUCTION=bridge is set"
        raise SharedError(UserError(f"WIRE={wire} needs the native operation ({why}): leave WIRE out"))
    return WireReduction(reduction, wire)


def _select(world: World, tensors: Sequence[int], largest: int, guard: bool, overlap: bool) -> Reduction:
    choice = os.environ.get("HARNESS_REDUCTION") or "native"
    if choice not in CHOICES:
        raise unknown("HARNESS_REDUCTION", choice, CHOICES)
    if choice == "bridge" or not needs_sync(world.size):
        return BridgeReduction(world.comm)
    library, failure = agreed_library(world)
    if library is None:
        return BridgeReduction(world.comm, (Note(code=NoteCode.BRIDGE, values={"reason": failure}),))
    way = choice
    note: Note | None = None
    if choice == "native":
        way, note = faster_way(world, library, tensors)
    reduction = NativeReduction(world.comm, library, largest=largest, way=way, guard=guard, overlap=overlap)
    if reduction.short_of_memory:
        note = Note(code=NoteCode.NO_SHARED_MEMORY, values={"bytes": largest})
    elif choice == "node-aware" and reduction.way != choice:
        note = Note(code=NoteCode.NOT_NODE_AWARE)
    reduction.notes = (note,) if note else ()
    return reduction


def _overlap(world: World, sizes: Sequence[int], threads: int) -> bool:
    """Tell whether a sum of tensors of `sizes` bytes is made in pieces while gradients are computed."""
    asked = os.environ.get("HARNESS_OVERLAP") or ""
    if asked not in ("", "0", "1"):
        raise unknown("HARNESS_OVERLAP", asked, ("0", "1"))
    if asked == "0" or threads == 1 or not needs_sync(world.size) or len(in_pieces(sizes)) == 1:
        return False
    return asked == "1" or len(set(world.comm.allgather(observe().host))) > 1


def open_alone(world: World, reduction: Reduction) -> NativeReduction | None:
    """Return what updates this rank's weights by its own gradients in one operation, as `reduction` would by sums.

    None where HARNESS_REDUCTION is ``bridge``, and where some rank cannot build the operation, which a note of
    `reduction` says.
    """
    if os.environ.get("HARNESS_REDUCTION") == "bridge":
        return None
    library, failure = agreed_library(world)
    if library is None:
        if not reduction.notes:
            reduction.notes = (Note(code=NoteCode.SLOWER_UPDATES, values={"reason": failure}),)
        return None
    from mpi4py import MPI

    return NativeReduction(MPI.COMM_SELF, library, largest=0, way="messages")


def native_operations() -> Any:
    """Return the module of the native TensorFlow operations; None under HARNESS_REDUCTION=bridge or without them."""
    library = None if os.environ.get("HARNESS_REDUCTION") == "bridge" else build_native()[0]
    if library is None:
        return None
    return tf.load_op_library(str(library))


def core_distance(world: World) -> float:
    """Return the ns until a core sees another one's answer to what it wrote, on the host where that takes longest.

    0 where no host has several ranks, or the native operation is not in use. On all ranks together.
    """
    if not needs_sync(world.size) or not all(world.comm.allgather(native_operations() is not None)):
        return 0.0
    from mpi4py import MPI

    host = cast(MPI.Intracomm, world.comm.Split_type(MPI.COMM_TYPE_SHARED))
    try:
        found = ping(host, native_build.build()) if host.size > 1 else 0.0
    finally:
        host.Free()
    longest: float = max(world.comm.allgather(found))
    return longest


def build_native() -> tuple[Path | None, str]:
    """Return the native operation's library, or None and the reason why there is none."""
    try:
        return native_build.build(), ""
    except (RunError, UserError) as error:
        return None, str(error)


def agreed_library(world: World) -> tuple[Path | None, str]:
    """Return what `build_native` does, and None on all ranks, with the first reason, where one of them has none."""
    library, failure = build_native()
    failures = [reason for reason in world.comm.allgather(failure) if reason]
    return (None, failures[0]) if failures else (library, "")


def faster_way(world: World, library: Path, tensors: Sequence[int]) -> tuple[str, Note | None]:
    """Return the faster way to sum `tensors` (bytes), the same on every rank, and a note on a trial if there was one.

    On one host shared memory wins always, with one rank per host there is nothing but messages. Else both are tried
    in turns and the smaller median wins, the slowest rank's time counting.
    """
    hosts = world.comm.allgather(observe().host)
    if len(set(hosts)) == 1:
        return "native", None
    if len(set(hosts)) == world.size:
        return "messages", None
    counts = [max(1, size // 4) for size in tensors]
    largest = 4 * sum(counts)
    seconds: dict[str, list[float]] = {way: [] for way in _BETWEEN_HOSTS}
    with ExitStack() as stack:
        sums = {
            way: stack.enter_context(direct_sum(world.comm, library, largest=largest, way=way))
            for way in _BETWEEN_HOSTS
        }
        if sums["node-aware"][0] != "node-aware":
            return "node-aware", None  # the reduction that is opened this way says why it is another
        values = np.zeros(sum(counts), np.float32)
        for _ in range(_CALLS):
            for way in _BETWEEN_HOSTS:
                world.comm.Barrier()
                begin = time.perf_counter()
                sums[way][1](values.ctypes.data, counts)
                seconds[way].append(time.perf_counter() - begin)
    typical = {
        way: median(np.max(world.comm.allgather(seconds[way]), axis=0)[3:]) for way in _BETWEEN_HOSTS
    }  # warm by then
    best = min(_BETWEEN_HOSTS, key=lambda way: typical[way])
    figures: dict[str, str | int | float] = {
        "tensors": len(counts),
        "bytes": largest,
        "messages_ms": 1e3 * float(typical["messages"]),
        "node_aware_ms": 1e3 * float(typical["node-aware"]),
        "algorithm": best,
    }
    return best, Note(code=NoteCode.ALGORITHM_TRIED, values=figures)


class WireReduction:
    """Sums of float32 tensors by way of another reduction's sums of 16-bit ones, for use in a graph.

    The ranks' values are added up in float32 and rounded once (between hosts once more, where sums are node-aware).
    """

    def __init__(self, inner: Reduction, wire: str) -> None:
        self._inner = inner
        self._wire = wire
        self.way = inner.way
        self.overlapped = inner.overlapped
        self.name = f"{inner.name}, {wire} on the wire"
        self.notes = inner.notes
        self.reopen, self.take_calls, self.recent = inner.reopen, inner.take_calls, inner.recent
        self._checks, self._worst = 0, 0.0

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


_Boundary = ctypes.CFUNCTYPE(ctypes.c_int64)
_native: tuple[Any, Any] | None = None  # the operations' module, and what it calls, which must be kept


def pass_turn(gradients: Sequence[Any]) -> list[Any]:
    """Build, or eagerly make, the pass of a step whose `gradients` are to be exchanged next; nothing outside a block.

    By the native operation, which costs nothing that can be measured, else by way of Python. Return the operation that
    what is no exchange has to wait for, if there is one: exchanges wait by themselves.
    """
    current = turns.current()
    if current is None:
        return []
    native = _operations(current)
    if native is None and tf.executing_eagerly():
        current.step()
        return []
    ready = [gradient for gradient in gradients[-1:] if isinstance(gradient, tf.Tensor)]  # the first to be known
    with tf.control_dependencies([] if tf.executing_eagerly() else ready), in_sequence() as sequence:
        if native is not None:
            passed = native.harness_turn(sequence=sequence)
        else:
            passed = tf.numpy_function(_pass, [sequence], tf.int64)
    return [] if passed is None or tf.executing_eagerly() else [passed]


def _pass(_: object) -> np.int64:
    current = turns.current()
    assert current is not None
    current.step()
    return np.int64(0)


def _operations(current: turns.Turns) -> Any:
    """Return the module of the native operation, which counts for `current` from now on; None without it."""
    global _native
    module = native_operations()
    if module is None:
        return None
    if _native is None:
        loaded = ctypes.CDLL(str(build_native()[0]))
        shared = turns.TurnState.in_dll(loaded, "harness_turn_state")
        shared.left, shared.last, shared.paused = current.state.left, current.state.last, current.state.paused
        current.state, called = shared, _Boundary(current.boundary)
        loaded.harness_take_turns(called)
        _native = module, called
    return _native[0]


class GroupedSums:
    """Sums over the ranks of `world`; they all make the same calls in the same order."""

    def __init__(self, world: World, watch: HangWatch) -> None:
        self.world = world
        self.watch = watch
        self._groups: dict[int, Reduction] = {}
        if needs_sync(world.size):
            native_operations()  # compiled where that is still to do, before others wait for this rank in an exchange

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """The reductions opened so far, the largest last."""
        return tuple(self._groups[size] for size in sorted(self._groups))

    def reopen(self, world: World) -> None:
        """Sum over the ranks of `world`, some of today's, in graphs that are built already too; on all of them."""
        self.world = world
        own = {room: group.way for room, group in self._groups.items()}
        # A failure may have kept a group from being opened on some.
        ways = {room: way for each in world.comm.allgather(own) for room, way in each.items()}
        for room, way in sorted(ways.items()):
            if room in self._groups:
                self._groups[room].reopen(world.comm)
            else:
                library = None if way == BridgeReduction.way else build_native()[0]
                group: Reduction = BridgeReduction(world.comm)
                if library is not None:
                    group = NativeReduction(world.comm, library, largest=room, way=way, guard=True)
                self._groups[room] = group
                self.watch.opened(group)

    def sum(
        self, tensors: Sequence[tf.Tensor], label: str, scale: float = 1.0, *, half: bool = False
    ) -> list[tf.Tensor]:
        """Return the sums over all ranks of scale * tensor; floating tensors of known shapes, any of them.

        With `half`, float16 travels as such where the native operation sums; as float32 otherwise.
        """
        results: list[tf.Tensor | None] = [None] * len(tensors)
        half = half and native_operations() is not None
        types = [
            tensor.dtype if tensor.dtype == tf.float64 or (half and tensor.dtype == tf.float16) else tf.float32
            for tensor in tensors
        ]
        for dtype in (tf.float32, tf.float64, tf.float16):
            chosen = [i for i, kind in enumerate(types) if kind == dtype]
            if not chosen:
                continue
            values = [tf.cast(tensors[i], dtype) for i in chosen]
            # What is not known yet may be larger than its group's memory: it then goes by messages.
            sizes = [dtype.size * (value.shape.num_elements() or 0) for value in values]
            self.watch.named(sum(sizes), label)
            sums = self._group(sizes).sum(values, scale, label)
            for i, total in zip(chosen, sums, strict=True):
                results[i] = tf.cast(total, tensors[i].dtype)
        return [result for result in results if result is not None]

    def _group(self, sizes: list[int]) -> Reduction:
        """Return the reduction for calls of as many bytes as `sizes` together, in steps of powers of two.

        It is opened on first use, and the way that it takes tried with tensors of these sizes.
        """
        room = max(_SMALLEST, 1 << (sum(sizes) - 1).bit_length())
        if room not in self._groups:
            with tf.init_scope(), self.watch.inside("opening a reduction", room):
                self._groups[room] = select(self.world, sizes, room=room, guard=True)
            self.watch.opened(self._groups[room])
        return self._groups[room]
