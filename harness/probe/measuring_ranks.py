"""What communication costs, measured by the ranks: ``mpirun ... python -m harness.probe.measuring_ranks PLAN ANSWER``.

Rank 0 reads the plan and writes the answer; `harness probe` starts this and does the rest.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.base import turns
from harness.base.cores import host_cores
from harness.base.cpu_contention import CpuUsage, busy_s, other_loads, overloads
from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.base.processes import quiet_stderr
from harness.comm.placement_check import misplacements, observe
from harness.comm.world import World, abort, start_mpi
from harness.schema.layout import Layout
from harness.schema.message_cost import ALL, ALLREDUCE, BROADCAST, NETWORK, NODE, POINT_TO_POINT, REDUCTION, Algorithm
from harness.schema.record import decode, encode

if TYPE_CHECKING:
    from mpi4py import MPI

    from harness.comm.native_group import Sum


_BATCH_S = 200e-6  # a sample is a batch of calls at least this long: clock and barrier are then negligible
_MOST_CALLS = 500
_FEWEST_SAMPLES = 6  # an interval needs them
_LEAST_LOAD_S = 1.0  # CPU times come in ticks of 10 ms: over fewer turns than that, those of others count as other load
_LARGEST_REDUCTION = 2**25  # bytes: above every network of the papers; two buffers of it are shared memory

Call = Callable[[int], None]
Buffer = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbePlan:
    """What to measure: message `sizes` in bytes, `samples` of each (fewer, at least 6, within `budget_s` seconds).

    `reductions` are the choices of HARNESS_REDUCTION to be timed beside MPI's own operations. `in_turns`: with other
    launches of a block, a sample being a step.
    """

    sizes: tuple[int, ...]
    samples: int
    budget_s: float
    reductions: tuple[str, ...]
    in_turns: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageSeries:
    """Samples of one operation at one size: seconds of a message on the slowest rank, in the order of time.

    `turns` has the number of the turn in which each was made, 0 for the first of a turn, whose caches are cold.
    """

    operation: str
    level: str
    ranks: int
    bytes: int
    seconds: tuple[float, ...]
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """What the ranks found. `hosts` has one name per rank, `invalid` why the times must not be used."""

    hosts: tuple[str, ...]
    mpi_library: str
    series: tuple[MessageSeries, ...]
    invalid: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOperation:
    """One operation at one level. `call` makes it once with that many bytes; None on a rank that only waits.

    `messages` is 2 for a round trip: the time of one message is half of it.
    """

    operation: str
    level: str
    ranks: int
    largest: int
    call: Call | None
    messages: int = 1


def measure(world: World, plan: ProbePlan) -> ProbeResult | None:
    """Measure `plan` on all ranks; return the answer on rank 0, None elsewhere."""
    from mpi4py import MPI

    with ExitStack() as stack:
        operations, notes = _timed_operations(world, largest=max(plan.sizes), reductions=plan.reductions, stack=stack)
        my_turns = turns.join_turns(world.rank, world.size, busy_s) if plan.in_turns else None
        if my_turns is not None:
            my_turns.wait()
        before = CpuUsage.now()
        series = _series(world, plan, operations, my_turns)
        after = CpuUsage.now()
        if my_turns is not None:
            my_turns.finish()
    places = world.comm.allgather((observe(), host_cores()))
    hosts = [place.host for place, _ in places]
    loads = other_loads(world.comm, hosts, before, after)
    if world.rank:
        return None
    misplaced = misplacements(Layout(nodes=1, ranks_per_node=world.size), [place for place, _ in places])
    loaded = overloads(loads, Counter(hosts), {place.host: cores for place, cores in places})
    if my_turns is not None and after.clock - before.clock < _LEAST_LOAD_S:
        loaded = ()
    return ProbeResult(
        hosts=tuple(hosts),
        mpi_library=MPI.Get_library_version().split("\0")[0].split("\n")[0].strip(),
        series=series,
        invalid=misplaced or loaded,
        notes=tuple(notes),
    )


def _series(
    world: World, plan: ProbePlan, operations: list[TimedOperation], my_turns: turns.Turns | None
) -> tuple[MessageSeries, ...]:
    """Time every operation at every size: every round takes one sample of each, in a new order.

    What disturbs the machine for a while then falls on all sizes equally. Operations of a size follow each other, and
    the order is the same in all launches of a block: what is compared is sampled in turns of the same round.
    """
    cases = [(timed, size) for timed in operations for size in plan.sizes if size <= timed.largest]
    calls = []
    round_s = 0.0
    for timed, size in cases:
        _sample(world, timed, size, 1)
        seconds = _sample(world, timed, size, 3)
        calls.append(min(_MOST_CALLS, max(1, round(_BATCH_S / seconds))))
        round_s += seconds * timed.messages * (calls[-1] + 1)
    rounds = max(_FEWEST_SAMPLES, min(plan.samples, int(plan.budget_s / round_s)))
    sampled: list[int] = []  # the index of the case of every sample, in the order of time
    seconds_of: list[list[float]] = [[] for _ in cases]
    sizes = list(plan.sizes)
    shuffle = random.Random(0)  # the same order on every rank
    for _ in range(rounds):
        shuffle.shuffle(sizes)
        for index in sorted(range(len(cases)), key=lambda index: (sizes.index(cases[index][1]), shuffle.random())):
            seconds_of[index].append(_sample(world, *cases[index], calls[index]))
            sampled.append(index)
            if my_turns is not None:
                my_turns.step()
    turn_numbers = np.array(my_turns.take_marks(len(sampled)) if my_turns is not None else (), int)
    return tuple(
        MessageSeries(
            operation=timed.operation,
            level=timed.level,
            ranks=timed.ranks,
            bytes=size,
            seconds=tuple(seconds_of[index]),
            turns=tuple(turn_numbers[np.array(sampled) == index].tolist()) if my_turns is not None else (),
        )
        for index, (timed, size) in enumerate(cases)
    )


def _sample(world: World, timed: TimedOperation, size: int, calls: int) -> float:
    """Return the seconds of one message on the slowest rank, over `calls` calls after an untimed one."""
    from mpi4py import MPI

    if timed.call:
        timed.call(size)
    world.comm.Barrier()
    seconds = np.zeros(1)
    if timed.call:
        begin = time.perf_counter()
        for _ in range(calls):
            timed.call(size)
        seconds[0] = (time.perf_counter() - begin) / calls / timed.messages
    world.comm.Allreduce(MPI.IN_PLACE, seconds, op=MPI.MAX)
    return float(seconds[0])


def _timed_operations(
    world: World, *, largest: int, reductions: tuple[str, ...], stack: ExitStack
) -> tuple[list[TimedOperation], list[str]]:
    """Return what this world can measure, in the same order on every rank, and notes on what it cannot.

    `largest` is the bytes of the largest message. `stack` frees what must be freed on all ranks.
    """
    hosts = world.comm.allgather(observe().host)
    buffer = np.zeros(-(-largest // 4), np.float32)  # zeros: sums of sums stay finite
    first = hosts.index(hosts[world.rank])
    node = world.comm.Split(first, world.rank)
    stack.callback(node.Free)
    leaders = world.comm.Split(int(world.rank != first), world.rank)
    stack.callback(leaders.Free)
    several_hosts = len(set(hosts)) > 1
    crowded = len(set(hosts)) < world.size
    operations: list[TimedOperation] = []
    neighbour = next((rank for rank in range(1, world.size) if hosts[rank] == hosts[0]), None)
    if neighbour is not None:
        operations.append(_point_to_point(world, NODE, neighbour, buffer))
        operations += _collectives(node, NODE, hosts.count(hosts[0]), buffer, takes_part=True)
    if several_hosts:
        remote = next(rank for rank in range(1, world.size) if hosts[rank] != hosts[0])
        operations.append(_point_to_point(world, NETWORK, remote, buffer))
        operations += _collectives(leaders, NETWORK, len(set(hosts)), buffer, takes_part=world.rank == first)
    if several_hosts and crowded:
        operations += _collectives(world.comm, ALL, world.size, buffer, takes_part=True)
    level = NODE
    if several_hosts:
        level = ALL if crowded else NETWORK
    reductions_timed, notes = _own_reductions(world, reductions, level, buffer[: _LARGEST_REDUCTION // 4], stack)
    return operations + reductions_timed, notes


def _point_to_point(world: World, level: str, partner: int, buffer: Buffer) -> TimedOperation:
    comm = world.comm
    message = buffer.view(np.uint8)

    def there_and_back(count: int) -> None:
        comm.Send(message[:count], dest=partner)
        comm.Recv(message[:count], source=partner)

    def back(count: int) -> None:
        comm.Recv(message[:count], source=0)
        comm.Send(message[:count], dest=0)

    call = {0: there_and_back, partner: back}.get(world.rank)
    return TimedOperation(operation=POINT_TO_POINT, level=level, ranks=2, largest=buffer.nbytes, call=call, messages=2)


def _collectives(
    comm: "MPI.Comm", level: str, ranks: int, buffer: Buffer, *, takes_part: bool
) -> Iterator[TimedOperation]:
    from mpi4py import MPI

    message = buffer.view(np.uint8)

    def broadcast(count: int) -> None:
        comm.Bcast(message[:count], root=0)

    def allreduce(count: int) -> None:
        comm.Allreduce(MPI.IN_PLACE, buffer[: count // 4])

    for name, call in ((BROADCAST, broadcast), (ALLREDUCE, allreduce)):
        part = call if takes_part else None
        yield TimedOperation(operation=name, level=level, ranks=ranks, largest=buffer.nbytes, call=part)


def _own_reductions(
    world: World, names: tuple[str, ...], level: str, buffer: Buffer, stack: ExitStack
) -> tuple[list[TimedOperation], list[str]]:
    """Return the harness's own reductions, or the reason why there are none."""
    from harness.comm.native_library import find_library

    if not names:
        return [], []
    with quiet_stderr():  # TensorFlow is imported
        answer = find_library(world.comm)
    if answer.library is None:
        return [], [f"the harness's own reductions were not measured: {answer.missing_because}"]
    from harness.comm.native_group import direct_sum

    operations: list[TimedOperation] = []
    address = buffer.ctypes.data
    for name in names:
        algorithm = Algorithm(name)
        opened = direct_sum(world.comm, answer.library, largest=buffer.nbytes, algorithm=algorithm)
        taken, total = stack.enter_context(opened)
        if taken is not algorithm:
            continue  # these hosts cannot reduce by it

        def call(count: int, total: "Sum" = total) -> None:
            total(address, [count // 4])

        operations.append(
            TimedOperation(
                operation=f"{REDUCTION}{name}", level=level, ranks=world.size, largest=buffer.nbytes, call=call
            )
        )
    return operations, []


def main() -> None:
    """Join the world, measure, and let rank 0 write the answer."""
    world = start_mpi()
    try:
        plan_file = Path(sys.argv[1])
        answer_file = Path(sys.argv[2])
        if world.size < 2:
            raise RunError("a single rank has no other to exchange messages with: start at least 2 ranks")
        plan = world.comm.bcast(decode(plan_file.read_bytes(), ProbePlan, plan_file) if world.rank == 0 else None)
        answer = measure(world, plan)
        if answer is not None:
            write_atomic(answer_file, encode(answer))
    except Exception as error:  # noqa: BLE001 - the other ranks wait for this one, whatever the error: end them too
        abort(world, error)


if __name__ == "__main__":
    main()
