"""Calls of a scheduler's commands, and the environment that these and launches must not inherit."""

import os
import shutil
from collections.abc import Sequence

from harness.base.errors import UserError
from harness.base.processes import Reply, run_program
from harness.sweep.scheduler_answers import message

COMMAND_LIMIT_S = 120.0
"""Seconds that a scheduler's command may take; then it is ended."""
# What the user's shell sets for jobs of his own must not change ours; how to reach the scheduler must stay.
_PREFIXES = (
    *("SBATCH_", "SLURM_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_"),
    *("PBS_", "QSTAT_", "QSUB_"),
)
# What a launch on this machine must not take for its own job, when the command was given inside one.
_INHERITED = ("SLURM", "PBS_", "LSB_", "FLUX_", "PMI_", "PMIX_", "PALS_", "OMPI_COMM_", "PRTE_LAUNCHED")
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"} | {
    *("PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT", "PBS_EXEC", "PBS_HOME")
}


def variables_of_a_job() -> tuple[str, ...]:
    """Return the names of this process's variables that are of a batch job that it may run in."""
    return tuple(name for name in os.environ if name.startswith(_INHERITED))


def environment_of_no_job() -> dict[str, str]:
    """Return this process's environment without the variables of a batch job that it may run in."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_INHERITED)}


_OF_A_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "FLUX_ENCLOSING_ID", "HARNESS_JOB")
_OF_A_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID")


def in_a_job() -> bool:
    """Return whether this process runs inside a batch job or a launch, or is a rank."""
    return any(name in os.environ for name in (*_OF_A_JOB, *_OF_A_RANK))


class CommandRunner:
    """Runs commands and counts them, so that a sweep can say what it cost the scheduler."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.handles: tuple[int, ...] = ()
        """Open files that a submission command inherits: as long as it lives they are open, whatever becomes of us."""

    def ask(self, words: Sequence[str]) -> Reply:
        """Run a command and return its answer, whatever the exit code; raise a UserError if it gives none."""
        reply = self._call(words)
        if reply.code is None:
            raise UserError(f"{reply.err}: run this on a login node, try again later, or use SCHEDULER=local")
        return reply

    def submit(self, words: Sequence[str]) -> Reply:
        """Run a command that submits a job and return its reply, with a code of None if it was ended without one.

        Raises:
            UserError: there is no such command, so that nothing was submitted.
        """
        if shutil.which(words[0]) is None:
            raise UserError(f"{words[0]} is not here: run this on a login node, or use SCHEDULER=local")
        return self._call(words, self.handles)

    def _call(self, words: Sequence[str], handles: Sequence[int] = ()) -> Reply:
        self.calls[words[0]] = self.calls.get(words[0], 0) + 1
        unset = {name: None for name in os.environ if name.startswith(_PREFIXES) and name not in _KEPT}
        return run_program(words, limit_s=COMMAND_LIMIT_S, changes=unset, handles=handles)

    def run(self, words: Sequence[str]) -> str:
        """Run a command and return its standard output.

        Raises:
            UserError: it is not there, gives no answer or ends with an error; the sentence holds its own.
        """
        answer = self.ask(words)
        if answer.code:
            raise UserError(f"{words[0]} refused: {message(answer)}")
        return answer.out
