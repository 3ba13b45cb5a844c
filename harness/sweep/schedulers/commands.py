"""Calls of a scheduler's own commands, which scheduler is there, and what its partitions refuse."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from harness.base.errors import UserError
from harness.schema.layout import Layout
from harness.sweep.job_options import Request, seconds
from harness.sweep.site import Partition, Site

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


_DETECTION_LIMIT_S = 60.0
# Installed, but never told of a cluster: Debian's packages on a workstation, say.
_NO_CLUSTER = ("configuration source", "configuration file")


def choose(name: str, site: Site) -> tuple[str, str]:
    """Return the scheduler for `name`, which may be ``auto``, and one sentence that says why it was chosen.

    The site's own choice comes first, then what answers on this machine; with neither it is this machine.

    Raises:
        UserError: a scheduler is there and does not answer: a login node is no place to train instead.
    """
    if name != "auto":
        return name, f"scheduler: {name}, as asked"
    if site.scheduler != "auto":
        return site.scheduler, f"scheduler: {site.scheduler}, by site {site.name}"
    if shutil.which("sbatch") and _slurm_answers():
        return "slurm", f"scheduler: slurm, found {shutil.which('sbatch')} (SCHEDULER=local runs here instead)"
    if shutil.which("qsub") and _is_pbs():
        return "pbs", f"scheduler: pbs, found {shutil.which('qsub')} (SCHEDULER=local runs here instead)"
    return "local", "scheduler: local, no Slurm and no PBS here: a core of this machine stands for a node"


def _slurm_answers() -> bool:
    code, said = _ask("sinfo", "--noheader", "--format=%P")
    if code and not any(phrase in said for phrase in _NO_CLUSTER):
        raise UserError(f"Slurm is installed and does not answer ({said}): try later, or set SCHEDULER=local")
    return not code


def _is_pbs() -> bool:
    """Tell PBS from Torque and from Slurm's imitation, whose qstat knows other options."""
    code, said = _ask("qstat", "--version")
    return not code and "pbs_version" in said


def _ask(*words: str) -> tuple[int, str]:
    try:
        answer = subprocess.run(
            words, capture_output=True, text=True, timeout=_DETECTION_LIMIT_S, env=clean_environment(), check=False
        )
    except FileNotFoundError:
        return 127, f"{words[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return 124, f"{words[0]} gave no answer in {_DETECTION_LIMIT_S:.0f} s"
    return answer.returncode, " ".join((answer.stdout + answer.stderr).split())[-200:]


def beyond(layout: Layout, request: Request, limit: Partition | None) -> str | None:
    """Return why `layout` exceeds `limit`, in one clause, or None; nothing is known of a `limit` of None."""
    if limit is None:
        return None
    cores, gpus = layout.ranks_per_node * layout.threads, layout.ranks_per_node * layout.gpus_per_rank
    where = f"partition {limit.name}"
    for needed, there, what in (
        (layout.nodes, limit.nodes, "nodes"),
        (cores, limit.cores_per_node, "cores a node"),
        (gpus, limit.gpus_per_node, "GPUs a node"),
        (_megabytes(request.memory), limit.memory_mb, "MB a node"),
    ):
        if there is not None and needed > there:
            return f"needs {needed} {what}, {where} has {there}"
    if limit.walltime is not None and seconds(request.walltime) > seconds(limit.walltime):
        return f"asks for WALLTIME={request.walltime}, {where} allows {limit.walltime}"
    return None


def _megabytes(memory: str) -> int:
    if not memory:
        return 0
    return int(int(memory[:-1]) * {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}[memory[-1]])
