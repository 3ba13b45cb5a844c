"""The scheduler of one machine: cores stand for nodes, and one job runs at a time."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

from harness.base.cores import affinity_narrowed, usable_cores
from harness.base.errors import UserError
from harness.comm.launcher import find_launcher, mpi4py_variables, mpi_choice, mpi_family
from harness.schema.layout import Layout
from harness.sweep.job_options import Request
from harness.sweep.schedulers import Job, Launcher, State
from harness.sweep.site import Partition, Site

# mpirun passes SIGTERM on and gives its ranks a few seconds before it kills them.
_GRACE_S = 10.0


class Scheduler:
    """Runs scripts as child processes in sessions of their own, so that Ctrl-C does not reach them twice."""

    name = "local"
    template = "local.sh.j2"
    at_once = 1  # two jobs would measure each other
    poll_s = 0.2  # seldom enough not to disturb the ranks that are being timed
    durable = False
    calls: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self, *, oversubscribe: bool = False, site: Site | None = None, request: Request | None = None
    ) -> None:
        if request is not None and request.shape != "jobs":
            raise UserError(f"{request.shape.upper()}=1 needs a batch scheduler: leave it out on one machine")
        self._cores = usable_cores()
        self._unbound = affinity_narrowed()
        self._oversubscribe = oversubscribe
        self._mpirun = find_launcher()
        self._family = mpi_family(self._mpirun)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def check(self) -> str | None:
        """Return nothing: the launcher was found."""
        return None

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` cannot run on this machine's cores."""
        if layout.last_node:
            return "needs nodes: the ranks of one machine are all alike"
        if layout.cores <= self._cores or self._oversubscribe:
            return None
        return f"needs {layout.cores} cores, this machine has {self._cores}"

    def limit(self) -> Partition | None:
        """Return this machine: a core stands for a node."""
        return Partition(name="this machine", nodes=self._cores, cores_per_node=1)

    def launcher(self, layout: Layout) -> Launcher:
        """Return mpirun with one rank per `threads` cores, bound; unbound where that cannot be."""
        command = (str(self._mpirun), "-n", str(layout.ranks))
        binding: tuple[str, ...]
        if self._family == "mpich":
            binding = ("-bind-to", "none" if self._shared(layout) else f"core:{layout.threads}")
        elif layout.cores > self._cores:
            binding = ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        elif self._unbound:
            # mpirun would bind to CPUs outside the mask that this process was given; the ranks inherit the mask.
            binding = ("--bind-to", "none")
        else:
            binding = ("--map-by", f"slot:PE={layout.threads}", "--bind-to", "core")
        return Launcher(words=(*command, *binding))

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what lets mpirun start as root (in containers) and mpi4py load the library that goes with it."""
        variables = {"HARNESS_MPI": mpi_choice(), **mpi4py_variables(self._mpirun, self._family)}
        if self._family == "openmpi":
            for prefix in ("OMPI", "PRTE"):
                variables |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            if layout.cores > self._cores:
                variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return variables

    def output(self, folder: Path, job: str) -> Path:
        """Return nowhere: a launch's log holds all that its job says."""
        return Path(os.devnull)

    def submit(self, job: Job) -> tuple[str, ...]:
        """Start `job` and return ``pid@start``: the start time tells it from a later process of the same number."""
        with job.log.open("wb") as log:
            child = subprocess.Popen(
                ["bash", str(job.script)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        name = f"{child.pid}@{psutil.Process(child.pid).create_time()}"
        self._children[name] = child
        return (name,)

    def task(self, job: str, index: int) -> str:
        """Return `job`: there are no arrays."""
        return job

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return nothing: a launch is noted before it could be lost."""
        return {}

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of jobs that this process started; a signal counts as 128 and its number."""
        return {name: self._state(name) for name in jobs}

    def cancel(self, jobs: Iterable[str]) -> None:
        """Send SIGTERM to every job's process group, and SIGKILL to whatever of it is still there 10 s later."""
        for job in jobs:
            _end(job)

    def explain(self, state: State) -> str:
        """Name the signal that ended a job."""
        number = (state.exit_code or 0) - 128
        if number not in set(signal.Signals):
            return "the log has no error line"
        name = signal.Signals(number).name
        return f"ended by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")

    def _state(self, name: str) -> State:
        child = self._children.get(name)
        if child is None:
            return State(phase="running" if _family_of(name) else "unknown")
        code = child.poll()
        if code is None:
            return State(phase="running")
        return State(phase="ended", exit_code=code if code >= 0 else 128 - code)

    def _shared(self, layout: Layout) -> bool:
        return self._unbound or layout.cores > self._cores


def _end(job: str) -> None:
    family = _family_of(job)
    if not family:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(family[0].pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=_GRACE_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_GRACE_S)


def _family_of(job: str) -> list[psutil.Process]:
    """Return the job's first process and all below it, none if it has gone."""
    pid, _, start = job.partition("@")
    try:
        process = psutil.Process(int(pid))
        if process.create_time() != float(start):
            return []
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
