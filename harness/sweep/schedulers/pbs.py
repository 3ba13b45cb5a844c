"""PBS (OpenPBS, PBS Pro): qsub, qstat, qdel; what they answer, as states, limits and nodes."""

import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.base.current_user import user_name
from harness.base.errors import UserError
from harness.base.processes import Reply
from harness.schema.job_usage import JobUsage
from harness.schema.layout import Layout
from harness.sweep import launch_command, schedulers
from harness.sweep.job_state import State
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.pbs_answers import (
    quote_bare_texts,
    read_pbs_nodes,
    read_pbs_usage,
    read_state,
    read_table,
    read_text_table,
)
from harness.sweep.scheduler_commands import CommandRunner
from harness.sweep.schedulers import Job, SiteFinding, at_once, compare_partition
from harness.sweep.site import Partition
from harness.sweep.submission_errors import (
    RetryPhrases,
    SubmissionUnknown,
    UnreadableAnswer,
    message,
    submission_error,
)

_LOG = logging.getLogger(__name__)
_UNKNOWN_JOB, _HAS_FINISHED = 153, 35  # what qstat ends with when it does not list one of the jobs it was asked for
_NO_HISTORY = "not configured to maintain job history"
REMOTE = "remote.sh"  # beside the scripts: starts mpirun's daemons on the other nodes
# qsub(1B) of OpenPBS 23.06 and the resources of pbs_resources(7B) that a job of ours may ask for.
_OPTIONS = "aAcCehIjJklmMNopPqrRSuvVWz"
_OLD = re.compile(r"\b(ppn|nodes)=")

# What qsub prints, by OpenPBS's pbs_messages.c and qsub.c.
SUBMISSIONS = RetryPhrases(
    lost=(
        "cannot connect to server",
        "Connection (refused|reset|timed out)",
        "Communication failure",
        "Premature end of message",
        "End of File",
        "Batch protocol error",
        "(Invalid|Expired) credential",
        "No free connections",
        "Server connection table full",
        "Server shutting down",
        "System error",
        "PBS server internal error",
        "Failed to save job",
        "Resource temporarily unavailable",
        "Too many submit retries",
    ),
    full=(
        "Maximum number of jobs",
        r"per-(user|group|project) limit of jobs",
        r"would exceed (queue \S+|complex)'s per-(user|group|project) limit",
    ),
    full_or_too_large=("would exceed .*limit on resource",),
    # Where a site's hook speaks instead: the server's error number (pbs_error.h), of which qsub leaves a byte.
    full_codes=(15046 % 256, 15142 % 256),
    full_or_too_large_codes=(15143 % 256,),
)


