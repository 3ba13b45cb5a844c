"""Which GPU of its node each rank trains on: by its local rank, near its cores."""

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.base.errors import UserError
from harness.comm.gpus import Gpu, hide_others, visible_gpus
from harness.comm.world import World

_NODES = Path("/sys/devices/system/node")


def assign(
    pools: Sequence[tuple[Gpu, ...]], local_rank: int, *, host: str, shared: bool, nodes: Sequence[int | None] = ()
) -> Gpu:
    """Return the GPU of rank `local_rank` of a host; `pools` are what each of the host's ranks may use.

    Where a scheduler gave every rank GPUs of its own, it is the first of them; where all see the same, it goes
    by the local rank, as `choose_near` does. `nodes` are the NUMA nodes of the ranks' cores, None where not known.
    `shared` permits several ranks on one GPU.

    Raises:
        UserError: there are fewer GPUs than ranks and they may not be shared, or none.
    """
    pool = pools[local_rank]
    together = {gpu.uuid for rank_pool in pools for gpu in rank_pool}
    if not pool:
        raise UserError(f"GPUs are asked for, but local rank {local_rank} on {host} sees none: ask for GPUs in the job")
    if len(together) == sum(map(len, pools)):
        return pool[0]
    if len(together) < len(pools) and not shared:
        raise UserError(
            f"{len(pools)} ranks on {host} for {len(together)} GPUs: use at most {len(together)} ranks per node, "
            "or OVERSUBSCRIBE=1 in a sweep to share GPUs for function, never for timing"
        )
    if len(pool) < len(pools):
        return pool[local_rank % len(pool)]
    return choose_near(pool, nodes or [None] * len(pools))[local_rank]


def choose_near(gpus: Sequence[Gpu], nodes: Sequence[int | None]) -> list[Gpu]:
    """Return the GPU of every local rank: one on the NUMA node of its cores, or the first of `gpus` that is left.

    `nodes` has the NUMA node of each rank's cores, None where it is not known; there are at least as many GPUs.
    """
    free = list(gpus)
    chosen: dict[int, Gpu] = {}
    for rank, node in enumerate(nodes):
        near = next((gpu for gpu in free if node is not None and gpu.node == node), None)
        if near is not None:
            chosen[rank] = near
            free.remove(near)
    for rank in range(len(nodes)):
        if rank not in chosen:
            chosen[rank] = free.pop(0)
    return [chosen[rank] for rank in range(len(nodes))]


def node_of_cores(cores: frozenset[int], folder: Path = _NODES) -> int | None:
    """Return the NUMA node that has all `cores`, None where there is no such node or the system does not say."""
    for path in folder.glob("node*/cpulist"):
        if cores <= _listed(path.read_text()):
            return int(path.parent.name.removeprefix("node"))
    return None


def _listed(text: str) -> frozenset[int]:
    """Return the numbers of a kernel's list such as ``0-3,8``."""
    cores = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def own_gpu(world: World, gpus_per_rank: int, *, shared: bool) -> Gpu | None:
    """Return this rank's GPU, None where ranks have none, and hide all others. Call before TensorFlow is imported.

    Raises:
        SharedError: a UserError of `visible_gpus` or `assign`, on every rank.
    """
    gpu = None
    if gpus_per_rank:
        from mpi4py import MPI

        local = world.comm.Split_type(MPI.COMM_TYPE_SHARED)
        pools = local.allgather(world.on_all(visible_gpus))
        nodes = local.allgather(node_of_cores(frozenset(os.sched_getaffinity(0))))
        number = local.Get_rank()
        local.Free()
        gpu = world.on_all(lambda: assign(pools, number, host=platform.node(), shared=shared, nodes=nodes))
        gpu = replace(gpu, seen=tuple(other.uuid for other in pools[number]))
    hide_others(gpu)
    return gpu
