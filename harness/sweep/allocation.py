"""The batch job that this process runs in, where a user has opened one for work by hand: ``salloc``, ``qsub -I``."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.schema.layout import Layout
from harness.sweep.schedulers.slurm import expand


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


def cores_here(allocation: Allocation | None) -> int:
    """Return how many cores of this host are for ranks: those that the process may use, at most its job's share."""
    if allocation is None or allocation.cores is None:
        return usable_cores()
    return min(usable_cores(), allocation.cores)


def other_nodes(allocation: Allocation | None, layout: Layout, script: Path) -> str | None:
    """Return that ranks of `script` start on this host alone, where the job has several, and how they start on all.

    Raises:
        UserError: the ranks do not fit on this host, and would on all of the job's.
    """
    if allocation is None or len(allocation.nodes) < 2:
        return None
    nodes = ", ".join(allocation.nodes[:4]) + (", ..." if len(allocation.nodes) > 4 else "")
    job = f"this {allocation.scheduler} job has {len(allocation.nodes)} nodes ({nodes})"
    everywhere = f"`mpirun -n {layout.ranks} python -m harness.transparent {script}`"
    if layout.cores > usable_cores():
        raise UserError(
            f"--ranks={layout.ranks} needs {layout.cores} cores, {socket.gethostname()} has {usable_cores()}, "
            f"and `harness run` starts ranks on this host alone: {job}, on all of them it is {everywhere}"
        )
    return f"{job}; ranks start on this host alone, on all of them by {everywhere}"
