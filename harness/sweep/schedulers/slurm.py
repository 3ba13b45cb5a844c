"""Slurm: sbatch, squeue, and sacct where there is accounting."""

import functools
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness.base.errors import UserError
from harness.comm.launcher import find_launcher, mpi_family
from harness.schema.layout import Layout
from harness.sweep.job_options import Request, walltime
from harness.sweep.schedulers import Job, Launcher, State, launch_command
from harness.sweep.schedulers.commands import Commands, beyond
from harness.sweep.site import Partition, Site

# A suffix instead of a width: nothing is cut off (squeue(1), --Format).
QUEUE_FIELDS = "JobArrayID:|,State:|,Reason:|,NodeList:|,exit_code:|,Name:"
ACCOUNT_FIELDS = "JobID,State,ExitCode,NodeList"
PARTITION_FIELDS = "%P|%D|%X|%Y|%m|%G|%l"
NODE_FIELDS = "%N|%T|%E"
# How the reasons of jobs begin that wait for a node which is down or drained.
NODES_NOT_THERE = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")

_QUEUED = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
_OWN_END = {"COMPLETED", "FAILED"}
_MEANING = {
    "TIMEOUT": "Slurm ended it at its time limit",
    "NODE_FAIL": "a node of its allocation was lost",
    "OUT_OF_MEMORY": "it ran out of memory",
    "CANCELLED": "it was cancelled",
    "PREEMPTED": "it was preempted by another job",
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "its deadline passed",
    "FAILED": "it failed",
    "COMPLETED": "Slurm calls it completed, but it wrote no whole record",
}


def read_queue(answer: str) -> dict[str, tuple[State, str]]:
    """Return state and name by identifier from ``squeue -h -r -O QUEUE_FIELDS``; `exit_code` there is a wait status."""
    found = {}
    for line in answer.splitlines():
        identifier, word, reason, nodes, status, name = line.split("|", 5)
        code = (int(status) >> 8) or (128 + (int(status) & 127) if int(status) & 127 else 0)
        found[identifier.strip()] = (_state(word.strip(), reason.strip(), nodes.strip(), code), name.strip())
    return found


def read_accounts(answer: str) -> dict[str, State]:
    """Return states by identifier from ``sacct -X -n -P -o ACCOUNT_FIELDS``."""
    found = {}
    for line in answer.splitlines():
        identifier, words, codes, nodes = line.split("|", 3)
        word, _, by = words.partition(" ")
        status, _, signal = codes.partition(":")
        found[identifier] = _state(word, by, nodes, int(status or 0) or (128 + int(signal) if int(signal or 0) else 0))
    return found


def _state(word: str, reason: str, nodes: str, code: int) -> State:
    reason = "" if reason in ("None", "NonZeroExitCode") else reason
    if word in _QUEUED:
        return State(phase="queued", word=word, reason=reason)
    if word in _RUNNING:
        return State(phase="running", word=word, reason=reason, nodes=nodes)
    return State(phase="ended", word=word, reason=reason, nodes=nodes, exit_code=code, forced=word not in _OWN_END)


def explain(state: State) -> str:
    """Return what became of an ended job, in one clause."""
    if state.phase == "unknown":
        return "Slurm no longer knows the job: it ended long ago, or it was submitted to another cluster"
    text = f"{_MEANING.get(state.word, 'it ended')} ({state.word})"
    if state.nodes:
        text += f" on {state.nodes}"
    return f"{text}: {state.reason}" if state.reason else text


def read_partitions(answer: str) -> tuple[Partition, ...]:
    """Return the partitions from ``sinfo -h -o PARTITION_FIELDS``, one line for each kind of node, merged by name."""
    found: dict[str, Partition] = {}
    for line in answer.splitlines():
        name, nodes, sockets, cores, memory, gres, limit = line.split("|", 6)
        old = found.get(name, Partition(name=name, nodes=0, cores_per_node=0, gpus_per_node=0, memory_mb=0))
        found[name] = Partition(
            name=name.rstrip("*"),
            default=name.endswith("*"),
            nodes=(old.nodes or 0) + int(nodes),
            cores_per_node=max(old.cores_per_node or 0, _first(sockets) * _first(cores)),
            gpus_per_node=max(old.gpus_per_node or 0, _gpus(gres)),
            memory_mb=max(old.memory_mb or 0, _first(memory)),
            walltime=_limit(limit),
        )
    return tuple(found.values())


