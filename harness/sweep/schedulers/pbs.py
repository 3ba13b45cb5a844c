"""PBS (OpenPBS, PBS Pro): qsub, qstat, qdel; what they answer, as states, limits and nodes."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.user import user_name
from harness.schema.sweep import JobUsage, Layout
from harness.sweep import launch_command, schedulers
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.schedulers import CommandRunner, Job, SiteFinding, State, at_once, compare_partition, message
from harness.sweep.site import Partition, clock_seconds, size_bytes

_UNKNOWN_JOB, _HAS_FINISHED = 153, 35  # what qstat ends with when it does not list one of the jobs it was asked for
_NO_HISTORY = "not configured to maintain job history"
REMOTE = "remote.sh"  # beside the scripts: starts mpirun's daemons on the other nodes
# qsub(1B) of OpenPBS 23.06 and the resources of pbs_resources(7B) that a job of ours may ask for.
_OPTIONS = "aAcCehIjJklmMNopPqrRSuvVWz"
_OLD = re.compile(r"\b(ppn|nodes)=")
_QUEUED = {"Q": "queued", "H": "held", "W": "waiting for its start time", "T": "on its way", "S": "suspended"}
_RUNNING = {"R": "running", "E": "ending", "B": "begun", "U": "suspended: its workstation is busy"}
_CODES = {
    **dict.fromkeys((-1, -2), "PBS could not start it"),
    -3: "PBS could not start it and wanted to try again",
    **dict.fromkeys((-4, -5, -6), "it was ended when its node's PBS daemon was started again"),
    -10: "its user may not run on its node",
    -12: "it was started again after its node was lost",
    **dict.fromkeys((-24, -25), "PBS ended it: it used more cores than it asked for"),
    -26: "it ran out of virtual memory",
    -27: "it ran out of memory",
    -28: "PBS ended it at its limit of processor time",
    -29: "PBS ended it at its time limit",
}
_ENDED = ("F", "X")
_JOULES = 3.6e6  # of a kilowatt-hour
_DELETED = 91  # substate
_SIGNALLED = 256  # Exit_status of a job that a signal ended is 256 and its number


class Scheduler(schedulers.Scheduler):
    """Submits scripts with qsub; one qstat answers for all jobs where it can."""

    name = "pbs"
    title = "PBS"
    template = "pbs.sh.j2"
    directive = "#PBS"
    ping = ("qstat", "-B")
    canceller = ("qdel",)
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
        number = self.commands.run(("qsub", str(job.script))).strip()
        return tuple(self.task(number, index) for index in range(job.tasks)) or (number,)

    def task(self, job: str, index: int) -> str:
        """Return the identifier of an array's task: ``7[].head`` becomes ``7[2].head``."""
        return job.replace("[]", f"[{index}]")

    def find(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return the identifiers of the user's queued or running jobs called one of `names`."""
        jobs = self._table(self.commands.run(("qselect", "-u", user_name())).split())
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
            for job, state in found.items():
                lost = [ill[node] for node in state.nodes.split(",") if node in ill]
                # Of a job that failed an ill node is the cause, whatever it wrote.
                if lost and state.phase in ("running", "ended") and state.exit_code != 0:
                    forced = state.forced or state.phase == "ended"
                    found[job] = replace(state, reason="; ".join(lost), forced=forced)
        return found

    def account(self, jobs: Sequence[str]) -> Mapping[str, JobUsage] | str:
        """Return what the server's job history knows."""
        used = {name: read_usage(job) for name, job in self._table(jobs).items()}
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
            there = self.commands.ask(("qstat", "-Q", "-f", stated.name))
            yield SiteFinding(good=not there.code, text=f"queue {stated.name} exists")
            if limit is not None:
                yield from compare_partition(replace(stated, walltime=None), limit)
        tmrsh = shutil.which("pbs_tmrsh") or "pbs_tmrsh where the job finds it, or ssh"
        yield SiteFinding(text=f"ranks on other nodes start through {tmrsh}")

    def _table(self, jobs: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what qstat says of those of `jobs` that it lists.

        Without job history an ended job is not listed, and ``-x`` lists none at all. Some versions answer for the
        first of several jobs only (openpbs issue 2672): then each is asked for alone.
        """
        found: dict[str, dict[str, Any]] = {}
        for part in at_once(jobs) if self._answers_all else at_once(jobs, 1):
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


def read_state(job: Mapping[str, Any]) -> State:
    """Return the state of one job of ``qstat -x -f -F json``."""
    letter = str(job.get("job_state", ""))
    comment = str(job.get("comment", ""))
    nodes = ",".join(dict.fromkeys(re.findall(r"(?:^|\+)([^/+]+)/", str(job.get("exec_host", "")))))
    if letter in _QUEUED:
        return State(phase="queued", word=_QUEUED[letter], reason=comment)
    if letter in _RUNNING:
        return State(phase="running", word=_RUNNING[letter], nodes=nodes)
    code = job.get("Exit_status")
    deleted = job.get("substate") == _DELETED
    return State(
        phase="ended",
        word=_meaning(job, comment),
        reason=comment,
        nodes=nodes,
        exit_code=code,
        forced=deleted or code is None or not 0 <= code <= _SIGNALLED,
    )


def _meaning(job: Mapping[str, Any], comment: str) -> str:
    code = job.get("Exit_status")
    if code is None:
        if "Can Never Run" in comment:
            return "PBS will never run it"
        return "it ended without having run: it was deleted, or what it depended on failed"
    if code in _CODES:
        return _CODES[code]
    signal = f"signal {code - _SIGNALLED}" if code > _SIGNALLED else f"exit code {code}"
    if job.get("substate") == _DELETED:  # by its owner or by an operator
        return f"it was deleted ({signal})"
    if code > _SIGNALLED:
        return f"{signal} ended it"
    return "PBS calls it finished, but it wrote no whole record" if code == 0 else "it failed"


def read_usage(job: Mapping[str, Any]) -> JobUsage | None:
    """Return what one job of ``qstat -x -f -F json`` used, None while it has not ended. Zero is not measured."""
    if str(job.get("job_state", "")) not in _ENDED:
        return None
    used = job.get("resources_used", {})  # none: it never ran
    return JobUsage(
        elapsed_s=clock_seconds(str(used.get("walltime", "0"))),
        nodes=len(read_state(job).nodes.split(",")) if used else 0,
        cpu_s=clock_seconds(str(used.get("cput", "0"))) or None,
        memory_bytes=size_bytes(str(used.get("mem", ""))) or None,
        memory_of="a job",
        energy_j=float(used.get("energy", 0)) * _JOULES or None,
    )


def read_nodes(answer: str) -> tuple[Partition | None, dict[str, str]]:
    """Return what a job may get at most and which nodes are not well, from ``pbsnodes -a -F json``."""
    nodes = read_table(answer, "nodes")
    ill = {
        host: f"node {name} is {node['state']}"
        for name, node in nodes.items()
        if set(str(node.get("state", "")).split(",")) & {"down", "offline", "unknown", "state-unknown", "stale"}
        # What jobs may call it: its vnode's, its daemon's or its host's name, short or long.
        for known in (name, node.get("Mom", name), node.get("resources_available", {}).get("host", name))
        for host in (str(known), str(known).partition(".")[0])
    }
    resources = [node.get("resources_available", {}) for node in nodes.values()]
    if not resources:
        return None, ill
    return (
        Partition(
            name="of this PBS server",
            nodes=len(resources),
            cores_per_node=max(int(resource.get("ncpus", 0)) for resource in resources),
            gpus_per_node=max(int(resource.get("ngpus", 0)) for resource in resources),
            memory_mb=max(size_bytes(str(resource.get("mem", ""))) for resource in resources) // 1024**2 or None,
        ),
        ill,
    )


def read_table(answer: str, name: str) -> dict[str, dict[str, Any]]:
    if not answer.strip():
        return {}
    try:
        # strict=False: PBS copies control characters out of job environments as they are.
        found: dict[str, dict[str, Any]] = json.loads(answer, strict=False).get(name, {})
    except json.JSONDecodeError as error:
        raise UserError(f"PBS answered with damaged JSON ({error}): try again") from error
    return found
