"""What Slurm's squeue, sacct, sinfo and scontrol print, as states, usage, partitions and nodes."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.schema.job_usage import JobUsage
from harness.sweep.job_state import State
from harness.sweep.site import Partition, clock_seconds, size_bytes, walltime, walltime_seconds
from harness.sweep.submission_errors import UnreadableAnswer

# How the reasons of jobs begin that wait for a node which is down or drained.
NO_NODES = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
# A suffix instead of a width: nothing is cut off (squeue(1), --Format).
QUEUE_FIELDS = "JobArrayID:|,State:|,Reason:|,NodeList:|,exit_code:|,Name:"
ACCOUNT_FIELDS = "JobID,State,ExitCode,NodeList"
PARTITION_FIELDS = "%P|%D|%X|%Y|%m|%G|%l"
NODE_FIELDS = "%N|%T|%E"
USAGE_FIELDS = "JobID,State,ElapsedRaw,NNodes,TotalCPU,MaxRSS,ConsumedEnergyRaw"

_NO_ENERGY = 2**63
_QUEUED = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
_OWN_END = {"COMPLETED", "FAILED"}


def read_queue(answer: str) -> dict[str, tuple[State, str]]:
    """Return state and name by identifier from ``squeue -h -r -O QUEUE_FIELDS``; `exit_code` there is a wait status."""
    jobs = {}
    for identifier, word, reason, nodes, status, name in _cells("squeue", answer, 6):
        if not status.isdigit():
            raise UnreadableAnswer(f"squeue gives job {identifier} the exit code '{status}', which is no number")
        code = (int(status) >> 8) or (128 + (int(status) & 127) if int(status) & 127 else 0)
        jobs[identifier] = (_state(word, reason, nodes, code), name)
    return jobs


def _cells(program: str, answer: str, count: int) -> Iterator[list[str]]:
    """Yield the cells of each line; what has no separator is a site's banner and no line of the table.

    Raises:
        UnreadableAnswer: a line has fewer cells: the answer was cut off, or is of another form.
    """
    for line in answer.splitlines():
        if "|" not in line:
            continue
        cells = [cell.strip() for cell in line.split("|", count - 1)]
        if len(cells) < count:
            raise UnreadableAnswer(f"{program} answers '{line}', which is not a line of {count} cells")
        yield cells


def read_sacct(answer: str) -> dict[str, State]:
    """Return states by identifier from ``sacct -X -n -P -o ACCOUNT_FIELDS``."""
    states = {}
    for identifier, words, codes, nodes in _cells("sacct", answer, 4):
        word, _, by = words.partition(" ")
        status, _, signal = codes.partition(":")
        states[identifier] = _state(word, by, nodes, int(status or 0) or (128 + int(signal) if int(signal or 0) else 0))
    return states


def read_slurm_usage(answer: str) -> dict[str, JobUsage]:
    """Return what ended jobs used from ``sacct -n -P --noconvert -o USAGE_FIELDS``: a line a job, and one a step of it.

    Zero is what a cluster says that does not measure it, and 2^64 less two of energy that nobody knows.
    """
    usages: dict[str, JobUsage] = {}
    for line in answer.splitlines():
        identifier, words, elapsed, nodes, used, memory, energy = line.split("|")
        job, _, step = identifier.partition(".")
        if not step and _state(words.partition(" ")[0], "", "", 0).phase == "ended":
            joules = int(energy or 0)
            usages[job] = JobUsage(
                elapsed_s=float(elapsed or 0),
                nodes=int(nodes or 0),
                cpu_s=clock_seconds(used or "0") or None,
                memory_of="a process",
                energy_j=float(joules) if 0 < joules < _NO_ENERGY else None,
            )
        elif job in usages:
            most = max(size_bytes(memory), usages[job].memory_bytes or 0)
            usages[job] = replace(usages[job], memory_bytes=most or None)
    return usages


def _state(word: str, reason: str, nodes: str, code: int) -> State:
    reason = "" if reason in ("None", "NonZeroExitCode") else reason
    if word in _QUEUED:
        return State(phase="queued", word=word, reason=reason)
    if word in _RUNNING:
        return State(phase="running", word=word, reason=reason, nodes=nodes)
    return State(
        phase="ended",
        word=word,
        reason=reason,
        nodes=nodes,
        exit_code=code,
        forced=word not in _OWN_END,
        timed_out=word == "TIMEOUT",
    )


def read_partitions(answer: str) -> tuple[Partition, ...]:
    """Return the partitions from ``sinfo -h -o PARTITION_FIELDS``, one line for each kind of node, merged by name."""
    partitions: dict[str, Partition] = {}
    for name, nodes, sockets, cores, memory, gres, limit in _cells("sinfo", answer, 7):
        old = partitions.get(name, Partition(name=name, nodes=0, cores_per_node=0, gpus_per_node=0, memory_mb=0))
        gpus = gpus_of(gres)
        partitions[name] = Partition(
            name=name.rstrip("*"),
            default=name.endswith("*"),
            nodes=(old.nodes or 0) + int(nodes),
            cores_per_node=max(old.cores_per_node or 0, _first(sockets) * _first(cores)),
            gpus_per_node=None if gpus is None or old.gpus_per_node is None else max(old.gpus_per_node, gpus),
            memory_mb=max(old.memory_mb or 0, _first(memory)),
            walltime=walltime(clock_seconds(limit)) if limit[:1].isdigit() else None,  # "infinite"
        )
    return tuple(partitions.values())


# ``gpu[:type][:count][(...)]``, by gres.conf(5). In brackets are sockets or devices: (S:0-1), (IDX:0-3,5).
_GRES = re.compile(r"(?P<name>[^:,()\s]+)(?::(?P<rest>[^,()\s]*))?(?P<where>(?:\([^()]*\))*)")
_NO_GRES = ("", "(null)", "N/A", "none")
_UNIT = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


def gpus_of(gres: str) -> int | None:
    """Return how many GPUs a node has by its generic resources, all types together; None where that is not readable.

    A type may have digits, hyphens and dots, such as those of MIG parts; without a count it is one.
    """
    if gres.strip() in _NO_GRES:
        return 0
    total = 0
    for entry in re.split(r",(?![^()]*\))", gres.strip()):
        if entry.strip() in _NO_GRES:
            continue
        match = _GRES.fullmatch(entry.strip())
        if match is None:
            return None
        if match["name"] == "gpu":
            total += _count(match["rest"])
    return total


def _count(rest: str | None) -> int:
    """Return the number at the end of ``type:count``, or of ``count`` alone; one where there is none."""
    number = re.fullmatch(r"(\d+)([KMGTP]?)", (rest or "").rpartition(":")[2])
    return int(number[1]) * _UNIT[number[2]] if number else 1


def read_node_gpus(answer: str) -> dict[str, int] | None:
    """Return the most GPUs that a node of each partition has from ``scontrol show nodes --json``.

    None where that is no JSON (Slurm before 21.08, or built without it), or says nothing of GPUs in a readable form.
    """
    try:
        nodes = json.loads(answer)["nodes"]
    except (ValueError, KeyError, TypeError):
        return None
    most: dict[str, int] = {}
    for node in nodes:
        configured = dict(part.partition("=")[::2] for part in str(node.get("tres", "")).split(","))
        gpus = _count(configured["gres/gpu"]) if "gres/gpu" in configured else gpus_of(str(node.get("gres", "")))
        if gpus is None:
            return None
        for name in node.get("partitions", ()):
            most[name] = max(most.get(name, 0), gpus)
    return most


def read_slurm_nodes(answer: str) -> Mapping[str, str]:
    """Return what is wrong with nodes from ``sinfo -h -N -o NODE_FIELDS``: name to state and reason."""
    reasons = {}
    for line in answer.splitlines():
        name, state, reason = line.split("|", 2)
        if reason not in ("none", ""):
            reasons[name] = f"node {name} is {state}: {reason}"
    return reasons


def expand(nodes: str) -> Iterable[str]:
    """Yield the names in a node list such as ``n[1-2,7],m3`` or ``r[1-2]n[1-2]-ib``; ranges keep leading zeros."""
    for entry in re.split(r",(?![^\[]*\])", nodes):
        parts = re.split(r"\[([^\]]*)\]", entry)  # every second one was in brackets
        choices = [tuple(_numbers(part)) if index % 2 else (part,) for index, part in enumerate(parts)]
        yield from map("".join, itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers in ``1-2,07``, with their leading zeros."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"


def _first(number: str) -> int:
    """Return the least of a count such as ``4+``, which sinfo writes where nodes differ."""
    return int(re.match(r"\d*", number)[0] or 0)  # type: ignore[index]


def widest(partitions: Sequence[Partition]) -> Partition:
    """Return the most that one of `partitions` allows, of each thing; None where one of them has no limit."""

    def most(field: str) -> int | None:
        values = [getattr(partition, field) for partition in partitions]
        return None if None in values else max(values)

    times = [partition.walltime for partition in partitions if partition.walltime]
    longest = max(times, key=walltime_seconds) if len(times) == len(partitions) else None
    return Partition(
        name=",".join(partition.name for partition in partitions),
        walltime=longest,
        nodes=most("nodes"),
        cores_per_node=most("cores_per_node"),
        gpus_per_node=most("gpus_per_node"),
        memory_mb=most("memory_mb"),
    )