def read_nodes(answer: str) -> Mapping[str, str]:
    """Return what is wrong with nodes from ``sinfo -h -N -o NODE_FIELDS``: name to state and reason."""
    found = {}
    for line in answer.splitlines():
        name, state, reason = line.split("|", 2)
        if reason not in ("none", ""):
            found[name] = f"node {name} is {state}: {reason}"
    return found


def expand(nodes: str) -> Iterable[str]:
    """Yield the names in a node list such as ``n[1-2,7],m3``; ranges keep their leading zeros."""
    for prefix, inner in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?,?", nodes):
        if not inner:
            yield prefix
        for part in inner.split(",") if inner else ():
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{prefix}{number:0{len(first)}d}"


def _first(number: str) -> int:
    """Return the least of a count such as ``4+``, which sinfo writes where nodes differ."""
    return int(re.match(r"\d*", number)[0] or 0)  # type: ignore[index]


def _gpus(gres: str) -> int:
    return sum(int(count) for count in re.findall(r"gpu(?::[A-Za-z]\w*)?:(\d+)", gres))


def _limit(text: str) -> str | None:
    """Return Slurm's ``D-HH:MM:SS``, ``MM:SS`` as hours, None without a limit."""
    if not text[:1].isdigit():
        return None
    days, _, clock = text.rpartition("-")
    parts = [0, 0, *map(int, clock.split(":"))]
    return walltime(int(days or 0) * 86400 + parts[-3] * 3600 + parts[-2] * 60 + parts[-1])


_AT_ONCE = 500  # identifiers in one sacct call: the command line has an end


