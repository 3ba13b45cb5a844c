"""Calls of a scheduler's own commands, and the environment that they and local launches must not inherit."""

import os
from collections.abc import Sequence

from harness.base.errors import UserError
from harness.base.processes import Reply, ask

_LIMIT_S = 120.0  # a controller under load answers late, rarely never
# What the user's shell sets for jobs of his own must not change ours; how to reach the scheduler must stay.
_PREFIXES = (
    "SBATCH_",
    "SLURM_",
    "SQUEUE_",
    "SACCT_",
    "SINFO_",
    "SCANCEL_",
    "SCONTROL_",
    "PBS_",
    "QSTAT_",
    "QSUB_",
    "LSB_",
)
# What a launch on this machine must not take for its own job, when the command was given inside one.
_INHERITED = ("SLURM", "PBS_", "LSB_", "FLUX_", "PMI_", "PMIX_", "PALS_", "OMPI_COMM_", "PRTE_LAUNCHED")
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"} | {
    *("PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT", "PBS_EXEC", "PBS_HOME"),
}


def _not_ours() -> dict[str, None]:
    """Return the variables of this process's environment that are settings for the user's own batch jobs."""
    return {name: None for name in os.environ if name.startswith(_PREFIXES) and name not in _KEPT}


def environment_of_no_job() -> dict[str, str]:
    """Return this process's environment without the variables of a batch job that it may run in."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_INHERITED)}


class CommandRunner:
    """Runs commands and counts them, so that a sweep can say what it cost the scheduler."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def ask(self, words: Sequence[str]) -> Reply:
        """Run a command and return what it answered, whatever its exit code.

        Raises:
            UserError: the command is not there or does not answer.
        """
        self.calls[words[0]] = self.calls.get(words[0], 0) + 1
        reply = ask(words, limit_s=_LIMIT_S, changes=_not_ours())
        if reply.code is None:
            raise UserError(f"{reply.err}: run this on a login node, try again later, or use SCHEDULER=local")
        return reply

    def run(self, words: Sequence[str]) -> str:
        """Run a command and return its standard output.

        Raises:
            UserError: it is not there, gives no answer or ends with an error; the sentence holds its own.
        """
        answer = self.ask(words)
        if answer.code:
            raise UserError(f"{words[0]} refused: {message(answer)}")
        return answer.out


def message(answer: Reply) -> str:
    """Return the error of a command in one line."""
    lines = [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip()]
    return "; ".join(lines[:3]) or f"exit code {answer.code}"
