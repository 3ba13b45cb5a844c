"""Slurm: sbatch, squeue, and sacct where there is accounting; what they answer, as states, partitions and nodes."""

import functools
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.base.errors import UserError
from harness.comm.mpi_library import find_launcher, mpi_family
from harness.schema.sweep import JobUsage, Layout
from harness.sweep import launch_command, schedulers
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.schedulers import (
    CommandRunner,
    Job,
    SiteFinding,
    State,
    at_once,
    compare_partition,
    message,
    waiting_or_running,
)
from harness.sweep.site import Partition, Site, clock_seconds, seconds, size_bytes, walltime

# Installed, but not configured for a cluster: Debian's packages on a workstation, say.
_NO_CLUSTER = ("configuration source", "configuration file")
# How the reasons of jobs begin that wait for a node which is down or drained.
NO_NODES = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
# A suffix instead of a width: nothing is cut off (squeue(1), --Format).
QUEUE_FIELDS = "JobArrayID:|,State:|,Reason:|,NodeList:|,exit_code:|,Name:"
ACCOUNT_FIELDS = "JobID,State,ExitCode,NodeList"
PARTITION_FIELDS = "%P|%D|%X|%Y|%m|%G|%l"
NODE_FIELDS = "%N|%T|%E"
USAGE_FIELDS = "JobID,State,ElapsedRaw,NNodes,TotalCPU,MaxRSS,ConsumedEnergyRaw"

_NO_ENERGY = 2**63
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