class Scheduler:
    """Submits scripts with sbatch; one squeue answers for all jobs."""

    name = "slurm"
    template = "slurm.sh.j2"
    poll_s = 2.0
    durable = True

    def __init__(self, *, site: Site, request: Request, oversubscribe: bool = False) -> None:
        if request.project:
            raise UserError(f"PROJECT={request.project} is PBS's: use ACCOUNT= under Slurm")
        self.at_once = request.max_jobs
        self.commands = Commands()
        self.calls = self.commands.calls
        self._site = site
        self._request = request
        self._accounting = True

    def check(self) -> str | None:
        """Return a notice if several nodes are one machine, where jobs would disturb each other: then one at a time.

        Raises:
            UserError: Slurm does not answer here.
        """
        nodes = {tuple(line.split("|")) for line in self.commands.run(("sinfo", "-h", "-N", "-o", "%N|%n")).split()}
        machines = {machine for _, machine in nodes}
        if len(machines) == len(nodes):
            return None
        self.at_once = 1
        return f"{len(nodes)} Slurm nodes are {len(machines)} machine by name: one job at a time, so that none disturbs"

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` does not fit its partition, by the site file or else by sinfo."""
        return beyond(layout, self._request, self._limit)

    def limit(self) -> Partition | None:
        """Return the partition's limits."""
        return self._limit

    def launcher(self, layout: Layout) -> Launcher:
        """Return srun with the PMI that suits the MPI library, or mpirun."""
        if self.rank_start.startswith("srun"):
            return launch_command.srun(layout, self.rank_start, self._site)
        return launch_command.mpirun(layout, self._site)

    @functools.cached_property
    def rank_start(self) -> str:
        """The launcher asked for; by itself srun with a PMI that Slurm and the MPI library share, else mpirun."""
        if self._request.launcher != "auto":
            return self._request.launcher
        try:
            answer = self.commands.ask(("srun", "--mpi=list"))
        except UserError:
            return "mpirun"  # no Slurm on this machine: the script is only written
        kinds = (answer.stdout + answer.stderr).split()
        wanted = "pmix" if mpi_family(find_launcher()) == "openmpi" else "pmi2"
        return f"srun --mpi={wanted}" if wanted in kinds else "mpirun"

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what the ranks need exported; SLURM_EXPORT_ENV unset, or srun would withhold it from them."""
        return {"SLURM_EXPORT_ENV": None, **launch_command.rank_environment(self._site, self.name)}

    def output(self, folder: Path, job: str) -> Path:
        """Return the file that ``--output`` names."""
        return folder / f"{job}.out"

    def submit(self, job: Job) -> tuple[str, ...]:
        """Queue `job` with sbatch.

        Raises:
            UserError: sbatch refused it; the sentence holds its own.
        """
        answer = self.commands.run(("sbatch", "--parsable", str(job.script)))
        number = answer.strip().splitlines()[-1].split(";")[0]
        return tuple(self.task(number, index) for index in range(job.tasks)) or (number,)

    def task(self, job: str, index: int) -> str:
        """Return the identifier of an array's task."""
        return f"{job}_{index}"

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the numbers of the queued or running jobs called one of `names`."""
        wanted = set(names)
        queue = self._queue()
        return {
            name: job.partition("_")[0]
            for job, (state, name) in queue.items()
            if name in wanted and state.phase != "ended"
        }

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of `jobs`: one squeue for all, and one sacct for those it no longer lists."""
        queue = self._queue()
        wanted = list(jobs)
        states = {job: queue[name][0] for job in wanted for name in _names(job, queue)}
        gone = [job for job in wanted if job not in states]
        if gone:
            states |= self._accounts(gone)
        found = {job: states.get(job, State(phase="unknown")) for job in wanted}
        return self._with_node_reasons(found)

    def cancel(self, jobs: Iterable[str]) -> None:
        """End `jobs` with scancel; one that has ended already is no error."""
        wanted = sorted(set(jobs))
        for begin in range(0, len(wanted), _AT_ONCE):
            self.commands.ask(("scancel", "--quiet", *wanted[begin : begin + _AT_ONCE]))

    def explain(self, state: State) -> str:
        """Return what became of an ended job."""
        return explain(state)

    def _queue(self) -> dict[str, tuple[State, str]]:
        words = ("squeue", "--me", "--noheader", "--array", "--states=all", "--Format", QUEUE_FIELDS)
        return read_queue(self.commands.run(words))

    def _accounts(self, jobs: list[str]) -> dict[str, State]:
        """Return what accounting knows of jobs that the controller has forgotten (MinJobAge), nothing without it."""
        found: dict[str, State] = {}
        for begin in range(0, len(jobs) if self._accounting else 0, _AT_ONCE):
            part = ",".join(jobs[begin : begin + _AT_ONCE])
            answer = self.commands.ask(("sacct", "-X", "--noheader", "--parsable2", "-o", ACCOUNT_FIELDS, "-j", part))
            if answer.returncode:
                self._accounting = False  # "Slurm accounting storage is disabled": the launches' exit files must do
                break
            found |= read_accounts(answer.stdout)
        return found

    def _with_node_reasons(self, states: dict[str, State]) -> dict[str, State]:
        """Add why a node was lost or kept back, where that ended a job or makes it wait."""
        lost = {job: state for job, state in states.items() if state.word == "NODE_FAIL"}
        waiting = {
            job: state
            for job, state in states.items()
            if state.phase == "queued" and state.reason.startswith(NODES_NOT_THERE)
        }
        if not lost and not waiting:
            return states
        reasons = read_nodes(self.commands.run(("sinfo", "--noheader", "-N", "-o", NODE_FIELDS)))
        for job, state in lost.items():
            here = [reasons[node] for node in expand(state.nodes) if node in reasons]
            states[job] = replace(state, reason="; ".join(filter(None, [state.reason, *dict.fromkeys(here)])))
        for job, state in waiting.items():
            states[job] = replace(state, reason="; ".join([state.reason, *dict.fromkeys(reasons.values())]))
        return states

    @functools.cached_property
    def _limit(self) -> Partition | None:
        wanted = self._request.partition
        stated = self._site.limits(wanted)
        if stated is not None:
            return stated
        partitions = self._live_partitions()
        if wanted and partitions and wanted not in {known.name for known in partitions}:
            known = ", ".join(partition.name for partition in partitions)
            raise UserError(f"PARTITION={wanted} does not exist: known are {known}")
        return Site(partition=partitions).limits(wanted)

    def _live_partitions(self) -> tuple[Partition, ...]:
        try:
            answer = self.commands.ask(("sinfo", "--noheader", "-o", PARTITION_FIELDS))
        except UserError:
            return ()  # no Slurm on this machine: the script is only written, `check` refuses to submit it
        return read_partitions(answer.stdout)


def _names(job: str, queue: Container[str]) -> list[str]:
    """Return the name under which squeue lists `job`, none if it does not.

    Tasks of an array that were cancelled together before they started are one entry, called by the array's number.
    """
    return [name for name in (job, job.partition("_")[0]) if name in queue][:1]
