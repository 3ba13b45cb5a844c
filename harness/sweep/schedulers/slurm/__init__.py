"""Slurm: sbatch, squeue, and sacct where there is accounting."""

import functools
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.base.errors import UserError
from harness.comm.launcher import find_launcher, mpi_family
from harness.schema.layout import Layout
from harness.schema.sweep import JobUsage
from harness.sweep import launch_command, scheduler
from harness.sweep.commands import CommandRunner, message
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.scheduler import Job, SiteFinding, State, compare_partition, waiting_or_running
from harness.sweep.schedulers.slurm.slurm_answers import (
    ACCOUNT_FIELDS,
    NODE_FIELDS,
    PARTITION_FIELDS,
    QUEUE_FIELDS,
    USAGE_FIELDS,
    expand,
    explain,
    listed_as,
    read_nodes,
    read_partitions,
    read_queue,
    read_sacct,
    read_usage,
    widest,
)
from harness.sweep.site import Partition, Site

# Installed, but not configured for a cluster: Debian's packages on a workstation, say.
_NO_CLUSTER = ("configuration source", "configuration file")
# How the reasons of jobs begin that wait for a node which is down or drained.
NO_NODES = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
_AT_ONCE = 500  # identifiers in one sacct call: the command line has an end


class Scheduler(scheduler.Scheduler):
    """Submits scripts with sbatch; one squeue answers for all jobs."""

    name = "slurm"
    template = "slurm.sh.j2"
    directive = "#SBATCH"
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
        return f"{len(nodes)} Slurm nodes are {len(machines)} machine by name: one job at a time, so that none disturbs"

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
        found = waiting_or_running(self._queue(), names)
        return {name: job.partition("_")[0] for name, job in found.items()}

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of `jobs`: one squeue for all, and one sacct for those it no longer lists."""
        queue = self._queue()
        wanted = list(jobs)
        states = {job: queue[name][0] for job in wanted for name in listed_as(job, queue)}
        gone = [job for job in wanted if job not in states]
        if gone:
            states |= self._accounts(gone)
        return self._with_node_reasons({job: states.get(job, State(phase="unknown")) for job in wanted})

    def cancel(self, jobs: Iterable[str]) -> None:
        """End `jobs` with scancel; one that has ended already is not an error."""
        wanted = sorted(set(jobs))
        for begin in range(0, len(wanted), _AT_ONCE):
            self.commands.ask(("scancel", "--quiet", *wanted[begin : begin + _AT_ONCE]))

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return what sacct knows; its own words where the cluster has no accounting."""
        found: dict[str, JobUsage] = {}
        for begin in range(0, len(jobs), _AT_ONCE):
            part = ",".join(jobs[begin : begin + _AT_ONCE])
            words = ("sacct", "--noheader", "--parsable2", "--noconvert", "-o", USAGE_FIELDS, "-j", part)
            answer = self.commands.ask(words)
            if answer.code:
                return f"sacct: {message(answer)}"
            found |= read_usage(answer.out)
        return found

    def explain(self, state: State) -> str:
        """Return what became of an ended job."""
        return explain(state)

    def findings(self) -> Iterator[SiteFinding]:
        """Compare the statements of the site file with sinfo, scontrol and srun."""
        live = {partition.name: partition for partition in self._live_partitions()}
        for stated in self.site.partition or live.values():
            there = stated.name in live
            yield SiteFinding(good=there, text=f"partition {stated.name} exists, known are {', '.join(live)}")
            yield from compare_partition(stated, live[stated.name]) if there else ()
        for name in filter(None, self.request.partition.split(",")):
            yield SiteFinding(good=name in live, text=f"default partition {name} exists")
        settings = self.commands.run(("scontrol", "show", "config"))
        if re.search(r"EnforcePartLimits\s*= NO", settings):
            text = "note: EnforcePartLimits=NO, Slurm lets jobs that can never run wait for ever"
            yield SiteFinding(good=True, text=text)
        accounting = "accounting_storage/none" not in settings
        yield SiteFinding(
            good=True, text=f"accounting: {'sacct' if accounting else 'none, exit files stand in for it'}"
        )
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
        for begin in range(0, len(jobs) if self._accounting else 0, _AT_ONCE):
            part = ",".join(jobs[begin : begin + _AT_ONCE])
            answer = self.commands.ask(("sacct", "-X", "--noheader", "--parsable2", "-o", ACCOUNT_FIELDS, "-j", part))
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
        return self._live_partitions()

    def _live_partitions(self) -> tuple[Partition, ...]:
        try:
            return read_partitions(self.commands.ask(("sinfo", "--noheader", "-o", PARTITION_FIELDS)).out)
        except UserError:
            return ()  # no Slurm on this machine: the script is only written, `check` refuses to submit it
