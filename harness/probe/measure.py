"""What communication costs, measured by the ranks: ``mpirun ... python -m harness.probe.measure PLAN ANSWER``.

Rank 0 reads the plan and writes the answer; `harness probe` starts this and does the rest.
"""

import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from harness.base.cpu_contention import CpuUsage, other_loads, overloads
from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.comm.placement import misplacements, observe
from harness.probe.plan import Bench, benches
from harness.schema.layout import Layout
from harness.schema.record import decode, encode

if TYPE_CHECKING:
    from harness.comm.world import World


_BATCH_S = 200e-6  # a sample is a batch of calls at least this long: clock and barrier then do not show
_MOST_CALLS = 500
FEWEST = 6  # samples: an interval needs them


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbePlan:
    """What to measure: message `sizes` in bytes, `samples` of each (fewer, at least 6, within `budget_s` seconds).

    `reductions` are the choices of HARNESS_REDUCTION to be timed beside MPI's own operations.
    """

    sizes: tuple[int, ...]
    samples: int
    budget_s: float
    reductions: tuple[str, ...]
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageSeries:
    """Samples of one operation at one size: seconds of a message on the slowest rank, in the order of time."""

    operation: str
    level: str
    ranks: int
    bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """What the ranks found. `hosts` has one name per rank, `invalid` why the times must not be used."""

    hosts: tuple[str, ...]
    mpi_library: str
    series: tuple[MessageSeries, ...]
    invalid: tuple[str, ...]
    notes: tuple[str, ...]


def measure(world: "World", plan: ProbePlan) -> ProbeResult | None:
    """Measure `plan` on all ranks; return the answer on rank 0, None elsewhere."""
    from mpi4py import MPI

    with ExitStack() as stack:
        found, notes = benches(world, largest=max(plan.sizes), reductions=plan.reductions, stack=stack)
        before = CpuUsage.now()
        series = _series(world, plan, found)
        after = CpuUsage.now()
    places = world.comm.allgather((observe(), psutil.cpu_count() or 1))
    hosts = [place.host for place, _ in places]
    loads = other_loads(world.comm, hosts, before, after)
    if world.rank:
        return None
    misplaced = misplacements(Layout(nodes=1, ranks_per_node=world.size), [place for place, _ in places])
    loaded = overloads(loads, Counter(hosts), {place.host: cores for place, cores in places})
    return ProbeResult(
        hosts=tuple(hosts),
        mpi_library=MPI.Get_library_version().split("\0")[0].split("\n")[0].strip(),
        series=series,
        invalid=misplaced or loaded,
        notes=tuple(notes),
    )


def _series(world: "World", plan: ProbePlan, found: list[Bench]) -> tuple[MessageSeries, ...]:
    """Time every bench at every size, one sample of each after the other in a new order every round.

    So what disturbs the machine for a while falls on all sizes alike.
    """
    cases = [(bench, size) for bench in found for size in plan.sizes if size <= bench.largest]
    calls, round_s = [], 0.0
    for bench, size in cases:
        _sample(world, bench, size, 1)
        seconds = _sample(world, bench, size, 3)
        calls.append(min(_MOST_CALLS, max(1, round(_BATCH_S / seconds))))
        round_s += seconds * bench.messages * (calls[-1] + 1)
    rounds = max(FEWEST, min(plan.samples, int(plan.budget_s / round_s)))
    samples = np.empty((len(cases), rounds))
    order = list(range(len(cases)))
    shuffle = random.Random(plan.seed)  # the same order on every rank
    for number in range(rounds):
        shuffle.shuffle(order)
        for index in order:
            samples[index, number] = _sample(world, *cases[index], calls[index])
    return tuple(
        MessageSeries(
            operation=bench.operation,
            level=bench.level,
            ranks=bench.ranks,
            bytes=size,
            seconds=tuple(float(value) for value in samples[index]),
        )
        for index, (bench, size) in enumerate(cases)
    )


def _sample(world: "World", bench: Bench, size: int, calls: int) -> float:
    """Return the seconds of one message on the slowest rank, over `calls` calls after an untimed one."""
    from mpi4py import MPI

    if bench.call:
        bench.call(size)
    world.comm.Barrier()
    seconds = np.zeros(1)
    if bench.call:
        begin = time.perf_counter()
        for _ in range(calls):
            bench.call(size)
        seconds[0] = (time.perf_counter() - begin) / calls / bench.messages
    world.comm.Allreduce(MPI.IN_PLACE, seconds, op=MPI.MAX)
    return float(seconds[0])


def main() -> None:
    """Join the world, measure, and let rank 0 write the answer."""
    from harness.comm.world import abort, start

    world = start()
    try:
        plan_file, answer_file = Path(sys.argv[1]), Path(sys.argv[2])
        if world.size < 2:
            raise RunError("a single rank has nobody to talk to: start at least 2 ranks")
        plan = world.comm.bcast(decode(plan_file.read_bytes(), ProbePlan, plan_file) if world.rank == 0 else None)
        answer = measure(world, plan)
        if answer is not None:
            write_atomic(answer_file, encode(answer))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this one: end them too
        abort(world, error)


if __name__ == "__main__":
    main()
