"""Which reduction a launch takes: what was asked for, what can be built, what is faster on these hosts."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

import numpy as np

from harness.base.errors import SharedError, UserError
from harness.base.setting_names import setting
from harness.comm.harness_variables import chosen_algorithm, chosen_overlap
from harness.comm.native_group import Sum, direct_sum
from harness.comm.native_library import NativeLibrary, find_library
from harness.comm.native_reduction import NativeReduction, in_pieces
from harness.comm.nccl_reduction import NcclReduction, open_nccl
from harness.comm.placement_check import observe
from harness.comm.reduction import BridgeReduction, Reduction, WireReduction
from harness.comm.world import World, needs_sync
from harness.schema.message_cost import Algorithm
from harness.schema.record_notes import Note, NoteCode

_CALLS = 15  # of each algorithm, in a trial
_WARM_CALLS = 3  # of them not counted
_BETWEEN_HOSTS = (Algorithm.MESSAGES, Algorithm.NODE_AWARE)


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
    host, else by the faster of the next two, by a short trial), ``messages`` (the operation, by MPI_Allreduce),
    ``node-aware`` (the operation: shared memory on each host, where each rank adds up a slice, then messages for the
    sum of every slice over the hosts) or ``bridge`` (through Python). Where the operation cannot be built on some
    rank, all take the bridge; the note says why. Where every rank has a GPU, ``native`` is NCCL if it can be used, and
    the note says why not. ``nccl`` is the same, also where ranks share a GPU; ``staged`` does without.

    Where a rank has several `threads`, sums between hosts are made in pieces while gradients are still computed; those
    of one host, which take less, are not. HARNESS_OVERLAP=1 or 0 chooses by hand. Where failures are to be outlived a
    step is made `whole`, as a rank may fail between two pieces of one.

    Raises:
        UserError: HARNESS_REDUCTION or HARNESS_OVERLAP is something else.
        SharedError: the wire type needs the operation and there is none, on every rank.
    """
    sent = [size // 2 for size in tensors] if wire != "float32" else tensors
    overlap = is_overlapped(world, sent, threads)
    reduction = _select(world, tensors, max(room, sum(tensors)), guard, overlap and not whole)
    ignored = NoteCode.OVERLAP_IGNORED if overlap and whole else None
    if reduction.algorithm is Algorithm.NCCL:
        ignored = NoteCode.NCCL_IN_ONE_PIECE
    if ignored is not None and chosen_overlap():
        reduction.notes = (*reduction.notes, Note(code=ignored))
    if wire == "float32" or not needs_sync(world.size):
        return reduction
    if reduction.algorithm is Algorithm.BRIDGE:
        why = "; ".join(map(str, reduction.notes)) or "HARNESS_REDUCTION=bridge is set"
        raise SharedError(UserError(f"{setting('wire', wire)} needs the native operation ({why}): leave it out"))
    return WireReduction(reduction, wire)


def _select(world: World, tensors: Sequence[int], largest: int, guard: bool, overlap: bool) -> Reduction:
    choice = chosen_algorithm()
    if choice is Algorithm.BRIDGE or not needs_sync(world.size):
        return BridgeReduction(world.comm)
    on_gpus = _select_nccl(world, choice)
    if isinstance(on_gpus, NcclReduction):
        return on_gpus
    staged = () if on_gpus is None else (on_gpus,)
    answer = find_library(world.comm)
    library = answer.library
    if library is None:
        missing = Note(code=NoteCode.BRIDGE, values={"reason": answer.missing_because})
        return BridgeReduction(world.comm, (*staged, missing))
    algorithm: Algorithm = choice
    note: Note | None = None
    if choice in (Algorithm.NATIVE, Algorithm.NCCL, Algorithm.STAGED):
        algorithm, note = faster_algorithm(world, library, tensors)
    reduction = NativeReduction(world.comm, library, largest=largest, algorithm=algorithm, guard=guard, overlap=overlap)
    if reduction.short_of_memory:
        note = Note(code=NoteCode.NO_SHARED_MEMORY, values={"bytes": largest})
    elif choice is Algorithm.NODE_AWARE and reduction.algorithm is not choice:
        note = Note(code=NoteCode.NOT_NODE_AWARE)
    reduction.notes = (*staged, note) if note else staged
    return reduction


def _select_nccl(world: World, choice: Algorithm) -> NcclReduction | Note | None:
    """Return the sums by NCCL, a note why a `choice` that means them is another, None where it does not mean them."""
    if choice not in (Algorithm.NATIVE, Algorithm.NCCL):
        return None
    answer = open_nccl(world, shared=choice is Algorithm.NCCL)
    if answer is None and choice is Algorithm.NCCL:
        return Note(code=NoteCode.STAGED, values={"reason": "no rank has a GPU"})
    return answer


def is_overlapped(world: World, sizes: Sequence[int], threads: int) -> bool:
    """Tell whether a sum of tensors of `sizes` bytes is made in pieces while gradients are computed."""
    choice = chosen_overlap()
    if choice is False or threads == 1 or not needs_sync(world.size) or len(in_pieces(sizes)) == 1:
        return False
    return choice is True or len(set(world.comm.allgather(observe().host))) > 1


def open_own_updates(world: World, reduction: Reduction) -> NativeReduction | None:
    """Return what updates this rank's weights by its own gradients in one operation, as `reduction` would by sums.

    None where HARNESS_REDUCTION is ``bridge``, and where some rank cannot build the operation, which a note of
    `reduction` says.
    """
    if chosen_algorithm() is Algorithm.BRIDGE:
        return None
    answer = find_library(world.comm)
    if answer.library is None:
        if not reduction.notes:
            reduction.notes = (Note(code=NoteCode.SLOWER_UPDATES, values={"reason": answer.missing_because}),)
        return None
    from mpi4py import MPI

    return NativeReduction(MPI.COMM_SELF, answer.library, largest=0, algorithm=Algorithm.MESSAGES)


def faster_algorithm(world: World, library: NativeLibrary, tensors: Sequence[int]) -> tuple[Algorithm, Note | None]:
    """Return what sums `tensors` (bytes) faster, the same on every rank, and a note on a trial if there was one.

    On one host shared memory wins always, with one rank per host there is nothing but messages. Else both are tried
    in turns and the smaller median wins, the slowest rank's time counting.
    """
    hosts = world.comm.allgather(observe().host)
    if len(set(hosts)) == 1:
        return Algorithm.NATIVE, None
    if len(set(hosts)) == world.size:
        return Algorithm.MESSAGES, None
    counts = [max(1, size // 4) for size in tensors]
    largest = 4 * sum(counts)
    medians = _try_between_hosts(world, library, counts)
    if not medians:
        return Algorithm.NODE_AWARE, None  # the reduction that is opened by it says why it is another
    best = min(medians, key=lambda algorithm: medians[algorithm])
    values: dict[str, str | int | float] = {"tensors": len(counts), "bytes": largest, "algorithm": best}
    values["messages_ms"] = 1e3 * medians[Algorithm.MESSAGES]
    values["node_aware_ms"] = 1e3 * medians[Algorithm.NODE_AWARE]
    return best, Note(code=NoteCode.ALGORITHM_TRIED, values=values)


def _try_between_hosts(world: World, library: NativeLibrary, counts: Sequence[int]) -> dict[Algorithm, float]:
    """Return the median seconds of a sum by each algorithm, in turns; none where hosts cannot be node-aware."""
    largest = 4 * sum(counts)
    seconds: dict[Algorithm, list[float]] = {algorithm: [] for algorithm in _BETWEEN_HOSTS}
    sums: dict[Algorithm, Sum] = {}
    with ExitStack() as stack:
        for algorithm in _BETWEEN_HOSTS:
            opened = direct_sum(world.comm, library, largest=largest, algorithm=algorithm)
            taken, sums[algorithm] = stack.enter_context(opened)
        if taken is not Algorithm.NODE_AWARE:
            return {}
        values = np.zeros(sum(counts), np.float32)  # not before: these hosts may have no room for so many
        for _ in range(_CALLS):
            for algorithm, add in sums.items():
                world.comm.Barrier()
                begin = time.perf_counter()
                add(values.ctypes.data, counts)
                seconds[algorithm].append(time.perf_counter() - begin)
    medians = {}
    for algorithm, samples in seconds.items():
        slowest = np.max(world.comm.allgather(samples), axis=0)
        medians[algorithm] = float(median(slowest[_WARM_CALLS:]))
    return medians
