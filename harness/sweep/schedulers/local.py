"""The scheduler of one machine: cores stand for nodes, and one job runs at a time, whoever owns it."""

import contextlib
import functools
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from harness.base import exit_codes
from harness.base.cores import affinity_narrowed, usable_cores
from harness.base.cpu_contention import patience_s, wait_until_quiet
from harness.base.errors import UserError
from harness.base.hostlock import HostLock
from harness.base.launch_guard import JOB, LaunchGuard, find_processes
from harness.base.scratch import Scratch
from harness.comm.gpus import visible_gpus
from harness.comm.harness_variables import mpi_choice
from harness.comm.mpi_library import AS_ROOT, Family, find_mpi, mpi4py_variables
from harness.schema.layout import Layout
from harness.sweep import schedulers
from harness.sweep.launch_command import LaunchCommand, mpirun_words
from harness.sweep.scheduler_answers import State, environment_of_no_job, variables_of_a_job
from harness.sweep.site import Partition
from harness.sweep.turn_block import RANK_PYTHON

# mpirun passes SIGTERM on and gives its ranks a few seconds before it kills them.
GRACE_S = 10.0


class Scheduler(schedulers.Scheduler):
    """Runs scripts as child processes in sessions of their own, so that Ctrl-C does not reach them twice."""

    name = "local"
    template = "local.sh.j2"
    unknown = (
        *("partition", "account", "project", "qos", "constraint", "reservation", "memory"),
        *("after", "extra", "container", "allocations"),
    )
    modes = ("turns", "jobs")
    launchers = ("auto",)
    survives_client = False
    forks_ranks = True
    poll_s = 0.2  # seldom enough not to disturb the ranks that are being timed

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.max_jobs = 1  # two jobs would measure each other
        self._cores = usable_cores()
        self._unbound = affinity_narrowed()
        self._waits = patience_s() > 0 and not self.oversubscribe
        self._mpi = find_mpi()
        self._mpirun = self._mpi.mpirun
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = HostLock()
        self._scratch: Scratch | None = None
        self._guard: LaunchGuard | None = None

    def claim_host(self) -> str | None:
        """Take this host for the next job, or return who has it: other sweeps, also other users', time here too."""
        return self._lock.take()

    def wait_for_cores(self, needed: int, say: Callable[[str], None]) -> None:
        """Wait until other processes leave `needed` cores alone; not where it is for function only."""
        if self._waits:
            way_out = "set HARNESS_QUIET_S=0 to launch beside them, without valid times"
            wait_until_quiet(say, spare=max(0, self._cores - needed), instead=way_out)

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` cannot run on this machine's cores and GPUs."""
        if layout.last_node:
            return "needs nodes: one machine has the same number of ranks everywhere"
        gpus = layout.ranks * layout.gpus_per_rank
        if gpus > self._gpus and not (self.oversubscribe and self._gpus):
            return f"needs a GPU for every rank ({gpus}), this machine has {self._gpus}"
        if layout.cores <= self._cores or self.oversubscribe:
            return None
        return f"needs {layout.cores} cores, this machine has {self._cores}"

    def limit(self) -> Partition | None:
        """Return this machine: a core stands for a node, but for ranks with a GPU each."""
        return Partition(name="this machine", nodes=self._cores, cores_per_node=1, gpus_per_node=self._gpus)

    @functools.cached_property
    def _gpus(self) -> int:
        try:
            return len(visible_gpus())
        except UserError:  # no driver
            return 0

    def launcher(self, layout: Layout) -> LaunchCommand:
        """Return mpirun with one rank per `threads` cores, bound; unbound where that cannot be."""
        # mpirun would bind to CPUs outside a mask that this process was given; unbound ranks inherit the mask.
        threads = None if self._unbound else layout.threads
        shared = layout.cores > self._cores
        words = mpirun_words(self._mpirun, self._mpi.family, layout.ranks, threads=threads, oversubscribe=shared)
        return LaunchCommand(words=words)

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what lets mpirun start as root (in containers) and mpi4py load the library that goes with it.

        Inside a batch job mpirun would count the job's tasks and not this host's cores: what names the job is unset.
        """
        variables: dict[str, str | None] = dict.fromkeys(variables_of_a_job())
        variables |= {"HARNESS_MPI": mpi_choice(), **mpi4py_variables(self._mpi)}
        if self._mpi.family is Family.OPEN_MPI:
            variables |= AS_ROOT if os.geteuid() == 0 else {}
            if layout.cores > self._cores:
                variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return variables

    def output(self, folder: Path, job: str) -> Path:
        """Return where a block's referee writes; a launch's own log holds all that a job of its own says."""
        return folder / f"{job}.log"

    def submit(self, job: schedulers.JobFiles) -> tuple[str, ...]:
        """Start `job` and return its name, which all that it starts carries. It has this host until it has ended."""
        self._lock.wait()
        self._lock.note_holder("a launch")
        self._guard = LaunchGuard()
        self._scratch = Scratch()
        with job.log.open("wb") as log:
            self._children[job.name] = subprocess.Popen(
                ["bash", str(job.script)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **environment_of_no_job(),
                    JOB: job.name,
                    RANK_PYTHON: shlex.join(self.rank_python),
                    **self._scratch.variables,
                    **self._guard.variables,
                },
                pass_fds=(*self._lock.handles, *self._scratch.handles),
            )
        return (job.name,)

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return those of `names` of which a process is left, which a command that was killed has started."""
        return {name: name for name in names if find_processes(JOB, name)}

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of jobs that this process started; a signal counts as 128 and its number."""
        return {name: self._state(name) for name in jobs}

    def cancel(self, jobs: Iterable[str]) -> None:
        """Send SIGTERM to all that the jobs started, and SIGKILL to whatever of it is still there 10 s later."""
        for job in jobs:
            for number in (signal.SIGTERM, signal.SIGKILL):
                family = find_processes(JOB, job)
                for process in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                psutil.wait_procs(family, timeout=GRACE_S)
        self._release(orderly=False)

    @classmethod
    def explain(cls, state: State) -> str:
        """Name the signal that ended a job."""
        number = (state.exit_code or 0) - exit_codes.SIGNALLED
        if number not in set(signal.Signals):
            return "the log has no error line"
        name = signal.Signals(number).name
        return f"ended by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")

    def _state(self, name: str) -> State:
        child = self._children.get(name)
        if child is None:
            return State(phase="running" if find_processes(JOB, name) else "unknown")
        code = child.poll()
        if code is None:
            return State(phase="running")
        self._release(orderly=code == 0)
        return State(phase="ended", exit_code=exit_codes.of_return_code(code))

    def _release(self, *, orderly: bool) -> None:
        """Give this host to others, without files and, where it has not ended in an `orderly` way, processes of it."""
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
        if self._guard is not None:
            self._guard.end(orderly=orderly)
            self._guard = None
        self._lock.release()
