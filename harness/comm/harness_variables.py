"""The HARNESS_* variables that ranks read: what a user chooses of their sums, and what a job tells of itself."""

import os
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import unknown
from harness.schema.message_cost import Algorithm

MPI_CHOICES = ("wheel", "system")
EXIT_CODE_FILE = "HARNESS_LEFT"
"""Names the file that takes the exit code with which all ranks end."""


def chosen_algorithm() -> Algorithm:
    """Return HARNESS_REDUCTION, ``native`` where it is not set; raise a UserError if it is something else."""
    choice = os.environ.get("HARNESS_REDUCTION") or Algorithm.NATIVE
    if choice not in list(Algorithm):
        raise unknown("HARNESS_REDUCTION", choice, Algorithm)
    return Algorithm(choice)


def chosen_overlap() -> bool | None:
    """Return HARNESS_OVERLAP as a truth value, None where it is not set; raise a UserError if it is not 0 or 1."""
    choice = os.environ.get("HARNESS_OVERLAP") or ""
    if choice not in ("", "0", "1"):
        raise unknown("HARNESS_OVERLAP", choice, ("0", "1"))
    return choice == "1" if choice else None


def sums_on_one_rank() -> bool:
    """Return whether HARNESS_SYNC_ALONE=1 has one rank alone sum as several do, to show what that costs."""
    return os.environ.get("HARNESS_SYNC_ALONE") == "1"


def exit_code_file() -> Path | None:
    """Return the file that takes the ranks' exit code, None where none is asked for."""
    name = os.environ.get(EXIT_CODE_FILE)
    return None if name is None else Path(name)


def scheduler_name() -> str:
    """Return HARNESS_SCHEDULER, the scheduler whose job this process is a part of; ``local`` where it is not set."""
    return os.environ.get("HARNESS_SCHEDULER", "local")


def launcher_words() -> str:
    """Return HARNESS_LAUNCHER, the command line by which a job has started its ranks; empty where it is not set."""
    return os.environ.get("HARNESS_LAUNCHER", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkedProcess:
    """A process that `harness.sweep.fork_server` has forked: its id, and its server's bytes of files in memory.

    A file's pages, most of them libraries', are no part of a forked process's memory until it touches them.
    """

    pid: int
    library_bytes: int


def forked_process() -> ForkedProcess | None:
    """Return what HARNESS_SERVED_PROCESS says of this process; None where it was not forked, or its parent was."""
    words = os.environ.get("HARNESS_SERVED_PROCESS", "").split()
    if len(words) != 2 or words[0] != str(os.getpid()):
        return None
    return ForkedProcess(pid=int(words[0]), library_bytes=int(words[1]))


def mpi_choice() -> str:
    """Return HARNESS_MPI: ``wheel`` (default) or ``system``; raise a UserError if it is something else."""
    choice = os.environ.get("HARNESS_MPI") or "wheel"
    if choice not in MPI_CHOICES:
        raise unknown("MPI (HARNESS_MPI)", choice, MPI_CHOICES)
    return choice
