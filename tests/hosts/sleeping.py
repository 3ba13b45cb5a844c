"""Rank program: steps that are slept and sums that are real: ``python -m tests.hosts.sleeping PLAN ANSWER``.

In every step of a `Training` each rank sleeps for as long as a recorded step computed, drawn anew, then sums with the
others as the harness does between hosts of a rank each: every large tensor by an MPI_Allreduce of its own. Rank 0 sets
up the network between the hosts before (`Lab.network`), and writes what the steps took.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from mpi4py import MPI

from harness.schema.record import decode, encode
from tests.hosts.lab import Lab

WARM = 2  # steps that are not counted: connections are made in them


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Steps on one network. Time is `slow` times slower than what is emulated: sleeps, delays and rates are.

    `compute_s` are seconds of recorded steps, `messages` the bytes of each allreduce of a step.
    """

    compute_s: tuple[float, ...]
    messages: tuple[int, ...]
    steps: int
    slow: float
    delay_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """What a step took, in emulated seconds, and its parts, means over steps and ranks; `error_s` is step_s's own.

    Time was `slow` times slower, and the machine's cores idle for the part `idle` of it.
    """

    slow: float
    idle: float
    step_s: float
    error_s: float
    compute_s: float
    wait_s: float
    sum_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All that one launch does; `folder` is the lab's."""

    folder: str
    trainings: tuple[Training, ...]


def train(comm: MPI.Intracomm, one: Training, seed: int) -> Steps | None:
    """Make the steps; return what they took on rank 0."""
    random = np.random.default_rng([seed, comm.rank])
    slept = one.slow * random.choice(one.compute_s, WARM + one.steps)
    tensors = [np.empty(size // 4, np.float32) for size in one.messages]
    times = np.zeros((2, len(slept)))  # ends of sleeps and of sums; all hosts have this machine's clock
    comm.Barrier()
    left = time.perf_counter()
    for number, seconds in enumerate(slept):
        if number == WARM:
            begin, resting = time.perf_counter(), psutil.cpu_times().idle
        for tensor in tensors:
            tensor[:] = comm.rank
        time.sleep(max(0.0, left + seconds - time.perf_counter()))
        times[0, number] = time.perf_counter()
        for tensor in tensors:
            comm.Allreduce(MPI.IN_PLACE, tensor)
        left = times[1, number] = time.perf_counter()
    idle = (psutil.cpu_times().idle - resting) / (left - begin) / (psutil.cpu_count() or 1)
    right = all((tensor == comm.size * (comm.size - 1) / 2).all() for tensor in tensors)
    assert all(comm.allgather(right)), "the ranks hold other sums than they should"
    found = comm.gather(times)
    if found is None:
        return None
    came, went = (np.array([rank[part] for rank in found]).T / one.slow for part in (0, 1))  # [steps, ranks]
    steps = np.diff(went, axis=0)[WARM - 1 :].mean(axis=1)
    last = came.max(axis=1, keepdims=True)
    return Steps(
        slow=one.slow,
        idle=idle,
        step_s=float(steps.mean()),
        error_s=float(steps.std(ddof=1) / len(steps) ** 0.5),
        compute_s=float((came[WARM:] - went[WARM - 1 : -1]).mean()),
        wait_s=float((last - came)[WARM:].mean()),
        sum_s=float((went - last)[WARM:].mean()),
    )


def main() -> None:
    """Make the steps of all trainings of the plan, one after the other."""
    comm = MPI.COMM_WORLD
    plan = decode(Path(sys.argv[1]).read_bytes(), Plan, Path(sys.argv[1]))
    found = []
    for number, one in enumerate(plan.trainings):
        if comm.rank == 0:
            lab = Lab(folder=Path(plan.folder), pids={}, addresses={})
            lab.network(delay_s=one.slow * one.delay_s, bytes_per_s=one.bytes_per_s / one.slow)
        found.append(train(comm, one, number))
    if comm.rank == 0:
        Path(sys.argv[2]).write_bytes(encode(tuple(found)))


if __name__ == "__main__":
    main()
