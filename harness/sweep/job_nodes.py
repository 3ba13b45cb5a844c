"""The job that this process runs in, and its nodes: that of ``salloc``, ``qsub -I`` or a batch script."""

import itertools
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.sweep.scheduler_answers import in_a_rank

_MOST_NODES = 100_000  # in one range of a list
_COUNT = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The share of a cluster that a `job` of a `scheduler` has.

    `cores` are those of one task's node by the scheduler's own word, None if unsaid.
    """

    scheduler: str
    job: str
    nodes: tuple[str, ...]
    cores: int | None


def current_allocation(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """Return the allocation that `environ` belongs to, None outside of one."""
    if environ.get("SLURM_JOB_ID") and environ.get("SLURM_JOB_NODELIST"):
        nodes = tuple(expand(environ["SLURM_JOB_NODELIST"]))
        cores = _number(environ.get("SLURM_CPUS_ON_NODE"))
        if cores is None:  # salloc says it of all nodes: 72(x2),36
            counts = re.findall(r"(?:^|,)([0-9]{1,9})", environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
            cores = min(map(int, counts), default=None)
        return Allocation(scheduler="Slurm", job=environ["SLURM_JOB_ID"], nodes=nodes, cores=cores)
    if environ.get("PBS_JOBID"):
        nodes = _lines(environ.get("PBS_NODEFILE"))
        return Allocation(scheduler="PBS", job=environ["PBS_JOBID"], nodes=nodes, cores=_number(environ.get("NCPUS")))
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) else None


def _lines(path: str | None) -> tuple[str, ...]:
    """Return the nodes of a file that has a line for each rank; this host where it is not readable."""
    try:
        lines = Path(path or "").read_text().split()
    except OSError:
        lines = []
    return tuple(dict.fromkeys(lines)) or (socket.gethostname(),)


def allocation_of_nodes() -> Allocation | None:
    """Return the allocation of several nodes on which this process may start ranks, None where there is none."""
    allocation = current_allocation()
    if allocation is None or len(allocation.nodes) < 2 or in_a_rank():
        return None
    return allocation


def expand(nodes: str) -> Iterable[str]:
    """Yield the names in a node list such as ``n[1-2,7],m3`` or ``r[1-2]n[1-2]-ib``; ranges keep leading zeros."""
    for entry in re.split(r",(?![^\[]*\])", nodes):
        parts = re.split(r"\[([^\]]*)\]", entry)  # every second one was in brackets
        choices = [tuple(_numbers(part)) if index % 2 else (part,) for index, part in enumerate(parts)]
        yield from map("".join, itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers in ``1-2,07``, with their leading zeros; what is no such range as it stands."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not (_COUNT.fullmatch(first) and _COUNT.fullmatch(last)) or int(last) - int(first) > _MOST_NODES:
            yield part
            continue
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
