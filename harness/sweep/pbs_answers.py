"""What PBS's qstat and pbsnodes print, as JSON or text: jobs as states and usage, and nodes."""

import json
import re
from collections.abc import Mapping
from typing import Any

from harness.schema.job_usage import JobUsage
from harness.sweep.job_state import State
from harness.sweep.site import Partition, clock_seconds, size_bytes
from harness.sweep.submission_errors import UnreadableAnswer

_QUEUED = {"Q": "queued", "H": "held", "W": "waiting for its start time", "T": "on its way", "S": "suspended"}
_RUNNING = {"R": "running", "E": "ending", "B": "begun", "U": "suspended: its workstation is busy"}
_AT_TIME_LIMIT = -29
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
    _AT_TIME_LIMIT: "PBS ended it at its time limit",
}
_ENDED = ("F", "X")
_ILL = {"down", "offline", "unknown", "state-unknown", "stale"}  # states of nodes
_JOULES = 3.6e6  # of a kilowatt-hour
_DELETED = 91  # substate
_NEVER_RUNS = re.compile("Can Never Run")  # PBS's own comment of such a job
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
        timed_out=code == _AT_TIME_LIMIT,
    )


def _meaning(job: Mapping[str, Any], comment: str) -> str:
    code = job.get("Exit_status")
    if code is None:
        if _NEVER_RUNS.search(comment):
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


def read_pbs_usage(job: Mapping[str, Any]) -> JobUsage | None:
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


def read_pbs_nodes(answer: str) -> tuple[Partition | None, dict[str, str]]:
    """Return what a job may get at most and which nodes are not well, from ``pbsnodes -a -F json``."""
    nodes = read_table(answer, "nodes")
    ill: dict[str, str] = {}
    for name, node in nodes.items():
        if _ILL & set(str(node.get("state", "")).split(",")):
            # What jobs may call it: its vnode's, its daemon's or its host's name, short or long.
            host = node.get("resources_available", {}).get("host", name)
            for long_name in map(str, (name, node.get("Mom", name), host)):
                ill[long_name] = f"node {name} is {node['state']}"
                ill[long_name.partition(".")[0]] = f"node {name} is {node['state']}"
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
    """Return the attributes of jobs (`name` is ``Jobs``) or ``nodes`` by identifier from an answer in JSON.

    Raises:
        UnreadableAnswer: it is no JSON, or not of that form.
    """
    if not answer.strip():
        return {}
    try:
        # strict=False: PBS copies control characters out of job environments as they are.
        table = json.loads(answer, strict=False).get(name, {})
    except (ValueError, AttributeError) as error:
        raise UnreadableAnswer(f"PBS answered with damaged JSON ({error})") from error
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise UnreadableAnswer(f"PBS answered with JSON whose '{name}' is not a table")
    return table


# Outside of texts: what stands between separators. OpenPBS leaves the quotes out where a text looks like a number.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"\[\]{},:]+', re.DOTALL)


def quote_bare_texts(answer: str) -> str:
    """Return an answer in JSON with quotes around what OpenPBS writes bare and JSON has no number for.

    Its qstat asks strtod whether a text is a number (openpbs issue 1255): ``007123``, ``.5``, ``1e5x`` are texts of
    users, environments and job names. Everything else stays as it is.
    """

    def quoted(match: re.Match[str]) -> str:
        token = match[0]
        if token.startswith('"'):
            return token
        try:
            json.loads(token, parse_constant=_refuse)
        except ValueError:
            return json.dumps(token)
        return token

    return _TOKEN.sub(quoted, answer)


def _refuse(token: str) -> None:
    """Raise a ValueError: NaN and Infinity are texts here."""
    raise ValueError(token)


_HEADING = re.compile(r"Job Id:\s*(?P<job>\S+)\s*")
_ATTRIBUTE = re.compile(r" {4}(?P<name>[A-Za-z_][\w.]*) = (?P<text>.*)")
_NUMBERS = ("substate", "Exit_status")
_TABLES = ("resources_used", "Resource_List")


def read_text_table(answer: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of jobs by identifier from the text form of ``qstat -f``, as `read_table` does.

    Raises:
        UnreadableAnswer: it has lines, and no job; or a number of a job is none.
    """
    table: dict[str, dict[str, Any]] = {}
    job: dict[str, Any] = {}
    last = ""
    for line in answer.splitlines():
        if heading := _HEADING.fullmatch(line):
            job = table.setdefault(heading["job"], {})
            last = ""
        elif attribute := _ATTRIBUTE.fullmatch(line):
            last = attribute["name"]
            job[last] = attribute["text"]
        elif line.startswith("\t") and last:
            job[last] += line[1:]
    if answer.strip() and not table:
        raise UnreadableAnswer(f"qstat -f names no job: '{answer.strip().splitlines()[0]}'")
    return {name: _typed(name, attributes) for name, attributes in table.items()}


def _typed(job: str, attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of `job` with the numbers and tables that they have in JSON."""
    typed: dict[str, Any] = {}
    for name, text in attributes.items():
        table, dot, resource = name.partition(".")
        if dot and table in _TABLES:
            typed.setdefault(table, {})[resource] = text
        elif name in _NUMBERS:
            if not re.fullmatch(r"-?\d+", text.strip()):
                raise UnreadableAnswer(f"qstat -f gives job {job} {name} = '{text}', which is no number")
            typed[name] = int(text)
        else:
            typed[name] = text
    return typed