class Scheduler(schedulers.Scheduler):
    """Submits scripts with qsub; one qstat answers for all jobs where it can."""

    name = "pbs"
    title = "PBS"
    template = "pbs.sh.j2"
    directive = "#PBS"
    ping = ("qstat", "-B")
    canceller = ("qdel",)
    identifier = r"\d+(\[\d*\])?(\.[\w.-]+)?"
    unknown = ("qos", "signal_s")
    launchers = ("auto", "mpirun")

    _history = True
    _answers_all = True
    _json = True
    _noted = False

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
        program = shutil.which("qsub")
        if not program or not shutil.which("qstat"):
            return None
        answer = CommandRunner().ask(("qstat", "--version"))
        return program if not answer.code and "pbs_version" in answer.out + answer.err else None

    def ask_limit(self) -> Partition | None:
        """Return what the server's nodes have: qsub would not refuse more."""
        return self._nodes()[0]

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
        """Queue `job` with qsub."""
        reply = self.commands.submit(("qsub", str(job.script)))
        if reply.code != 0:
            raise submission_error("qsub", reply, SUBMISSIONS)
        number = re.search(r"^(\d+(\[\])?(\.\S+)?)\s*$", reply.out, re.MULTILINE)
        if number is None:
            raise SubmissionUnknown(f"qsub ends well without a job's number: {message(reply)}", lost=True)
        return tuple(self.task(number[1], index) for index in range(job.tasks)) or (number[1],)

    def task(self, job: str, index: int) -> str:
        """Return the identifier of an array's task: ``7[].head`` becomes ``7[2].head``."""
        return job.replace("[]", f"[{index}]")

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the identifiers of the user's queued or running jobs called one of `names`."""
        jobs = self._table(self.commands.run(("qselect", "-u", user_name())).split())
        numbers = {str(job.get("Job_Name", "")): number for number, job in jobs.items()}
        return {name: numbers[name] for name in names if name in numbers}

    def find_ended(self, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Return the identifiers of the jobs called one of `names` that have ended, where the server keeps a history.

        qselect lists them with ``-x``, which a server without history refuses.
        """
        reply = self.commands.ask(("qselect", "-x", "-u", user_name()))
        if reply.code:
            return {}
        wanted = set(names)
        ended: dict[str, list[str]] = {}
        for number, job in self._table(reply.out.split()).items():
            name = str(job.get("Job_Name", ""))
            if name in wanted and read_state(job).phase == "ended":
                ended.setdefault(name, []).append(number)
        return ended

    def poll(self, jobs: Iterable[str]) -> Mapping[str, State]:
        """Return the states of `jobs`: one qstat for all, and one pbsnodes while some run.

        PBS leaves a job that has lost a node in the state R (OpenPBS 23.06: minutes after the node is down).
        """
        wanted = list(jobs)
        table = self._table(wanted)
        states = {job: read_state(table[job]) if job in table else State(phase="unknown") for job in wanted}
        if any(state.phase == "running" or state.exit_code for state in states.values()):
            _, ill = self._nodes()
            for job, state in states.items():
                lost = [ill[node] for node in state.nodes.split(",") if node in ill]
                # Of a job that failed an ill node is the cause, whatever it wrote.
                if lost and state.phase in ("running", "ended") and state.exit_code != 0:
                    forced = state.forced or state.phase == "ended"
                    states[job] = replace(state, reason="; ".join(lost), forced=forced)
        return states

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return what the server's job history knows."""
        used = {name: read_pbs_usage(job) for name, job in self._table(jobs).items()}
        if not self._history:
            return "qstat: the server keeps no job history"
        return {name: usage for name, usage in used.items() if usage is not None}

    def findings(self) -> Iterator[SiteFinding]:
        """Compare the statements of the site file with pbsnodes and the queues."""
        limit, ill = self._nodes()
        for sentence in dict.fromkeys(ill.values()):
            yield SiteFinding(text=f"note: {sentence}")
        if limit is not None:
            text = f"{limit.nodes} nodes, {limit.cores_per_node} cores and {limit.gpus_per_node} GPUs a node"
            yield SiteFinding(text=f"pbsnodes: {text}")
        for stated in self.site.partition:
            reply = self.commands.ask(("qstat", "-Q", "-f", stated.name))
            yield SiteFinding(good=not reply.code, text=f"queue {stated.name} exists")
            if limit is not None:
                yield from compare_partition(replace(stated, walltime=None), limit)
        tmrsh = shutil.which("pbs_tmrsh") or "pbs_tmrsh where the job finds it, or ssh"
        yield SiteFinding(text=f"ranks on other nodes start through {tmrsh}")

    def _table(self, jobs: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what qstat says of those of `jobs` that it lists.

        Without job history an ended job is not listed, and ``-x`` lists none at all. Some versions answer for the
        first of several jobs only (openpbs issue 2672): then each is asked for alone.
        """
        attributes: dict[str, dict[str, Any]] = {}
        for part in at_once(jobs) if self._answers_all else at_once(jobs, 1):
            table, complete = self._ask(part)
            attributes |= table
            rest = [job for job in part if job not in table]
            if rest and complete and len(part) > 1:
                asked_alone: dict[str, dict[str, Any]] = {}
                for job in rest:
                    asked_alone |= self._ask([job])[0]
                self._answers_all = not asked_alone
                attributes |= asked_alone
        return attributes

    def _ask(self, jobs: Sequence[str]) -> tuple[dict[str, dict[str, Any]], bool]:
        """Return what one qstat says of `jobs`, and whether it claims to have listed all."""
        reply = self._qstat(jobs, ("-F", "json") if self._json else ())
        if reply is None:
            return self._ask(jobs)
        if not self._json:
            return read_text_table(reply.out), reply.code == 0
        try:
            return read_table(reply.out, "Jobs"), reply.code == 0
        except UnreadableAnswer as error:
            return self._read_otherwise(jobs, reply, error)

    def _qstat(self, jobs: Sequence[str], form: Sequence[str]) -> Reply | None:
        """Return what qstat says of `jobs` in a `form`, None if it has to be asked again, as it keeps no history.

        Raises:
            UserError: it ends with an error, or gives no answer.
        """
        reply = self.commands.ask(("qstat", *(("-x",) if self._history else ()), "-f", *form, *jobs))
        if self._history and _NO_HISTORY in reply.err:
            self._history = False
            return None
        if reply.code not in (0, _UNKNOWN_JOB, _HAS_FINISHED):
            raise UserError(f"qstat refused: {message(reply)}")
        return reply

    def _read_otherwise(
        self, jobs: Sequence[str], damaged: Reply, error: UnreadableAnswer
    ) -> tuple[dict[str, dict[str, Any]], bool]:
        """Return what qstat says of `jobs` in its text form, which is then asked for; else by its own rule of quotes.

        Raises:
            UnreadableAnswer: neither can be read.
        """
        text = self._qstat(jobs, ())
        if text is None:
            return self._ask(jobs)
        try:
            table = read_text_table(text.out)
        except UnreadableAnswer as unreadable:
            table = self._read_bare(damaged, error, unreadable)
            return table, damaged.code == 0
        self._json = False
        _LOG.warning("%s: from now on the text form of qstat -f is read", error)
        return table, text.code == 0

    def _read_bare(
        self, damaged: Reply, error: UnreadableAnswer, unreadable: UnreadableAnswer
    ) -> dict[str, dict[str, Any]]:
        """Return the jobs of a `damaged` answer in JSON whose texts that look like numbers have no quotes."""
        try:
            table = read_table(quote_bare_texts(damaged.out), "Jobs")
        except UnreadableAnswer:
            raise UnreadableAnswer(f"{error}, and {unreadable}: ask the site about qstat -f -F json") from error
        if not self._noted:
            self._noted = True
            _LOG.warning("%s: what it writes without quotes and is no number is read as text", error)
        return table

    def _nodes(self) -> tuple[Partition | None, dict[str, str]]:
        """Return what the server's nodes have and which are not well; nothing where that cannot be read."""
        answer = self.commands.ask(("pbsnodes", "-a", "-F", "json")).out
        try:
            return read_pbs_nodes(answer)
        except UnreadableAnswer:
            pass
        try:
            return read_pbs_nodes(quote_bare_texts(answer))
        except UnreadableAnswer as error:
            _LOG.warning("nothing is known of the nodes: pbsnodes: %s", error)
            return None, {}
