"""The batch job that this process runs in, where a user has opened one for work by hand: ``salloc``, ``qsub -I``."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.sweep.slurm_answers import expand


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """A job's share of a cluster. `cores` are those of one task's node by the scheduler's own word, None if unsaid."""

    scheduler: str
    nodes: tuple[str, ...]
    cores: int | None


def current_allocation(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """Return the allocation that `environ` belongs to, None outside of one."""
    if environ.get("SLURM_JOB_ID") and environ.get("SLURM_JOB_NODELIST"):
        nodes = tuple(expand(environ["SLURM_JOB_NODELIST"]))
        return Allocation(scheduler="Slurm", nodes=nodes, cores=_number(environ.get("SLURM_CPUS_ON_NODE")))
    if environ.get("PBS_JOBID"):
        return Allocation(
            scheduler="PBS", nodes=_lines(environ.get("PBS_NODEFILE")), cores=_number(environ.get("NCPUS"))
        )
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
