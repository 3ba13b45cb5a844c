"""Which scheduler is there."""

import shutil
import subprocess

from harness.errors import UserError
from harness.sweep.schedulers.command import clean_environment
from harness.sweep.site import Site

_LIMIT_S = 60.0
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
            words, capture_output=True, text=True, timeout=_LIMIT_S, env=clean_environment(), check=False
        )
    except FileNotFoundError:
        return 127, f"{words[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return 124, f"{words[0]} gave no answer in {_LIMIT_S:.0f} s"
    return answer.returncode, " ".join((answer.stdout + answer.stderr).split())[-200:]