class Scheduler(schedulers.Scheduler):
    """Submits scripts with sbatch; one squeue answers for all jobs."""

    name = "slurm"
    title = "Slurm"
    template = "slurm.sh.j2"
    directive = "#SBATCH"
    canceller = ("scancel", "--quiet")
    unknown = ("project",)

    _accounting = True

    @classmethod
    def detect(cls) -> str | None:
        """Return where sbatch is, if this machine belongs to a cluster."""
        found = shutil.which("sbatch")
        if not found:
            return None
        answer = CommandRunner().ask(("sinfo", "--noheader", "--format=%P"))
        if not answer.code:
            return found
        if any(phrase in answer.out + answer.err for phrase in _NO_CLUSTER):
            return None
        raise UserError(f"Slurm is installed and does not answer ({message(answer)}): try later, or SCHEDULER=local")

    def check(self) -> str | None:
        """Return a notice if several nodes are one machine, where jobs would disturb each other: then one at a time.

        Raises:
            UserError: Slurm does not answer here.
        """
        nodes = {tuple(line.split("|")) for line in self.commands.run(("sinfo", "-h", "-N", "-o", "%N|%n")).split()}
        machines = {machine for _, machine in nodes}
        if len(machines) == len(nodes):
            return None
        self.max_jobs = 1
        return f"{len(nodes)} Slurm nodes are {len(machines)} machine by name: jobs run one by one, undisturbed"

    def limit(self) -> Partition | None:
        """Return the limits by the site file or else by sinfo; of several partitions the most that one of them allows.

        Raises:
            UserError: there is no such partition.
        """
        wanted = self.request.partition.split(",")
        limits = [self.site.limits(name) or self._live_limit(name) for name in wanted]
        known = [limit for limit in limits if limit is not None]
        return widest(known) if len(known) == len(wanted) else None

    def path(self, path: str) -> str:
        """Return a path for a quoted ``--output=``, where ``%`` begins a pattern."""
        if any(sign in path for sign in '"\\\n'):
            raise UserError(
                f"RESULTS '{path}' has a quote or backslash, where Slurm cannot write: choose another folder"
            )
        return path.replace("%", "%%")

    def launcher(self, layout: Layout) -> LaunchCommand:
        """Return srun with the PMI that suits the MPI library, or mpirun."""
        if self.rank_start.startswith("srun"):
            return launch_command.srun(layout, self.rank_start, self.site)
        return launch_command.mpirun(layout, self.site)

    @functools.cached_property
    def rank_start(self) -> str:
        """The launcher asked for; by itself srun with a PMI that Slurm and the MPI library share, else mpirun."""
        if self.request.launcher != "auto":
            return self.request.launcher
        try:
            answer = self.commands.ask(("srun", "--mpi=list"))
        except UserError:
            return "mpirun"  # no Slurm on this machine: the script is only written
        kinds = (answer.out + answer.err).split()
        wanted = "pmix" if mpi_family(find_launcher()) == "openmpi" else "pmi2"
        return f"srun --mpi={wanted}" if wanted in kinds else "mpirun"

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what the launcher and the ranks need; SLURM_EXPORT_ENV unset, or srun would withhold it from them."""
        # As --overlap: the launches of a block, and the daemons that mpirun starts by srun, have the same cores.
        shared = {"SLURM_OVERLAP": "1"} if self.request.shape == "block" else {}
        return {"SLURM_EXPORT_ENV": None, **super().environment(layout), **shared}

    def submit(self, job: Job) -> tuple[str, ...]:
        """Queue `job` with sbatch."""
        answer = self.commands.run(("sbatch", "--parsable", str(job.script)))
        number = answer.strip().splitlines()[-1].split(";")[0]
        return tuple(self.task(number, index) for index in range(job.tasks)) or (number,)

    def task(self, job: str, index: int) -> str:
        """Return the identifier of an array's task."""
        return f"{job}_{index}"

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the numbers of the queued or running jobs called one of `names`."""
        found = waiting_or_running(self._queue(), names)
        return {name: job.partition("_")[0] for name, job in found.items()}

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of `jobs`: one squeue for all, and one sacct for those it no longer lists."""
        queue = self._queue()
        wanted = list(jobs)
        # Tasks of an array that were cancelled together before they started are one entry, by the array's number.
        states = {job: queue[name][0] for job in wanted for name in (job.partition("_")[0], job) if name in queue}
        gone = [job for job in wanted if job not in states]
        if gone:
            states |= self._accounts(gone)
        return self._with_node_reasons({job: states.get(job, State(phase="unknown")) for job in wanted})

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return what sacct knows; its own words where the cluster has no accounting."""
        found: dict[str, JobUsage] = {}
        for part in at_once(jobs):
            words = ("sacct", "--noheader", "--parsable2", "--noconvert", "-o", USAGE_FIELDS, "-j", ",".join(part))
            answer = self.commands.ask(words)
            if answer.code:
                return f"sacct: {message(answer)}"
            found |= read_usage(answer.out)
        return found

    @classmethod
    def meaning(cls, word: str) -> str:
        """Return it in words, and Slurm's own."""
        return f"{_MEANING.get(word, 'it ended')} ({word})"

    def findings(self) -> Iterator[SiteFinding]:
        """Compare the statements of the site file with sinfo, scontrol and srun."""
        live = {partition.name: partition for partition in self._live}
        for stated in self.site.partition or live.values():
            there = stated.name in live
            yield SiteFinding(good=there, text=f"partition {stated.name} exists, known are {', '.join(live)}")
            yield from compare_partition(stated, live[stated.name]) if there else ()
        for name in filter(None, self.request.partition.split(",")):
            yield SiteFinding(good=name in live, text=f"default partition {name} exists")
        settings = self.commands.run(("scontrol", "show", "config"))
        if re.search(r"EnforcePartLimits\s*= NO", settings):
            text = "note: EnforcePartLimits=NO, Slurm lets jobs that can never run wait for ever"
            yield SiteFinding(text=text)
        accounting = "accounting_storage/none" not in settings
        yield SiteFinding(text=f"accounting: {'sacct' if accounting else 'none, exit files stand in for it'}")
        if self.request.launcher.startswith("srun"):
            kinds, kind = self.commands.ask(("srun", "--mpi=list")), self.request.launcher.partition("=")[2]
            good = kind in (kinds.out + kinds.err).split()
            yield SiteFinding(good=good, text=f"launcher {self.request.launcher}: srun has {kind}")

    def _queue(self) -> dict[str, tuple[State, str]]:
        words = ("squeue", "--me", "--noheader", "--array", "--states=all", "--Format", QUEUE_FIELDS)
        return read_queue(self.commands.run(words))

    def _accounts(self, jobs: list[str]) -> dict[str, State]:
        """Return what accounting knows of jobs that the controller has forgotten (MinJobAge), nothing without it."""
        found: dict[str, State] = {}
        for part in at_once(jobs if self._accounting else ()):
            words = ("sacct", "-X", "--noheader", "--parsable2", "-o", ACCOUNT_FIELDS, "-j", ",".join(part))
            answer = self.commands.ask(words)
            if answer.code:
                self._accounting = False  # "Slurm accounting storage is disabled": the launches' exit files must do
                break
            found |= read_sacct(answer.out)
        return found

    def _with_node_reasons(self, states: dict[str, State]) -> dict[str, State]:
        """Add why a node was lost or kept back, where that ended a job or makes it wait."""
        waits = {job for job, state in states.items() if state.phase == "queued" and state.reason.startswith(NO_NODES)}
        lost = {job for job, state in states.items() if state.word == "NODE_FAIL"}
        if not lost and not waits:
            return states
        reasons = read_nodes(self.commands.run(("sinfo", "--noheader", "-N", "-o", NODE_FIELDS)))
        for job in lost | waits:
            nodes = expand(states[job].nodes) if job in lost else reasons
            why = dict.fromkeys(reasons[node] for node in nodes if node in reasons)
            states[job] = replace(states[job], reason="; ".join(filter(None, [states[job].reason, *why])))
        return states

    def _live_limit(self, name: str) -> Partition | None:
        partitions = self._live
        if name and partitions and name not in {known.name for known in partitions}:
            known = ", ".join(partition.name for partition in partitions)
            raise UserError(f"PARTITION={name} does not exist: known are {known}")
        return Site(partition=partitions).limits(name)

    @functools.cached_property
    def _live(self) -> tuple[Partition, ...]:
        try:
            return read_partitions(self.commands.ask(("sinfo", "--noheader", "-o", PARTITION_FIELDS)).out)
        except UserError:
            return ()  # no Slurm on this machine: the script is only written, `check` refuses to submit it


