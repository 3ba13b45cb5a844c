"""Slurm: sbatch, squeue, and sacct where there is accounting; what they answer, as states, partitions and nodes."""

import contextlib
import functools
import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.comm.mpi_library import find_mpi
from harness.schema.layout import Layout
from harness.schema.record import JobUsage
from harness.sweep import launch_command, schedulers
from harness.sweep.job_nodes import expand
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.scheduler_answers import (
    CommandRunner,
    RetryPhrases,
    State,
    SubmissionUnknown,
    UnreadableAnswer,
    keep_unended,
    message,
    submission_error,
    unreadable,
)
from harness.sweep.schedulers import SiteFinding, at_once, compare_partition, ended_jobs, waiting_or_running
from harness.sweep.site import Partition, Site, clock_seconds, size_bytes, walltime, walltime_seconds

# What Slurm's squeue, sacct, sinfo and scontrol print, as states, usage, partitions and nodes.

# How the reasons of jobs begin that wait for a node which is down or drained.
NO_NODES = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
# A suffix instead of a width: nothing is cut off (squeue(1), --Format).
QUEUE_FIELDS = "JobArrayID:|,State:|,Reason:|,NodeList:|,exit_code:|,StartTime:|,Name:"
ACCOUNT_FIELDS = "JobID,State,ExitCode,NodeList"
PARTITION_FIELDS = "%P|%D|%X|%Y|%m|%G|%l"
NODE_FIELDS = "%N|%T|%E"
USAGE_FIELDS = "JobID,State,ElapsedRaw,NNodes,TotalCPU,MaxRSS,ConsumedEnergyRaw"

