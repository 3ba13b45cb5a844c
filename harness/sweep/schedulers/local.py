"""The scheduler of one machine: cores stand for nodes, and one job runs at a time."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping

import psutil

from harness.comm.cores import affinity_narrowed, usable_cores
from harness.comm.launcher import find_launcher, mpi4py_variables, mpi_choice, mpi_family
from harness.spec.layout import Layout
from harness.sweep.schedulers import Job

# mpirun passes SIGTERM on and gives its ranks a few seconds before it kills them.
_GRACE_S = 10.0


class Scheduler:
    """Runs scripts as child processes in sessions of their own, so that Ctrl-C does not reach them twice."""

    template = "local.sh.j2"
    at_once = 1  # two jobs would measure each other

    def __init__(self, *, oversubscribe: bool = False) -> None:
        self._cores = usable_cores()
        self._unbound = affinity_narrowed()
        self._oversubscribe = oversubscribe
        self._mpirun = find_launcher()
        self._family = mpi_family(self._mpirun)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` cannot run on this machine's cores."""
        if layout.cores <= self._cores or self._oversubscribe:
            return None
        return f"needs {layout.cores} cores, this machine has {self._cores}"

    def launcher(self, layout: Layout) -> tuple[str, ...]:
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
        return (*command, *binding)

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what lets mpirun start as root (in containers) and mpi4py load the library that goes with it."""
        variables = {"HARNESS_MPI": mpi_choice(), **mpi4py_variables(self._mpirun, self._family)}
        if self._family == "openmpi":
            for prefix in ("OMPI", "PRTE"):
                variables |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            if layout.cores > self._cores:
                variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return variables

    def submit(self, job: Job) -> str:
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
        return name

    def poll(self, jobs: Iterable[str]) -> Mapping[str, int]:
        """Return the exit codes of ended jobs; a signal counts as 128 and its number, as in a shell."""
        ended = {name: self._children[name].poll() for name in jobs}
        return {name: code if code >= 0 else 128 - code for name, code in ended.items() if code is not None}

    def cancel(self, job: str) -> None:
        """Send SIGTERM to the job's process group, and SIGKILL to whatever of it is still there 10 s later."""
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

    def explain(self, exit_code: int) -> str:
        """Name the signal that ended a job."""
        if exit_code <= 128 or exit_code - 128 not in set(signal.Signals):
            return "the log has no error line"
        name = signal.Signals(exit_code - 128).name
        return f"ended by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")

    def _shared(self, layout: Layout) -> bool:
        return self._unbound or layout.cores > self._cores


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
