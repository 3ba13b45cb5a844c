"""Slurm: sbatch, squeue, and sacct where there is accounting; what they answer, as states, partitions and nodes."""

import functools
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.base.errors import UserError
from harness.comm.mpi_library import find_launcher, mpi_family
from harness.schema.job_usage import JobUsage
from harness.schema.layout import Layout
from harness.sweep import launch_command, schedulers
from harness.sweep.job_state import State
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.scheduler_commands import CommandRunner
from harness.sweep.schedulers import Job, SiteFinding, at_once, compare_partition, ended_jobs, waiting_or_running
from harness.sweep.site import Partition, Site
from harness.sweep.slurm_answers import (
    ACCOUNT_FIELDS,
    NO_NODES,
    NODE_FIELDS,
    PARTITION_FIELDS,
    QUEUE_FIELDS,
    USAGE_FIELDS,
    expand,
    read_node_gpus,
    read_partitions,
    read_queue,
    read_sacct,
    read_slurm_nodes,
    read_slurm_usage,
    widest,
)
from harness.sweep.submission_errors import (
    RetryPhrases,
    SubmissionUnknown,
    UnreadableAnswer,
    message,
    submission_error,
)

_LOG = logging.getLogger(__name__)
# Installed, but not configured for a cluster: Debian's packages on a workstation, say.
_NO_CLUSTER = ("configuration source", "configuration file")
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
    canceller = ("scancel", "--quiet")
    identifier = r"\d+(_\d+)?"
    unknown = ("project",)

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
        stated = [limit for limit in limits if limit is not None]
        return widest(stated) if len(stated) == len(wanted) else None

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
            states |= self._accounts(gone)
        return self._with_node_reasons({job: states.get(job, State(phase="unknown")) for job in wanted})

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
        """Return what accounting knows of jobs that the controller has forgotten (MinJobAge), nothing without it."""
        states: dict[str, State] = {}
        for part in at_once(jobs if self._accounting else ()):
            words = ("sacct", "-X", "--noheader", "--parsable2", "-o", ACCOUNT_FIELDS, "-j", ",".join(part))
            answer = self.commands.ask(words)
            if answer.code:
                self._accounting = False  # "Slurm accounting storage is disabled": the launches' exit files must do
                break
            states |= read_sacct(answer.out)
        return states

    def _with_node_reasons(self, states: dict[str, State]) -> dict[str, State]:
        """Add why a node was lost or kept back, where that ended a job or makes it wait."""
        waits = {job for job, state in states.items() if state.phase == "queued" and state.reason.startswith(NO_NODES)}
        lost = {job for job, state in states.items() if state.word == "NODE_FAIL"}
        if not lost and not waits:
            return states
        reasons = read_slurm_nodes(self.commands.run(("sinfo", "--noheader", "-N", "-o", NODE_FIELDS)))
        for job in lost | waits:
            nodes = expand(states[job].nodes) if job in lost else reasons
            why = dict.fromkeys(reasons[node] for node in nodes if node in reasons)
            states[job] = replace(states[job], reason="; ".join(filter(None, [states[job].reason, *why])))
        return states

    def _live_limit(self, name: str) -> Partition | None:
        partitions = self._live
        names = [partition.name for partition in partitions]
        if name and partitions and name not in names:
            raise UserError(f"PARTITION={name} does not exist: known are {', '.join(names)}")
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
