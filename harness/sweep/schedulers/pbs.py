"""PBS (OpenPBS, PBS Pro): qsub, qstat, qdel."""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.schema.layout import Layout
from harness.sweep.job_options import Request
from harness.sweep.schedulers import Job, Launcher, State, launch_command
from harness.sweep.schedulers.commands import Commands, beyond
from harness.sweep.site import Partition, Site

_QUEUED = {"Q": "queued", "H": "held", "W": "waiting for its start time", "T": "on its way", "S": "suspended"}
_RUNNING = {"R": "running", "E": "ending", "B": "begun", "U": "suspended: its workstation is busy"}
_CODES = {
    -1: "PBS could not start it",
    -2: "PBS could not start it",
    -3: "PBS could not start it and wanted to try again",
    -4: "it was ended when its node's PBS daemon was started again",
    -5: "it was ended when its node's PBS daemon was started again",
    -6: "it was ended when its node's PBS daemon was started again",
    -10: "its user may not run on its node",
    -12: "it was started again after its node was lost",
    -24: "PBS ended it: it used more cores than it asked for",
    -25: "PBS ended it: it used more cores than it asked for",
    -26: "it ran out of virtual memory",
    -27: "it ran out of memory",
    -28: "PBS ended it at its limit of processor time",
    -29: "PBS ended it at its time limit",
}
_SIGNALLED = 256  # Exit_status of a job that a signal ended is 256 and its number


def read_jobs(answer: str) -> dict[str, State]:
    """Return states by identifier from ``qstat -x -f -F json``."""
    return {name: _state(job) for name, job in _table(answer, "Jobs").items()}


def read_names(answer: str) -> dict[str, str]:
    """Return identifiers by job name from ``qstat -f -F json``."""
    return {str(job.get("Job_Name", "")): name for name, job in _table(answer, "Jobs").items()}


def _state(job: Mapping[str, Any]) -> State:
    letter = str(job.get("job_state", ""))
    comment = str(job.get("comment", ""))
    nodes = ",".join(dict.fromkeys(re.findall(r"(?:^|\+)([^/+]+)/", str(job.get("exec_host", "")))))
    if letter in _QUEUED:
        return State(phase="queued", word=_QUEUED[letter], reason=comment)
    if letter in _RUNNING:
        return State(phase="running", word=_RUNNING[letter], nodes=nodes)
    code = job.get("Exit_status")
    return State(
        phase="ended",
        word=_meaning(job, comment),
        reason=comment,
        nodes=nodes,
        exit_code=code,
        forced=code is None or not 0 <= code <= _SIGNALLED,
    )


def _meaning(job: Mapping[str, Any], comment: str) -> str:
    code = job.get("Exit_status")
    if code is None:
        if "Can Never Run" in comment:
            return "PBS will never run it"
        return "it ended without having run: it was deleted, or what it depended on failed"
    if code in _CODES:
        return _CODES[code]
    if code > _SIGNALLED:
        number = code - _SIGNALLED
        deleted = job.get("substate") == 91
        return f"it was deleted (signal {number})" if deleted else f"signal {number} ended it"
    return "PBS calls it finished, but it wrote no whole record" if code == 0 else "it failed"


def explain(state: State) -> str:
    """Return what became of an ended job, in one clause."""
    if state.phase == "unknown":
        return "PBS no longer knows the job: it ended long ago, or it was submitted to another server"
    text = state.word + (f" on {state.nodes}" if state.nodes else "")
    return f"{text}: {state.reason}" if state.reason else text


def read_nodes(answer: str) -> tuple[Partition | None, dict[str, str]]:
    """Return what a job may get at most and which nodes are not well, from ``pbsnodes -a -F json``."""
    nodes = _table(answer, "nodes")
    ill = {
        name: f"node {name} is {node['state']}"
        for name, node in nodes.items()
        if set(str(node.get("state", "")).split(",")) & {"down", "offline", "unknown", "state-unknown", "stale"}
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
        ),
        ill,
    )


def _table(answer: str, name: str) -> dict[str, dict[str, Any]]:
    if not answer.strip():
        return {}
    try:
        # strict=False: PBS copies control characters out of job environments as they are.
        found: dict[str, dict[str, Any]] = json.loads(answer, strict=False).get(name, {})
    except json.JSONDecodeError as error:
        raise UserError(f"PBS answered with damaged JSON ({error}): try again") from error
    return found


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
        return launch_command.mpirun(layout, self._site, agent=f"$jobs/{REMOTE}" if layout.nodes > 1 else None)

    def environment(self, layout: Layout) -> Mapping[str, str | None]:
        """Return what the ranks need exported."""
        return launch_command.rank_environment(self._site, self.name)

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
            found |= read_names(answer.stdout)
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
            states |= read_jobs(answer.stdout)
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
        return explain(state)

    def _nodes(self) -> tuple[Partition | None, dict[str, str]]:
        return read_nodes(self.commands.ask(("pbsnodes", "-a", "-F", "json")).stdout)

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