_NO_ENERGY = 2**63
_QUEUED = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
_OWN_END = {"COMPLETED", "FAILED"}
# Every other word, such as EXPEDITING of Slurm 25.11, is of a job that may still be running.
_ENDED = _OWN_END | {
    *("BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}


def read_queue(answer: str) -> dict[str, tuple[State, str]]:
    """Return state and name by identifier from ``squeue -h -r -O QUEUE_FIELDS``; `exit_code` there is a wait status."""
    jobs: dict[str, tuple[State, str]] = {}
    for line, cells in _cells("squeue", answer, 7):
        identifier, word, reason, nodes, status, starts, name = cells
        if not _is_number(status):
            raise unreadable("squeue", line, "a line whose fifth cell is a number, the exit code")
        code = (int(status) >> 8) or (128 + (int(status) & 127) if int(status) & 127 else 0)
        keep_unended(jobs, identifier, _state(word, reason, nodes, code, starts), name)
    return jobs


def _cells(program: str, answer: str, count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each line with its cells; what has no separator is no line of the table.

    That is a site's banner, and the line ``CLUSTER: name`` where ``SLURM_CLUSTERS`` is set.

    Raises:
        UnreadableAnswer: a line has fewer cells: the answer was cut off, or is of another form.
    """
    for line in answer.splitlines():
        if "|" not in line:
            continue
        cells = [cell.strip() for cell in line.split("|", count - 1)]
        if len(cells) < count:
            raise unreadable(program, line, f"a line of {count} cells")
        yield line, cells


def _is_number(text: str) -> bool:
    """Return whether `text` is a count as Slurm writes it: ASCII digits, and not more of them than a number has."""
    return re.fullmatch(r"[0-9]{1,20}", text) is not None


def _number(program: str, line: str, text: str) -> int:
    """Return the number that a cell of a `line` holds, 0 for an empty cell."""
    if text and not _is_number(text):
        raise unreadable(program, line, f"readable: {text!r} is no number")
    return int(text or 0)


def _seconds(program: str, line: str, text: str) -> float:
    """Return the seconds of the clock that a cell of a `line` holds, 0 for an empty cell."""
    try:
        return clock_seconds(text or "0")
    except ValueError:
        raise unreadable(program, line, f"readable: {text!r} is no time") from None


def read_sacct(answer: str) -> dict[str, State]:
    """Return states by identifier from ``sacct -X -n -P -o ACCOUNT_FIELDS``."""
    jobs: dict[str, tuple[State, str]] = {}
    for line, (identifier, words, codes, nodes) in _cells("sacct", answer, 4):
        word, _, by = words.partition(" ")
        status, _, signal = codes.partition(":")
        number = _number("sacct", line, signal)
        code = _number("sacct", line, status) or (128 + number if number else 0)
        keep_unended(jobs, identifier, _state(word, by, nodes, code), "")
    return {identifier: state for identifier, (state, _) in jobs.items()}


def read_slurm_usage(answer: str) -> dict[str, JobUsage]:
    """Return what ended jobs used from ``sacct -n -P --noconvert -o USAGE_FIELDS``: a line a job, and one a step of it.

    Zero is what a cluster says that does not measure it, and 2^64 less two of energy that nobody knows.
    """
    usages: dict[str, JobUsage] = {}
    for line, (identifier, words, elapsed, nodes, used, memory, energy) in _cells("sacct", answer, 7):
        job, _, step = identifier.partition(".")
        if not step and words.partition(" ")[0] in _ENDED:
            joules = _number("sacct", line, energy)
            usages[job] = JobUsage(
                elapsed_s=float(_number("sacct", line, elapsed)),
                nodes=_number("sacct", line, nodes),
                cpu_s=_seconds("sacct", line, used) or None,
                memory_of="a process",
                energy_j=float(joules) if 0 < joules < _NO_ENERGY else None,
            )
        elif job in usages:
            most = max(size_bytes(memory), usages[job].memory_bytes or 0)
            usages[job] = replace(usages[job], memory_bytes=most or None)
    return usages


def _state(word: str, reason: str, nodes: str, code: int, starts: str = "") -> State:
    reason = "" if reason in ("None", "NonZeroExitCode") else reason
    if word in _QUEUED:
        return State(phase="queued", word=word, reason=reason, starts="" if starts == "N/A" else starts)
    if word in _RUNNING:
        return State(phase="running", word=word, reason=reason, nodes=nodes)
    if word not in _ENDED:
        return State(phase="present", word=word, reason=reason, nodes=nodes)
    return State(
        phase="ended",
        word=word,
        reason=reason,
        nodes=nodes,
        exit_code=code,
        forced=word not in _OWN_END,
        timed_out=word == "TIMEOUT",
    )


def read_partitions(answer: str) -> tuple[Partition, ...]:
    """Return the partitions from ``sinfo -h -o PARTITION_FIELDS``, one line for each kind of node, merged by name."""
    partitions: dict[str, Partition] = {}
    for line, (name, nodes, sockets, cores, memory, gres, limit) in _cells("sinfo", answer, 7):
        old = partitions.get(name, Partition(name=name, nodes=0, cores_per_node=0, gpus_per_node=0, memory_mb=0))
        gpus = gpus_of(gres)
        partitions[name] = Partition(
            name=name.rstrip("*"),
            default=name.endswith("*"),
            nodes=(old.nodes or 0) + _number("sinfo", line, nodes),
            cores_per_node=max(old.cores_per_node or 0, _first(sockets) * _first(cores)),
            numa_domains=max(old.numa_domains or 0, _first(sockets)) or None,
            gpus_per_node=None if gpus is None or old.gpus_per_node is None else max(old.gpus_per_node, gpus),
            memory_mb=max(old.memory_mb or 0, _first(memory)),
            walltime=walltime(_seconds("sinfo", line, limit)) if limit[:1].isdigit() else None,  # "infinite"
        )
    return tuple(partitions.values())


# ``gpu[:type][:count][(...)]``, by gres.conf(5). In brackets are sockets or devices: (S:0-1), (IDX:0-3,5).
_GRES = re.compile(r"(?P<name>[^:,()\s]+)(?::(?P<rest>[^,()\s]*))?(?P<where>(?:\([^()]*\))*)")
_NO_GRES = ("", "(null)", "N/A", "none")
_UNIT = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


def gpus_of(gres: str) -> int | None:
    """Return how many GPUs a node has by its generic resources, all types together; None where that is not readable.

    A type may have digits, hyphens and dots, such as those of MIG parts; without a count it is one.
    """
    if gres.strip() in _NO_GRES:
        return 0
    total = 0
    for entry in re.split(r",(?![^()]*\))", gres.strip()):
        if entry.strip() in _NO_GRES:
            continue
        match = _GRES.fullmatch(entry.strip())
        if match is None:
            return None
        if match["name"] == "gpu":
            total += _count(match["rest"])
    return total


def _count(rest: str | None) -> int:
    """Return the number at the end of ``type:count``, or of ``count`` alone; one where there is none."""
    number = re.fullmatch(r"(\d+)([KMGTP]?)", (rest or "").rpartition(":")[2])
    return int(number[1]) * _UNIT[number[2]] if number else 1


def read_node_gpus(answer: str) -> dict[str, int] | None:
    """Return the most GPUs that a node of each partition has from ``scontrol show nodes --json``.

    None where that is no JSON (Slurm before 21.08, or built without it), or says nothing of GPUs in a readable form.
    """
    try:
        nodes = json.loads(answer)["nodes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        return None
    most: dict[str, int] = {}
    for node in nodes:
        configured = dict(part.partition("=")[::2] for part in str(node.get("tres", "")).split(","))
        gpus = _count(configured["gres/gpu"]) if "gres/gpu" in configured else gpus_of(str(node.get("gres", "")))
        if gpus is None:
            return None
        partitions = node.get("partitions")
        for name in partitions if isinstance(partitions, list) else ():
            most[str(name)] = max(most.get(str(name), 0), gpus)
    return most


def read_slurm_nodes(answer: str) -> Mapping[str, str]:
    """Return what is wrong with nodes from ``sinfo -h -N -o NODE_FIELDS``: name to state and reason."""
    reasons = {}
    for _, (name, state, reason) in _cells("sinfo", answer, 3):
        if reason not in ("none", ""):
            reasons[name] = f"node {name} is {state}: {reason}"
    return reasons


def _first(number: str) -> int:
    """Return the least of a count such as ``4+``, which sinfo writes where nodes differ."""
    return int(re.match(r"[0-9]{0,20}", number)[0] or 0)  # type: ignore[index]


def widest(partitions: Sequence[Partition]) -> Partition:
    """Return the most that one of `partitions` allows, of each thing; None where one of them has no limit."""

    def most(field: str) -> int | None:
        values = [getattr(partition, field) for partition in partitions]
        return None if None in values else max(values)

    times = [partition.walltime for partition in partitions if partition.walltime]
    longest = max(times, key=walltime_seconds) if len(times) == len(partitions) else None
    return Partition(
        name=",".join(partition.name for partition in partitions),
        walltime=longest,
        nodes=most("nodes"),
        cores_per_node=most("cores_per_node"),
        numa_domains=most("numa_domains"),
        gpus_per_node=most("gpus_per_node"),
        memory_mb=most("memory_mb"),
    )


_LOG = logging.getLogger(__name__)
# Installed, but not configured for a cluster: Debian's packages on a workstation, say.
_NO_CLUSTER = ("configuration source", "configuration file")
_NO_ACCOUNTING = "accounting storage is disabled"
# What sbatch prints, by Slurm's slurm_errno.c and sbatch.c.
SUBMISSIONS = RetryPhrases(
    lost=(
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Unable to contact slurm controller",
        "Communication (connection|shutdown) failure",
        "Message (send|receive) failure",
        "Unexpected message received",
        "Unexpected missing socket error",
        "Protocol authentication error",
        "Invalid authentication credential",
        "Authentication credential expired",
        "(Slurm backup controller|Controller is) in standby mode",
        "I/O error writing script/environment to file",
        "Connection (timed out|refused|reset)",
        "Rate limit exceeded",
    ),
    full=(
        r"\b(QOS|Assoc)\w*Submit\w*Limit\b",
        "Unable to create job record, try again",
        "temporarily unable to accept job",
        "Job creation temporarily disabled",
        "MaxJobCount limit reached",
    ),
    # The sentence that stands for many limits, where Slurm names none of them in a line of its own.
    full_or_too_large=(
        r"^(?!.*\b(QOS|Assoc|Partition)(Max|Min|Grp|Not|Wall|Time)\w+).*Job violates accounting/QOS policy",
    ),
)
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
    asks_for_one = ("scontrol", "show", "job")
    no_such_job = "Invalid job id specified"
    canceller: ClassVar[tuple[str, ...]] = ("scancel", "--quiet")
    identifier = r"\d+(_\d+)?"
    unknown: ClassVar[tuple[str, ...]] = ("project",)

    _accounting = True

    @classmethod
    def detect(cls) -> str | None:
        """Return where sbatch is, if this machine belongs to a cluster."""
        program = shutil.which("sbatch")
        if not program:
            return None
        answer = CommandRunner().ask(("sinfo", "--noheader", "--format=%P"))
        if not answer.code:
            return program
        if any(phrase in answer.out + answer.err for phrase in _NO_CLUSTER):
            return None
        raise UserError(
            f"Slurm is installed and does not answer ({message(answer)}): try later, or {setting('scheduler', 'local')}"
        )

    def check(self) -> str | None:
        """Return a notice if several nodes are one machine, where jobs would disturb each other: then one at a time.

        Raises:
            UserError: Slurm does not answer here.
        """
        lines = self.commands.run(("sinfo", "-h", "-N", "-o", "%N|%n"))
        nodes = {tuple(cells) for _, cells in _cells("sinfo", lines, 2)}
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
        stated = [limit for limit in limits if limit is not None]
        return widest(stated) if len(stated) == len(wanted) else None

    def partitions(self) -> tuple[Partition, ...]:
        """Return what sinfo and scontrol say."""
        return self._live

    def unusable_nodes(self) -> tuple[str, ...]:
        """Return what is wrong with nodes of the partition by sinfo."""
        partition = ("-p", self.request.partition) if self.request.partition else ()
        answer = self.commands.ask(("sinfo", "--noheader", "-N", *partition, "-o", NODE_FIELDS))
        try:
            return tuple(read_slurm_nodes(answer.out).values())
        except UnreadableAnswer as error:
            _LOG.warning("which nodes are not well is not known: %s", error)
            return ()

    def path(self, path: str) -> str:
        """Return a path for a quoted ``--output=``, where ``%`` begins a pattern."""
        if any(sign in path for sign in '"\\\n'):
            raise UserError(
                f"{setting('results', path)} has a quote or backslash, where Slurm cannot write: choose another folder"
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
        shared = [kind for kind in find_mpi().pmis if kind in kinds]
        return f"srun --mpi={shared[0]}" if shared else "mpirun"

    def node_check(self, layout: Layout) -> tuple[str, ...]:
        """Return srun, beside whatever runs there."""
        return ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist") if layout.nodes > 1 else ()

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what the launcher and the ranks need; SLURM_EXPORT_ENV unset, or srun would withhold it from them."""
        # As --overlap: the launches of a block, and the daemons that mpirun starts by srun, have the same cores.
        shared = {"SLURM_OVERLAP": "1"} if self.request.mode == "turns" else {}
        return {"SLURM_EXPORT_ENV": None, **super().environment(layout), **shared}

    def submit(self, job: schedulers.JobFiles) -> tuple[str, ...]:
        """Queue `job` with sbatch."""
        reply = self.commands.submit(("sbatch", "--parsable", str(job.script)))
        if reply.code != 0:
            raise submission_error("sbatch", reply, SUBMISSIONS)
        number = re.search(r"^(\d+)(;\S*)?\s*$", reply.out, re.MULTILINE)
        if number is None:
            raise SubmissionUnknown(f"sbatch ends well without a job's number: {message(reply)}", lost=True)
        return tuple(self.task(number[1], index) for index in range(job.tasks)) or (number[1],)

    def task(self, job: str, index: int) -> str:
        """Return the identifier of an array's task."""
        return f"{job}_{index}"

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the numbers of the queued or running jobs called one of `names`."""
        jobs = waiting_or_running(self._queue(), names)
        return {name: job.partition("_")[0] for name, job in jobs.items()}

    def find_ended(self, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Return the numbers of the jobs called one of `names` that have ended and that the controller remembers."""
        numbers: dict[str, Sequence[str]] = {}
        for name, jobs in ended_jobs(self._queue(), names).items():
            numbers[name] = sorted({job.partition("_")[0] for job in jobs})
        return numbers

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of `jobs`: one squeue for all, and one sacct for those it no longer lists."""
        queue = self._queue()
        wanted = list(jobs)
        # Tasks of an array that were cancelled together before they started are one entry, by the array's number.
        states = {job: queue[name][0] for job in wanted for name in (job.partition("_")[0], job) if name in queue}
        gone = [job for job in wanted if job not in states]
        if gone:
            with contextlib.suppress(UserError):  # what nobody lists is unknown
                states |= self._accounts(gone)
        return self._with_node_reasons({job: states.get(job, State(phase="unknown")) for job in wanted})

    def disowns(self, job: str) -> bool:
        """Return whether the controller does not know `job`, and accounting, where there is one, has no job of it."""
        try:
            return super().disowns(job) and not self._accounts([job])
        except UserError:
            return False

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return what sacct knows; its own words where the cluster has no accounting."""
        usages: dict[str, JobUsage] = {}
        for part in at_once(jobs):
            words = ("sacct", "--noheader", "--parsable2", "--noconvert", "-o", USAGE_FIELDS, "-j", ",".join(part))
            answer = self.commands.ask(words)
            if answer.code:
                return f"sacct: {message(answer)}"
            usages |= read_slurm_usage(answer.out)
        return usages

    @classmethod
    def meaning(cls, word: str) -> str:
        """Return it in words, and Slurm's own."""
        return f"{_MEANING.get(word, 'it ended')} ({word})"

    def findings(self) -> Iterator[SiteFinding]:
        """Compare the statements of the site file with sinfo, scontrol and srun."""
        live = {partition.name: partition for partition in self._live}
        for stated in self.site.partition or live.values():
            exists = stated.name in live
            yield SiteFinding(good=exists, text=f"partition {stated.name} exists, known are {', '.join(live)}")
            yield from compare_partition(stated, live[stated.name]) if exists else ()
        for name in filter(None, self.request.partition.split(",")):
            yield SiteFinding(good=name in live, text=f"default partition {name} exists")
        settings = self.commands.run(("scontrol", "show", "config"))
        if re.search(r"EnforcePartLimits\s*= NO", settings):
            text = "note: EnforcePartLimits=NO, Slurm lets jobs that can never run wait for ever"
            yield SiteFinding(text=text)
        accounting = "accounting_storage/none" not in settings
        yield SiteFinding(text=f"accounting: {'sacct' if accounting else 'none, exit files stand in for it'}")
        if self.request.launcher.startswith("srun"):
            kinds = self.commands.ask(("srun", "--mpi=list"))
            kind = self.request.launcher.partition("=")[2]
            good = kind in (kinds.out + kinds.err).split()
            yield SiteFinding(good=good, text=f"launcher {self.request.launcher}: srun has {kind}")

    def _queue(self) -> dict[str, tuple[State, str]]:
        words = ("squeue", "--me", "--noheader", "--array", "--states=all", "--Format", QUEUE_FIELDS)
        return read_queue(self.commands.run(words))

    def _accounts(self, jobs: list[str]) -> dict[str, State]:
        """Return what accounting knows of jobs that the controller has forgotten (MinJobAge), nothing without it.

        Raises:
            UserError: accounting does not answer.
        """
        states: dict[str, State] = {}
        for part in at_once(jobs if self._accounting else ()):
            words = ("sacct", "-X", "--noheader", "--parsable2", "-o", ACCOUNT_FIELDS, "-j", ",".join(part))
            answer = self.commands.ask(words)
            if answer.code and _NO_ACCOUNTING in message(answer).lower():
                self._accounting = False  # the launches' exit files must do
                break
            if answer.code:
                raise UserError(f"sacct refused: {message(answer)}")
            states |= read_sacct(answer.out)
        return states

    def _with_node_reasons(self, states: dict[str, State]) -> dict[str, State]:
        """Add why a node was lost or kept back, where that ended a job or makes it wait."""
        waits = {job for job, state in states.items() if state.phase == "queued" and state.reason.startswith(NO_NODES)}
        lost = {job for job, state in states.items() if state.word == "NODE_FAIL"}
        if not lost and not waits:
            return states
        try:
            reasons = read_slurm_nodes(self.commands.run(("sinfo", "--noheader", "-N", "-o", NODE_FIELDS)))
        except UnreadableAnswer as error:
            _LOG.warning("why nodes are not well is not known: %s", error)
            return states
        for job in lost | waits:
            nodes = expand(states[job].nodes) if job in lost else reasons
            why = dict.fromkeys(reasons[node] for node in nodes if node in reasons)
            states[job] = replace(states[job], reason="; ".join(filter(None, [states[job].reason, *why])))
        return states

    def _live_limit(self, name: str) -> Partition | None:
        partitions = self._live
        names = [partition.name for partition in partitions]
        if name and partitions and name not in names:
            raise UserError(f"{setting('partition', name)} does not exist: known are {', '.join(names)}")
        return Site(partition=partitions).limits(name)

    @functools.cached_property
    def _live(self) -> tuple[Partition, ...]:
        try:
            partitions = read_partitions(self.commands.ask(("sinfo", "--noheader", "-o", PARTITION_FIELDS)).out)
            if all(partition.gpus_per_node is not None for partition in partitions):
                return partitions
            gpus = read_node_gpus(self.commands.ask(("scontrol", "show", "nodes", "--json")).out)
        except UnreadableAnswer as error:
            _LOG.warning("partitions are not known, so that no layout is refused for their limits: %s", error)
            return ()
        except UserError:
            return ()  # no Slurm on this machine: the script is only written, `check` refuses to submit it
        if gpus is None:
            _LOG.warning("how many GPUs a node has cannot be read, so that none of a layout's are refused for it")
            return partitions
        return tuple(replace(partition, gpus_per_node=gpus.get(partition.name, 0)) for partition in partitions)