def read_queue(answer: str) -> dict[str, tuple[State, str]]:
    """Return state and name by identifier from ``squeue -h -r -O QUEUE_FIELDS``; `exit_code` there is a wait status."""
    found = {}
    for line in answer.splitlines():
        identifier, word, reason, nodes, status, name = line.split("|", 5)
        code = (int(status) >> 8) or (128 + (int(status) & 127) if int(status) & 127 else 0)
        found[identifier.strip()] = (_state(word.strip(), reason.strip(), nodes.strip(), code), name.strip())
    return found


def read_sacct(answer: str) -> dict[str, State]:
    """Return states by identifier from ``sacct -X -n -P -o ACCOUNT_FIELDS``."""
    found = {}
    for line in answer.splitlines():
        identifier, words, codes, nodes = line.split("|", 3)
        word, _, by = words.partition(" ")
        status, _, signal = codes.partition(":")
        found[identifier] = _state(word, by, nodes, int(status or 0) or (128 + int(signal) if int(signal or 0) else 0))
    return found


def read_usage(answer: str) -> dict[str, JobUsage]:
    """Return what ended jobs used from ``sacct -n -P --noconvert -o USAGE_FIELDS``: a line a job, and one a step of it.

    Zero is what a cluster says that does not measure it, and 2^64 less two of energy that nobody knows.
    """
    found: dict[str, JobUsage] = {}
    for line in answer.splitlines():
        identifier, words, elapsed, nodes, used, memory, energy = line.split("|")
        job, _, step = identifier.partition(".")
        if not step and _state(words.partition(" ")[0], "", "", 0).phase == "ended":
            joules = int(energy or 0)
            found[job] = JobUsage(
                elapsed_s=float(elapsed or 0), nodes=int(nodes or 0), cpu_s=clock_seconds(used or "0") or None,
                memory_of="a process", energy_j=float(joules) if 0 < joules < _NO_ENERGY else None,
            )  # fmt: skip
        elif job in found:
            most = max(size_bytes(memory), found[job].memory_bytes or 0)
            found[job] = replace(found[job], memory_bytes=most or None)
    return found


def _state(word: str, reason: str, nodes: str, code: int) -> State:
    reason = "" if reason in ("None", "NonZeroExitCode") else reason
    if word in _QUEUED:
        return State(phase="queued", word=word, reason=reason)
    if word in _RUNNING:
        return State(phase="running", word=word, reason=reason, nodes=nodes)
    return State(phase="ended", word=word, reason=reason, nodes=nodes, exit_code=code, forced=word not in _OWN_END)


def read_partitions(answer: str) -> tuple[Partition, ...]:
    """Return the partitions from ``sinfo -h -o PARTITION_FIELDS``, one line for each kind of node, merged by name."""
    found: dict[str, Partition] = {}
    for line in answer.splitlines():
        name, nodes, sockets, cores, memory, gres, limit = line.split("|", 6)
        old = found.get(name, Partition(name=name, nodes=0, cores_per_node=0, gpus_per_node=0, memory_mb=0))
        gpus = sum(int(count) for count in re.findall(r"gpu(?::[A-Za-z]\w*)?:(\d+)", gres))
        found[name] = Partition(
            name=name.rstrip("*"),
            default=name.endswith("*"),
            nodes=(old.nodes or 0) + int(nodes),
            cores_per_node=max(old.cores_per_node or 0, _first(sockets) * _first(cores)),
            gpus_per_node=max(old.gpus_per_node or 0, gpus),
            memory_mb=max(old.memory_mb or 0, _first(memory)),
            walltime=walltime(clock_seconds(limit)) if limit[:1].isdigit() else None,  # "infinite"
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


def widest(partitions: Sequence[Partition]) -> Partition:
    """Return the most that one of `partitions` allows, of each thing; None where one of them has no limit."""

    def most(field: str) -> int | None:
        values = [getattr(partition, field) for partition in partitions]
        return None if None in values else max(values)

    times = [partition.walltime for partition in partitions if partition.walltime]
    longest = max(times, key=seconds) if len(times) == len(partitions) else None
    return Partition(
        name=",".join(partition.name for partition in partitions),
        walltime=longest,
        nodes=most("nodes"),
        cores_per_node=most("cores_per_node"),
        gpus_per_node=most("gpus_per_node"),
        memory_mb=most("memory_mb"),
    )
