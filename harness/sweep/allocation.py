"""Ranks of `harness run` on the nodes of the job that this process runs in."""

from collections.abc import Mapping

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.base.files import resource
from harness.base.setting_names import setting
from harness.schema.layout import Layout
from harness.sweep.job_nodes import Allocation
from harness.sweep.job_script import TEMPLATES
from harness.sweep.schedulers import open_scheduler, scheduler_class
from harness.sweep.schedulers.pbs import REMOTE
from harness.sweep.site import find_site


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
        raise UserError(
            f"{setting('ranks')} is needed: {job}, and how many ranks each of them has room for is not known"
        )
    most = allocation.cores // threads if allocation.cores else None
    wanted = ranks if ranks is not None else nodes * max(1, most or 1)
    per_node = -(-wanted // nodes)
    if most is not None and per_node > most:
        raise UserError(
            f"{setting('ranks', wanted)} with {setting('threads', threads)} needs {per_node * threads} cores a node, "
            f"and {job} of {allocation.cores} cores: use at most {nodes * most} ranks"
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
