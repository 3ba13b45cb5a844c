"""PBS (OpenPBS, PBS Pro): qsub, qstat, qdel."""

import functools
import getpass
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.schema.layout import Layout
from harness.schema.sweep import JobUsage
from harness.sweep import launch_command, scheduler
from harness.sweep.commands import CommandRunner, message
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.scheduler import Job, SiteFinding, State, compare_partition
from harness.sweep.schedulers.pbs.pbs_answers import explain, read_nodes, read_state, read_table, read_usage, with_nodes
from harness.sweep.site import Partition

_AT_ONCE = 500  # identifiers in one call: the command line has an end
_UNKNOWN_JOB, _HAS_FINISHED = 153, 35  # what qstat ends with when it does not list one of the jobs it was asked for
_NO_HISTORY = "not configured to maintain job history"
REMOTE = "remote.sh"  # beside the scripts: starts mpirun's daemons on the other nodes
# qsub(1B) of OpenPBS 23.06 and the resources of pbs_resources(7B) that a job of ours may ask for.
_OPTIONS = "aAcCehIjJklmMNopPqrRSuvVWz"
_OLD = re.compile(r"\b(ppn|nodes)=")


class Scheduler(scheduler.Scheduler):
    """Submits scripts with qsub; one qstat answers for all jobs where it can."""

    name = "pbs"
    template = "pbs.sh.j2"
    directive = "#PBS"
    ping = ("qstat", "-B")
    unknown = ("qos", "signal_s")
    launchers = ("auto", "mpirun")

    _history = True
    _answers_all = True

    def check_request(self) -> None:
        """Refuse two queues."""
        if self.request.partition and self.request.reservation:
            raise UserError(
                f"PARTITION={self.request.partition} and RESERVATION={self.request.reservation} are both queues in "
                "PBS: leave PARTITION out, a reservation has its own"
            )

    @classmethod
    def detect(cls) -> str | None:
        """Tell PBS from Torque and from Slurm's imitation, whose qstat knows other options."""
        found = shutil.which("qsub")
        if not found or not shutil.which("qstat"):
            return None
        answer = CommandRunner().ask(("qstat", "--version"))
        return found if not answer.code and "pbs_version" in answer.out + answer.err else None

    def limit(self) -> Partition | None:
        """Return the queue's limits by the site file, else what the server's nodes have: qsub would not refuse more."""
        return self.site.limits(self.request.partition) or self._live

    def refuse_line(self, line: str) -> str | None:
        """Return what is wrong with a directive: OpenPBS takes ``nodes=2:ppn=2`` and gives something else."""
        words = line.split()
        if len(words) < 2 or not re.fullmatch(r"-[A-Za-z]", words[1]) or words[1][1] not in _OPTIONS:
            return "is not an option of qsub: write one letter, such as #PBS -l"
        if words[1] == "-l" and _OLD.search(" ".join(words[2:])):
            return "asks for nodes in the old way: write select=2:ncpus=4:mpiprocs=4"
        return None

    def helpers(self, layout: Layout) -> tuple[str, ...]:
        """Return what starts mpirun's daemons on other nodes."""
        return (REMOTE,) if layout.nodes > 1 else ()

    def launcher(self, layout: Layout) -> LaunchCommand:
        """Return mpirun, which reads PBS_NODEFILE by itself."""
        return launch_command.mpirun(layout, self.site, agent=f"$jobs/{REMOTE}" if layout.nodes > 1 else None)

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
        """Return the identifiers of the user's queued or running jobs called one of `names`."""
        jobs = self._table(self.commands.run(("qselect", "-u", getpass.getuser())).split())
        found = {str(job.get("Job_Name", "")): name for name, job in jobs.items()}
        return {name: found[name] for name in names if name in found}

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of `jobs`: one qstat for all, and one pbsnodes while some run.

        PBS leaves a job that has lost a node in the state R (OpenPBS 23.06: minutes after the node is down).
        """
        wanted = list(jobs)
        table = self._table(wanted)
        found = {job: read_state(table[job]) if job in table else State(phase="unknown") for job in wanted}
        if any(state.phase == "running" or state.exit_code for state in found.values()):
            _, ill = self._nodes()
            found = {job: with_nodes(state, ill) for job, state in found.items()}
        return found

    def cancel(self, jobs: Iterable[str]) -> None:
        """End `jobs` with qdel; one that has ended already is not an error."""
        wanted = sorted(set(jobs))
        for begin in range(0, len(wanted), _AT_ONCE):
            self.commands.ask(("qdel", *wanted[begin : begin + _AT_ONCE]))

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return what the server's job history knows."""
        used = {name: read_usage(job) for name, job in self._table(jobs).items()}
        if not self._history:
            return "qstat: the server keeps no job history"
        return {name: usage for name, usage in used.items() if usage is not None}

    def explain(self, state: State) -> str:
        """Return what became of an ended job."""
        return explain(state)

    def findings(self) -> Iterator[SiteFinding]:
        """Compare the statements of the site file with pbsnodes and the queues."""
        limit, ill = self._nodes()
        for sentence in dict.fromkeys(ill.values()):
            yield SiteFinding(good=True, text=f"note: {sentence}")
        if limit is not None:
            text = f"{limit.nodes} nodes, {limit.cores_per_node} cores and {limit.gpus_per_node} GPUs a node"
            yield SiteFinding(good=True, text=f"pbsnodes: {text}")
        for stated in self.site.partition:
            there = self.commands.ask(("qstat", "-Q", "-f", stated.name))
            yield SiteFinding(good=not there.code, text=f"queue {stated.name} exists")
            if limit is not None:
                yield from compare_partition(replace(stated, walltime=None), limit)
        tmrsh = shutil.which("pbs_tmrsh") or "pbs_tmrsh where the job finds it, or ssh"
        yield SiteFinding(good=True, text=f"ranks on other nodes start through {tmrsh}")

    def _table(self, jobs: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what qstat says of those of `jobs` that it lists.

        Without job history an ended job is not listed, and ``-x`` lists none at all. Some versions answer for the
        first of several jobs only (openpbs issue 2672): then each is asked for alone.
        """
        found: dict[str, dict[str, Any]] = {}
        size = _AT_ONCE if self._answers_all else 1
        for begin in range(0, len(jobs), size):
            part = jobs[begin : begin + size]
            table, complete = self._ask(part)
            found |= table
            rest = [job for job in part if job not in table]
            if rest and complete and len(part) > 1:
                alone = {name: job for one in rest for name, job in self._ask([one])[0].items()}
                self._answers_all = not alone
                found |= alone
        return found

    def _ask(self, jobs: Sequence[str]) -> tuple[dict[str, dict[str, Any]], bool]:
        """Return what one qstat says of `jobs`, and whether it claims to have listed all."""
        words = ("qstat", *(("-x",) if self._history else ()), "-f", "-F", "json", *jobs)
        answer = self.commands.ask(words)
        if self._history and _NO_HISTORY in answer.err:
            self._history = False
            return self._ask(jobs)
        if answer.code not in (0, _UNKNOWN_JOB, _HAS_FINISHED):
            raise UserError(f"qstat refused: {message(answer)}")
        return read_table(answer.out, "Jobs"), answer.code == 0

    def _nodes(self) -> tuple[Partition | None, dict[str, str]]:
        return read_nodes(self.commands.ask(("pbsnodes", "-a", "-F", "json")).out)

    @functools.cached_property
    def _live(self) -> Partition | None:
        try:
            return self._nodes()[0]
        except UserError:
            return None  # no PBS on this machine: the script is only written
