"""Slurm: sbatch, squeue, and sacct where there is accounting."""

import functools
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness.comm.launcher import find_launcher, mpi_family
from harness.errors import UserError
from harness.spec.layout import Layout
from harness.sweep.request import Request
from harness.sweep.schedulers import Job, Launcher, State, ranks, slurm_answers
from harness.sweep.schedulers.command import Commands
from harness.sweep.schedulers.limits import beyond
from harness.sweep.site import Partition, Site

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
            return ranks.srun(layout, self.rank_start, self._site)
        return ranks.mpirun(layout, self._site)

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
        return {"SLURM_EXPORT_ENV": None, **ranks.rank_environment(self._site, self.name)}

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
        return slurm_answers.explain(state)

    def _queue(self) -> dict[str, tuple[State, str]]:
        words = ("squeue", "--me", "--noheader", "--array", "--states=all", "--Format", slurm_answers.QUEUE_FIELDS)
        return slurm_answers.read_queue(self.commands.run(words))

    def _accounts(self, jobs: list[str]) -> dict[str, State]:
        """Return what accounting knows of jobs that the controller has forgotten (MinJobAge), nothing without it."""
        found: dict[str, State] = {}
        for begin in range(0, len(jobs) if self._accounting else 0, _AT_ONCE):
            part = ",".join(jobs[begin : begin + _AT_ONCE])
            answer = self.commands.ask(
                ("sacct", "-X", "--noheader", "--parsable2", "-o", slurm_answers.ACCOUNT_FIELDS, "-j", part)
            )
            if answer.returncode:
                self._accounting = False  # "Slurm accounting storage is disabled": the launches' exit files must do
                break
            found |= slurm_answers.read_accounts(answer.stdout)
        return found

    def _with_node_reasons(self, states: dict[str, State]) -> dict[str, State]:
        """Add why a node was lost or kept back, where that ended a job or makes it wait."""
        lost = {job: state for job, state in states.items() if state.word == "NODE_FAIL"}
        waiting = {
            job: state
            for job, state in states.items()
            if state.phase == "queued" and state.reason.startswith(slurm_answers.NODES_NOT_THERE)
        }
        if not lost and not waiting:
            return states
        reasons = slurm_answers.read_nodes(
            self.commands.run(("sinfo", "--noheader", "-N", "-o", slurm_answers.NODE_FIELDS))
        )
        for job, state in lost.items():
            here = [reasons[node] for node in slurm_answers.expand(state.nodes) if node in reasons]
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
            answer = self.commands.ask(("sinfo", "--noheader", "-o", slurm_answers.PARTITION_FIELDS))
        except UserError:
            return ()  # no Slurm on this machine: the script is only written, `check` refuses to submit it
        return slurm_answers.read_partitions(answer.stdout)


def _names(job: str, queue: Container[str]) -> list[str]:
    """Return the name under which squeue lists `job`, none if it does not.

    Tasks of an array that were cancelled together before they started are one entry, called by the array's number.
    """
    return [name for name in (job, job.partition("_")[0]) if name in queue][:1]
