"""The nodes of a Slurm job in which the command is given: ``salloc``, a batch script.

Also what all schedulers have in common whose jobs run inside a job of the user's.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import psutil

from harness.base import exit_codes
from harness.base.errors import UserError
from harness.base.launch_guard import JOB, find_processes
from harness.schema.layout import Layout
from harness.schema.record import JobUsage
from harness.sweep import schedulers
from harness.sweep.job_nodes import allocation_of_nodes, current_allocation
from harness.sweep.scheduler_answers import State
from harness.sweep.schedulers import JobFiles, scheduler_class, slurm
from harness.sweep.site import Partition, clock_seconds, walltime

_GRACE_S = 10.0
_LEAST_S = 60.0  # the time that a job which is about to end is taken to have


class InsideJob(schedulers.Scheduler):
    """Runs the scripts of a scheduler's jobs as processes of this host, one at a time; they outlive the command.

    A scheduler for its own jobs is this class and then that scheduler's (`around`): template and launcher are its own.
    """

    title = "The job around it"
    canceller: ClassVar[tuple[str, ...]] = ("kill",)
    identifier = r"\d+"
    modes = ("turns", "jobs")
    unknown: ClassVar[tuple[str, ...]] = (
        *("partition", "account", "project", "qos", "constraint", "reservation", "memory", "requeue", "signal_s"),
        *("after", "extra", "allocations"),
    )
    poll_s = 1.0
    needs: tuple[str, ...] = ()
    """The programs without which no ranks start on other nodes."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.max_jobs = 1
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def detect(cls) -> str | None:
        """Return the job, if it is that scheduler's, has several nodes, and this process is none of its ranks."""
        allocation = allocation_of_nodes()
        if allocation is None or allocation.scheduler != scheduler_class(cls.around).title:
            return None
        if not all(map(shutil.which, cls.needs)):
            return None
        return f"job {allocation.job} on {len(allocation.nodes)} nodes"

    def check(self) -> str | None:
        """Return nothing: its launches share nodes with nobody."""
        return None

    def limit(self) -> Partition | None:
        """Return what the job has: nodes, cores of one, time that is left; else what the scheduler says of a node."""
        allocation = current_allocation()
        if allocation is None:
            return None
        name = f"of job {allocation.job}"
        node = self.node_facts() or Partition(name=name)
        cores = allocation.cores or node.cores_per_node
        if cores and node.cores_per_node and cores > node.cores_per_node:  # logical ones
            cores = node.cores_per_node
        whole = cores == node.cores_per_node
        left_s = None if self._end is None else max(_LEAST_S, self._end - time.monotonic())
        return replace(
            node,
            name=name,
            nodes=len(allocation.nodes),
            cores_per_node=cores,
            numa_domains=node.numa_domains if whole else None,
            walltime=node.walltime if left_s is None else walltime(left_s),
        )

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` can never run here: not for its time, as a job that goes on has made what it could."""
        limit = self.limit()
        return schedulers.exceeds(layout, self.request, limit and replace(limit, walltime=None))

    @functools.cached_property
    def _end(self) -> float | None:
        """The moment of the monotonic clock at which the job ends, None where that is not known."""
        left_s = self.seconds_left()
        return None if left_s is None else time.monotonic() + left_s

    def seconds_left(self) -> float | None:
        """Return the seconds until the job ends, None where the scheduler does not say."""
        return None

    def node_facts(self) -> Partition | None:
        """Return what a node of the job has beside its cores, None where that is not known."""
        return None

    def unusable_nodes(self) -> tuple[str, ...]:
        """Return none: the job has its nodes."""
        return ()

    def path(self, path: str) -> str:
        """Return `path` in one line: a directive is a comment here."""
        return path.replace("\n", " ")

    def output(self, folder: Path, job: str) -> Path:
        """Return the file of the script's output."""
        return folder / f"{job}.out"

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
        allocation = current_allocation()
        around = f"job {allocation.job}" if allocation else "another job"
        return f"it ran inside {around}, whose cost is not divided"

    def _state(self, job: str) -> State:
        child = self._children.get(job)
        code = child.poll() if child is not None else None
        if code is not None:
            return State(phase="ended", exit_code=exit_codes.of_return_code(code))
        return State(phase="running" if child is not None or _job_of(job) else "unknown")


def _job_of(number: str) -> str:
    """Return the name of the script that a process belongs to, empty where it is gone or no script's."""
    try:
        return str(psutil.Process(int(number)).environ().get(JOB, ""))
    except (psutil.Error, OSError):
        return ""


class Scheduler(InsideJob, slurm.Scheduler):
    """Runs Slurm's scripts in the Slurm job around them."""

    name = "inside"
    around = "slurm"
    needs = ("srun",)

    def node_facts(self) -> Partition | None:
        """Return what the partition of the job has."""
        name = os.environ.get("SLURM_JOB_PARTITION", "")
        return self.site.limits(name) or self._live_limit(name)

    def seconds_left(self) -> float | None:
        """Return what squeue says, None for a job without a limit, or where squeue does not answer."""
        job = os.environ.get("SLURM_JOB_ID", "")
        try:
            answer = self.commands.ask(("squeue", "--noheader", f"--jobs={job}", "--format=%L"))
            return clock_seconds(answer.out.strip())
        except (UserError, ValueError):
            return None
