"""The batch job that this process runs in, where a user has opened one for work by hand: ``salloc``, ``qsub -I``."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.base.files import resource
from harness.schema.layout import Layout
from harness.sweep.job_script import TEMPLATES
from harness.sweep.scheduler_answers import in_a_rank
from harness.sweep.schedulers import open_scheduler, scheduler_class
from harness.sweep.schedulers.pbs import REMOTE
from harness.sweep.schedulers.slurm import expand
from harness.sweep.site import find_site


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


def cores_here(allocation: Allocation | None) -> int:
    """Return how many cores of this host are for ranks: those that the process may use, at most its job's share."""
    if allocation is None or allocation.cores is None:
        return usable_cores()
    return min(usable_cores(), allocation.cores)


def spread_ranks(allocation: Allocation, ranks: int | None, threads: int, *, gpus_per_rank: int = 0) -> Layout:
    """Return the layout of `ranks` ranks over the nodes of `allocation`: as many on each, the last one may have fewer.

    With None every core of a rank's `threads` has one.

    Raises:
        UserError: they do not fit on the nodes, or how many fit is not known.
    """
    nodes = len(allocation.nodes)
    job = f"this {allocation.scheduler} job has {nodes} nodes"
    if ranks is None and (allocation.cores is None or gpus_per_rank):
        raise UserError(f"--ranks is needed: {job}, and how many ranks each of them has room for is not known")
    most = allocation.cores // threads if allocation.cores else None
    wanted = ranks if ranks is not None else nodes * max(1, most or 1)
    per_node = -(-wanted // nodes)
    if most is not None and per_node > most:
        raise UserError(
            f"--ranks={wanted} with --threads={threads} needs {per_node * threads} cores a node, and {job} of "
            f"{allocation.cores} cores: use at most {nodes * most} ranks"
        )
    used = -(-wanted // per_node)
    rest = wanted - (used - 1) * per_node
    return Layout(
        nodes=used,
        ranks_per_node=per_node,
        threads=threads,
        gpus_per_rank=gpus_per_rank,
        last_node=rest if rest < per_node else None,
    )


def start_on_nodes(allocation: Allocation, layout: Layout) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    """Return the words that start ranks of `layout` on the first nodes of `allocation`, and what they need exported.

    Raises:
        UserError: the site file of this host is wrong, or asks for a launcher that is not there.
    """
    name = allocation.scheduler.lower()
    site = find_site(None)
    request = scheduler_class(name).suitable(site.request)
    scheduler = open_scheduler(name, site=site, request=request)
    launcher = scheduler.launcher(layout)
    agent = f"sh {resource(TEMPLATES) / REMOTE}"  # which a job of ours has beside its script
    words = tuple(agent if word == f"$jobs/{REMOTE}" else word for word in launcher.words)
    if launcher.node_option:
        hosts = [f"{node}{launcher.node_suffix}" for node in allocation.nodes[: layout.nodes]]
        words += (launcher.node_option, ",".join(hosts))
    return words, scheduler.environment(layout)
