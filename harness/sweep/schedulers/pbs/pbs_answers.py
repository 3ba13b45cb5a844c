"""What PBS's commands answer, as states, limits and nodes. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.base.errors import UserError
from harness.schema.sweep import JobUsage
from harness.sweep.job_options import clock_seconds, size_bytes
from harness.sweep.scheduler import State
from harness.sweep.site import Partition

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
_ENDED = ("F", "X")
_JOULES = 3.6e6  # of a kilowatt-hour
_DELETED = 91  # substate
_SIGNALLED = 256  # Exit_status of a job that a signal ended is 256 and its number


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


def explain(state: State) -> str:
    """Return what became of an ended job, in one clause."""
    if state.phase == "unknown":
        return "PBS no longer knows the job: it ended long ago, or it was submitted to another server"
    text = state.word + (f" on {state.nodes}" if state.nodes else "")
    return f"{text}: {state.reason}" if state.reason else text


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
        for host in _names_of(name, node)
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


def _names_of(name: str, node: Mapping[str, Any]) -> set[str]:
    """Return what jobs may call a node: its vnode's, its daemon's or its host's name, short or long."""
    long = {name, str(node.get("Mom", name)), str(node.get("resources_available", {}).get("host", name))}
    return long | {one.partition(".")[0] for one in long}


def read_table(answer: str, name: str) -> dict[str, dict[str, Any]]:
    if not answer.strip():
        return {}
    try:
        # strict=False: PBS copies control characters out of job environments as they are.
        found: dict[str, dict[str, Any]] = json.loads(answer, strict=False).get(name, {})
    except json.JSONDecodeError as error:
        raise UserError(f"PBS answered with damaged JSON ({error}): try again") from error
    return found


def with_nodes(state: State, ill: Mapping[str, str]) -> State:
    """Return `state` with what is wrong with its nodes: of a job that failed that is the cause, whatever it wrote."""
    lost = [ill[node] for node in state.nodes.split(",") if node in ill]
    if not lost or state.phase not in ("running", "ended") or state.exit_code == 0:
        return state
    return replace(state, reason="; ".join(lost), forced=state.forced or state.phase == "ended")
