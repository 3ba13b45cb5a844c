"""What Slurm's commands answer, as states, partitions and nodes. Pure."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from harness.schema.sweep import JobUsage
from harness.sweep.job_options import clock_seconds, seconds, size_bytes, walltime
from harness.sweep.scheduler import State
from harness.sweep.site import Partition

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
_MEANING = {
    "TIMEOUT": "Slurm ended it at its time limit",
    "NODE_FAIL": "a node of its allocation was lost",
    "OUT_OF_MEMORY": "it ran out of memory",
    "CANCELLED": "it was cancelled",
    "PREEMPTED": "it was preempted by another job",
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "its deadline passed",
    "FAILED": "it failed",
    "COMPLETED": "Slurm calls it completed, but it wrote no whole record",
}


def read_queue(answer: str) -> dict[str, tuple[State, str]]:
    """Return state and name by identifier from ``squeue -h -r -O QUEUE_FIELDS``; `exit_code` there is a wait status."""
    found = {}
    for line in answer.splitlines():
        identifier, word, reason, nodes, status, name = line.split("|", 5)
        code = (int(status) >> 8) or (128 + (int(status) & 127) if int(status) & 127 else 0)
        found[identifier.strip()] = (_state(word.strip(), reason.strip(), nodes.strip(), code), name.strip())
    return found


def read_sacct(answer: str) -> dict[str, State]:
    """Return states by identifier from ``sacct -X -n -P -o ACCOUNT_FIELDS``."""
    found = {}
    for line in answer.splitlines():
        identifier, words, codes, nodes = line.split("|", 3)
        word, _, by = words.partition(" ")
        status, _, signal = codes.partition(":")
        found[identifier] = _state(word, by, nodes, int(status or 0) or (128 + int(signal) if int(signal or 0) else 0))
    return found


def read_usage(answer: str) -> dict[str, JobUsage]:
    """Return what ended jobs used from ``sacct -n -P --noconvert -o USAGE_FIELDS``: a line a job, and one a step of it.

    Zero is what a cluster says that does not measure it, and 2^64 less two of energy that nobody knows.
    """
    found: dict[str, JobUsage] = {}
    for line in answer.splitlines():
        identifier, words, elapsed, nodes, used, memory, energy = line.split("|")
        job, _, step = identifier.partition(".")
        if not step and _state(words.partition(" ")[0], "", "", 0).phase == "ended":
            joules = int(energy or 0)
            found[job] = JobUsage(
                elapsed_s=float(elapsed or 0), nodes=int(nodes or 0), cpu_s=clock_seconds(used or "0") or None,
                memory_of="a process", energy_j=float(joules) if 0 < joules < _NO_ENERGY else None,
            )  # fmt: skip
        elif job in found:
            most = max(size_bytes(memory), found[job].memory_bytes or 0)
            found[job] = replace(found[job], memory_bytes=most or None)
    return found


def _state(word: str, reason: str, nodes: str, code: int) -> State:
    reason = "" if reason in ("None", "NonZeroExitCode") else reason
    if word in _QUEUED:
        return State(phase="queued", word=word, reason=reason)
    if word in _RUNNING:
        return State(phase="running", word=word, reason=reason, nodes=nodes)
    return State(phase="ended", word=word, reason=reason, nodes=nodes, exit_code=code, forced=word not in _OWN_END)


def explain(state: State) -> str:
    """Return what became of an ended job, in one clause."""
    if state.phase == "unknown":
        return "Slurm no longer knows the job: it ended long ago, or it was submitted to another cluster"
    text = f"{_MEANING.get(state.word, 'it ended')} ({state.word})"
    if state.nodes:
        text += f" on {state.nodes}"
    return f"{text}: {state.reason}" if state.reason else text


def read_partitions(answer: str) -> tuple[Partition, ...]:
    """Return the partitions from ``sinfo -h -o PARTITION_FIELDS``, one line for each kind of node, merged by name."""
    found: dict[str, Partition] = {}
    for line in answer.splitlines():
        name, nodes, sockets, cores, memory, gres, limit = line.split("|", 6)
        old = found.get(name, Partition(name=name, nodes=0, cores_per_node=0, gpus_per_node=0, memory_mb=0))
        found[name] = Partition(
            name=name.rstrip("*"),
            default=name.endswith("*"),
            nodes=(old.nodes or 0) + int(nodes),
            cores_per_node=max(old.cores_per_node or 0, _first(sockets) * _first(cores)),
            gpus_per_node=max(old.gpus_per_node or 0, _gpus(gres)),
            memory_mb=max(old.memory_mb or 0, _first(memory)),
            walltime=_limit(limit),
        )
    return tuple(found.values())


def read_nodes(answer: str) -> Mapping[str, str]:
    """Return what is wrong with nodes from ``sinfo -h -N -o NODE_FIELDS``: name to state and reason."""
    found = {}
    for line in answer.splitlines():
        name, state, reason = line.split("|", 2)
        if reason not in ("none", ""):
            found[name] = f"node {name} is {state}: {reason}"
    return found


def expand(nodes: str) -> Iterable[str]:
    """Yield the names in a node list such as ``n[1-2,7],m3``; ranges keep their leading zeros."""
    for prefix, inner in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?,?", nodes):
        if not inner:
            yield prefix
        for part in inner.split(",") if inner else ():
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{prefix}{number:0{len(first)}d}"


def _first(number: str) -> int:
    """Return the least of a count such as ``4+``, which sinfo writes where nodes differ."""
    return int(re.match(r"\d*", number)[0] or 0)  # type: ignore[index]


def _gpus(gres: str) -> int:
    return sum(int(count) for count in re.findall(r"gpu(?::[A-Za-z]\w*)?:(\d+)", gres))


def _limit(text: str) -> str | None:
    """Return Slurm's ``D-HH:MM:SS``, ``MM:SS`` as hours, None without a limit."""
    if not text[:1].isdigit():
        return None
    days, _, clock = text.rpartition("-")
    parts = [0, 0, *map(int, clock.split(":"))]
    return walltime(int(days or 0) * 86400 + parts[-3] * 3600 + parts[-2] * 60 + parts[-1])


def widest(partitions: Sequence[Partition]) -> Partition:
    """Return the most that one of `partitions` allows, of each thing; None where one of them has no limit."""

    def most(field: str) -> int | None:
        values = [getattr(partition, field) for partition in partitions]
        return None if None in values else max(values)

    times = [partition.walltime for partition in partitions if partition.walltime]
    longest = max(times, key=seconds) if len(times) == len(partitions) else None
    return Partition(
        name=",".join(partition.name for partition in partitions),
        walltime=longest,
        nodes=most("nodes"),
        cores_per_node=most("cores_per_node"),
        gpus_per_node=most("gpus_per_node"),
        memory_mb=most("memory_mb"),
    )


def listed_as(job: str, queue: Container[str]) -> list[str]:
    """Return the name under which squeue lists `job`, none if it does not.

    Tasks of an array that were cancelled together before they started are one entry, called by the array's number.
    """
    return [name for name in (job, job.partition("_")[0]) if name in queue][:1]
