"""PBS (OpenPBS, PBS Pro): qsub, qstat, qdel."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness.errors import UserError
from harness.spec.layout import Layout
from harness.sweep.request import Request
from harness.sweep.schedulers import Job, Launcher, State, pbs_answers, ranks
from harness.sweep.schedulers.command import Commands
from harness.sweep.schedulers.limits import beyond
from harness.sweep.site import Partition, Site

_AT_ONCE = 500  # identifiers in one call: the command line has an end
REMOTE = "remote.sh"  # beside the scripts: starts mpirun's daemons on the other nodes


class Scheduler:
    """Submits scripts with qsub; one qstat answers for all jobs."""

    name = "pbs"
    template = "pbs.sh.j2"
    poll_s = 2.0
    durable = True

    def __init__(self, *, site: Site, request: Request, oversubscribe: bool = False) -> None:
        for field, value in (("QOS", request.qos), ("SIGNAL", request.signal_s)):
            if value:
                raise UserError(f"{field}={value} is Slurm's: leave it out under PBS")
        if request.launcher.startswith("srun"):
            raise UserError(f"LAUNCHER={request.launcher} is Slurm's: use mpirun under PBS")
        self.at_once = request.max_jobs
        self.commands = Commands()
        self.calls = self.commands.calls
        self._site = site
        self._request = request

    def check(self) -> str | None:
        """Return nothing; raise a UserError if PBS does not answer here."""
        self.commands.run(("qstat", "-B"))
        return None

    def refusal(self, layout: Layout) -> str | None:
        """Return why `layout` does not fit, by the site file or else by pbsnodes: qsub would let it wait for ever."""
        return beyond(layout, self._request, self._limit)

    def limit(self) -> Partition | None:
        """Return the queue's limits by the site file, else what the server's nodes have."""
        return self._limit

    def launcher(self, layout: Layout) -> Launcher:
        """Return mpirun, which reads PBS_NODEFILE by itself."""
        return ranks.mpirun(layout, self._site, agent=f"$jobs/{REMOTE}" if layout.nodes > 1 else None)

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what the ranks need exported."""
        return ranks.rank_environment(self._site, self.name)

    def output(self, folder: Path, job: str) -> Path:
        """Return the file that PBS makes when ``-o`` names a folder."""
        return folder / f"{job}.OU"

    def submit(self, job: Job) -> tuple[str, ...]:
        """Queue `job` with qsub.

        Raises:
            UserError: qsub refused it; the sentence holds its own.
        """
        number = self.commands.run(("qsub", str(job.script))).strip()
        return tuple(self.task(number, index) for index in range(job.tasks)) or (number,)

    def task(self, job: str, index: int) -> str:
        """Return the identifier of an array's task: ``7[].head`` becomes ``7[2].head``."""
        return job.replace("[]", f"[{index}]")

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the identifiers of the queued or running jobs called one of `names`."""
        jobs = self.commands.run(("qselect",)).split()
        wanted = set(names)
        found: dict[str, str] = {}
        for begin in range(0, len(jobs), _AT_ONCE):
            answer = self.commands.ask(("qstat", "-f", "-F", "json", *jobs[begin : begin + _AT_ONCE]))
            found |= pbs_answers.read_names(answer.stdout)
        return {name: job for name, job in found.items() if name in wanted}

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of `jobs`: one qstat for all, and one pbsnodes while some run.

        PBS leaves a job that has lost a node in the state R (OpenPBS 23.06: minutes after the node is down).
        """
        wanted = list(jobs)
        states: dict[str, State] = {}
        for begin in range(0, len(wanted), _AT_ONCE):
            # Exit code 153 means that one of them is unknown; the others are answered all the same.
            answer = self.commands.ask(("qstat", "-x", "-f", "-F", "json", *wanted[begin : begin + _AT_ONCE]))
            if answer.returncode not in (0, 153, 35):
                raise UserError(f"qstat refused: {answer.stderr.strip()}")
            states |= pbs_answers.read_jobs(answer.stdout)
        found = {job: states.get(job, State(phase="unknown")) for job in wanted}
        if any(state.phase == "running" for state in found.values()):
            _, ill = self._nodes()
            found = {job: _with_nodes(state, ill) for job, state in found.items()}
        return found

    def cancel(self, jobs: Iterable[str]) -> None:
        """End `jobs` with qdel; one that has ended already is no error."""
        wanted = sorted(set(jobs))
        for begin in range(0, len(wanted), _AT_ONCE):
            self.commands.ask(("qdel", *wanted[begin : begin + _AT_ONCE]))

    def explain(self, state: State) -> str:
        """Return what became of an ended job."""
        return pbs_answers.explain(state)

    def _nodes(self) -> tuple[Partition | None, dict[str, str]]:
        return pbs_answers.read_nodes(self.commands.ask(("pbsnodes", "-a", "-F", "json")).stdout)

    @functools.cached_property
    def _limit(self) -> Partition | None:
        stated = self._site.limits(self._request.partition)
        if stated is not None:
            return stated
        try:
            return self._nodes()[0]
        except UserError:
            return None  # no PBS on this machine: the script is only written


def _with_nodes(state: State, ill: Mapping[str, str]) -> State:
    lost = [ill[node] for node in state.nodes.split(",") if node in ill]
    return replace(state, reason="; ".join(lost)) if lost and state.phase == "running" else state
