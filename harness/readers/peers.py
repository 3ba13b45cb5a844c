"""The ranks that read a data set together: those that a launcher started, or this process alone."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_COUNTS = ("HARNESS_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """This process's number among `size`, and a way to get every rank's value of something, in order of ranks."""

    rank: int = 0
    size: int = 1
    gather: Callable[[Any], list[Any]] = lambda value: [value]


def find_peers(environment: Mapping[str, str] = os.environ) -> Peers:
    """Return the ranks that a launcher has started; this process alone under TF_MPI_ENABLE=0 or without one.

    Raises:
        UserError: the launcher started ranks that are not in one MPI world.
    """
    started = any(environment.get(name, "").isdigit() and int(environment[name]) > 1 for name in _COUNTS)
    if not started or environment.get("TF_MPI_ENABLE") == "0":
        return Peers()
    from harness.comm.world import check_start, start_mpi

    world = start_mpi()
    check_start(world.size)
    return Peers(rank=world.rank, size=world.size, gather=lambda value: list(world.comm.allgather(value)))
