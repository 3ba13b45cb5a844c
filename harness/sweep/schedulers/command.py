"""Calls of the scheduler's own commands: counted, limited in time, free of the caller's settings."""

import os
import subprocess
from collections.abc import Sequence

from harness.errors import UserError

_LIMIT_S = 120.0  # a controller under load answers late, rarely never
# What the user's shell sets for jobs of his own must not change ours; how to reach the scheduler must stay.
_PREFIXES = ("SBATCH_", "SLURM_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "PBS_", "QSTAT_", "QSUB_")
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS"} | {
    *("PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT", "PBS_EXEC", "PBS_HOME"),
}


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings for batch jobs."""
    return {name: text for name, text in os.environ.items() if name in _KEPT or not name.startswith(_PREFIXES)}


class Commands:
    """Runs commands and counts them, so that a sweep can say what it cost the scheduler."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def ask(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command and return what it answered, whatever its exit code.

        Raises:
            UserError: the command is not there or does not answer.
        """
        self.calls[words[0]] = self.calls.get(words[0], 0) + 1
        try:
            return subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                env=clean_environment(),
                check=False,
            )
        except FileNotFoundError as error:
            raise UserError(f"{words[0]} is not on PATH: run this on a login node, or use SCHEDULER=local") from error
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{words[0]} gave no answer in {_LIMIT_S:.0f} s: try again later") from error

    def run(self, words: Sequence[str]) -> str:
        """Run a command and return its standard output.

        Raises:
            UserError: it is not there, gives no answer or ends with an error; the sentence holds its own.
        """
        answer = self.ask(words)
        if answer.returncode:
            raise UserError(f"{words[0]} refused: {said(answer)}")
        return answer.stdout


def said(answer: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a command in one line."""
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    return "; ".join(lines[:3]) or f"exit code {answer.returncode}"
