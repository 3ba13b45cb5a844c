"""The nodes of a Slurm job in which the command is given (``salloc``, a batch script): no queue, jobs run there."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil

from harness.base import exit_codes
from harness.base.launch_guard import JOB, find_processes
from harness.schema.record import JobUsage
from harness.sweep.scheduler_answers import State, in_a_rank
from harness.sweep.schedulers import JobFiles, slurm
from harness.sweep.schedulers.slurm import expand
from harness.sweep.site import Partition

_GRACE_S = 10.0


class Scheduler(slurm.Scheduler):
    """Runs the scripts of Slurm's jobs as processes of this host, one at a time; they outlive the command."""

    name = "inside"
    title = "The job around it"
    identifier = r"\d+"
    modes = ("turns", "jobs")
    unknown = (
        *("partition", "account", "project", "qos", "constraint", "reservation", "memory", "requeue", "signal_s"),
        *("after", "extra", "allocations"),
    )
    poll_s = 1.0

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.max_jobs = 1
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def detect(cls) -> str | None:
        """Return the job, if it has several nodes and this process is none of its ranks."""
        nodes = os.environ.get("SLURM_JOB_NODELIST", "")
        if in_a_rank() or not shutil.which("srun") or len(_nodes_here()) < 2:
            return None
        return f"job {os.environ.get('SLURM_JOB_ID', '')} on {nodes}"

    def check(self) -> str | None:
        """Return nothing: its launches share nodes with nobody."""
        return None

    def limit(self) -> Partition | None:
        """Return what the partition of the job has, and as many nodes as the job."""
        name = os.environ.get("SLURM_JOB_PARTITION", "")
        limit = self.site.limits(name) or self._live_limit(name)
        job = f"of job {os.environ.get('SLURM_JOB_ID', '')}"
        return replace(limit, name=job, nodes=len(_nodes_here())) if limit else None

    def submit(self, job: JobFiles) -> tuple[str, ...]:
        """Start the script of `job`; its process's number is the identifier."""
        folder = job.log.parent
        child = subprocess.Popen(
            ["bash", "-c", 'exec bash "$1" >"$2/$$.out" 2>&1', "job", str(job.script), str(folder)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {JOB: job.name},
            pass_fds=self.commands.handles,
        )
        self._children[str(child.pid)] = child
        return (str(child.pid),)

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the processes of those scripts called one of `names` that run."""
        jobs: dict[str, str] = {}
        for name in names:
            numbers = [process.pid for process in find_processes(JOB, name)]
            if numbers:
                jobs[name] = str(min(numbers))
        return jobs

    def find_ended(self, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Return nothing: nobody remembers them."""
        return {}

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of scripts by their processes."""
        return {job: self._state(job) for job in jobs}

    def disowns(self, job: str) -> bool:
        """Return whether there is no such process any more."""
        return not _job_of(job)

    def cancel(self, jobs: Iterable[str]) -> None:
        """End the scripts and what they have started: by SIGTERM, 10 s later by SIGKILL."""
        for job in jobs:
            name = _job_of(job)
            for number in (signal.SIGTERM, signal.SIGKILL) if name else ():
                family = find_processes(JOB, name)
                for process in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                psutil.wait_procs(family, timeout=_GRACE_S)

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return that its cost is that of the user's own job."""
        return f"it ran inside job {os.environ.get('SLURM_JOB_ID', '')}, whose cost is not divided"

    def _state(self, job: str) -> State:
        child = self._children.get(job)
        code = child.poll() if child is not None else None
        if code is not None:
            return State(phase="ended", exit_code=exit_codes.of_return_code(code))
        return State(phase="running" if child is not None or _job_of(job) else "unknown")


def _nodes_here() -> tuple[str, ...]:
    return tuple(expand(os.environ["SLURM_JOB_NODELIST"])) if os.environ.get("SLURM_JOB_NODELIST") else ()


def _job_of(number: str) -> str:
    """Return the name of the script that a process belongs to, empty where it is gone or no script's."""
    try:
        return str(psutil.Process(int(number)).environ().get(JOB, ""))
    except (psutil.Error, OSError):
        return ""
