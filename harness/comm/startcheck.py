"""Whether the ranks found each other: the classic is srun without the right PMI, which starts P worlds of one rank."""

import os
import sys
from collections.abc import Mapping

from harness.errors import UserError

_NUMBERS = ("SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def check_start(size: int) -> None:
    """End every process of a wrong start; the first of them says what is wrong.

    Raises:
        UserError: in the first process, see `wrong_start`.
    """
    if size != 1:
        return
    from mpi4py import MPI

    problem = wrong_start(size, os.environ, MPI.Get_library_version())
    if problem is None:
        return
    if any(_count(os.environ, name) > 0 for name in _NUMBERS):
        sys.exit(2)
    raise UserError(problem)


def wrong_start(size: int, environ: Mapping[str, str], library: str) -> str | None:
    """Return why a world of `size` ranks is not what the launcher meant to start, with the fix, or None.

    `library` is the MPI library's own name. Launchers tell their processes how many there are: srun by
    SLURM_STEP_NUM_TASKS, Open MPI's mpirun by OMPI_COMM_WORLD_SIZE, Hydra's (MPICH, Intel MPI) by PMI_SIZE.
    """
    if size != 1:
        return None
    openmpi = "open mpi" in library.lower()
    if _count(environ, "OMPI_COMM_WORLD_SIZE") > 1:
        return _other(environ["OMPI_COMM_WORLD_SIZE"], "mpirun of Open MPI", library, "the mpirun of that library")
    if _count(environ, "OMPI_COMM_WORLD_SIZE") == 1:
        return None  # mpirun itself started its daemon by srun: the step's tasks are not the ranks
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if _count(environ, "PMI_SIZE") > 1 and not tasks:
        return _other(environ["PMI_SIZE"], "mpiexec of MPICH", library, "the mpirun of that library")
    if _count(environ, "SLURM_STEP_NUM_TASKS") > 1:
        kind = "pmix" if openmpi else "pmi2"
        return _other(tasks, "srun", library, f"srun --mpi={kind}, or mpirun inside the job")
    return None


def _other(count: str, launcher: str, library: str, fix: str) -> str:
    name = library.split(",")[0].strip()
    return f"{launcher} started {count} processes, but each of them is alone in its MPI world ({name}): use {fix}"


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
