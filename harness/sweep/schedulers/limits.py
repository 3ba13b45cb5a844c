"""Why a layout can never run in a partition: told before anything is submitted."""

from harness.spec.layout import Layout
from harness.sweep.request import Request, seconds
from harness.sweep.site import Partition


def beyond(layout: Layout, request: Request, limit: Partition | None) -> str | None:
    """Return why `layout` exceeds `limit`, in one clause, or None; nothing is known of a `limit` of None."""
    if limit is None:
        return None
    cores, gpus = layout.ranks_per_node * layout.threads, layout.ranks_per_node * layout.gpus_per_rank
    where = f"partition {limit.name}"
    for needed, there, what in (
        (layout.nodes, limit.nodes, "nodes"),
        (cores, limit.cores_per_node, "cores a node"),
        (gpus, limit.gpus_per_node, "GPUs a node"),
        (_megabytes(request.memory), limit.memory_mb, "MB a node"),
    ):
        if there is not None and needed > there:
            return f"needs {needed} {what}, {where} has {there}"
    if limit.walltime is not None and seconds(request.walltime) > seconds(limit.walltime):
        return f"asks for WALLTIME={request.walltime}, {where} allows {limit.walltime}"
    return None


def _megabytes(memory: str) -> int:
    if not memory:
        return 0
    return int(int(memory[:-1]) * {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}[memory[-1]])
