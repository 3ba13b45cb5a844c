"""Which rank a script runs on is hidden from it: every rank sees that it is rank 0 of 1.

A rank that knows that it is rank 1 would leave out what the script does on rank 0 only.
"""

import os
from typing import Any

RANKS = "HARNESS_RANKS"
"""Environment variable: how many ranks there are, for code that must know it (`DataSet`)."""

_RANK_VARIABLES = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK", "PMIX_RANK", "PMI_RANK"),
    *("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_RANKID", "PALS_LOCAL_RANKID", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
    *("SLURM_PROCID", "SLURM_LOCALID", "RANK", "LOCAL_RANK"),
)
_SIZE_VARIABLES = (
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS"),
    *("SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "FLUX_JOB_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)
_WORLD = "COMM_WORLD"
_FINALIZE = "Finalize"
_IS_FINALIZED = "Is_finalized"


class RankVariables:
    """Hides from a script which of several ranks it runs on."""

    def __init__(self) -> None:
        self._hidden: dict[str, str] = {}
        self._mpi: dict[str, Any] = {}  # what is replaced of mpi4py's module
        self._finalized = False

    def hide(self, size: int) -> None:
        """Give the variables of launchers, and mpi4py's world, the values of one process."""
        from mpi4py import MPI

        for names, value in ((_RANK_VARIABLES, "0"), (_SIZE_VARIABLES, "1")):
            for name in names:
                if name in os.environ:
                    self._hidden[name] = os.environ[name]
                    os.environ[name] = value
        os.environ[RANKS] = str(size)
        self._mpi = {name: getattr(MPI, name) for name in (_WORLD, _FINALIZE, _IS_FINALIZED)}
        setattr(MPI, _WORLD, MPI.COMM_SELF)
        setattr(MPI, _FINALIZE, self._finalize)
        setattr(MPI, _IS_FINALIZED, lambda: self._finalized)

    def show(self) -> None:
        """Put everything back, for a script that sees to its ranks itself or has ended."""
        if not self._mpi:
            return
        from mpi4py import MPI

        os.environ.update(self._hidden)
        for name, value in self._mpi.items():
            setattr(MPI, name, value)

    def _finalize(self) -> None:
        """Do what the script sees of the end of MPI, which the ranks still need."""
        self._finalized = True
