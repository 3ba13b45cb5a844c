"""Where the ranks run, compared with what was asked."""

import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from harness.schema.layout import Layout
from harness.schema.record import RankRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Host, the scheduler's name of it, the cores one rank may run on and the one it ran on when it was asked."""

    host: str
    cores: tuple[int, ...]
    node: str = ""
    core: int = -1


def observe() -> RankPlace:
    """Return the place of this process."""
    host = socket.gethostname()
    return RankPlace(
        host=host,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        node=os.environ.get("SLURMD_NODENAME") or host,
        core=int(psutil.Process().cpu_num()),
    )


def shared_gpus(ranks: Sequence[RankRecord]) -> tuple[str, ...]:
    """Return a sentence for every GPU that several ranks train on: such a launch tests function, never speed."""
    users: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        if rank.device:
            users.setdefault((rank.host, rank.device), []).append(rank.rank)
    faults = []
    for (host, device), numbers in users.items():
        if len(numbers) > 1:
            names = " and ".join(map(str, numbers))
            faults.append(f"ranks {names} share GPU {device} on {host}: a test of function, not of speed")
    return tuple(faults)


def misplacements(layout: Layout, places: Sequence[RankPlace], *, by_nodes: bool = False) -> tuple[str, ...]:
    """Return one sentence for everything about `places` (one per rank) that makes times unusable.

    With `by_nodes` the ranks must be on as many nodes as the layout has, and as many on each.
    """
    faults = list[str]()
    ranks = [layout.ranks_per_node] * (layout.nodes - 1) + [layout.last_node or layout.ranks_per_node]
    node_ranks = Counter(place.node for place in places)
    if by_nodes and sorted(node_ranks.values()) != sorted(ranks):
        seen = ", ".join(f"{count} on {node}" for node, count in sorted(node_ranks.items()))
        faults.append(f"{layout.nodes} nodes of {layout.ranks_per_node} ranks were asked for, but there are {seen}")
    for host in sorted({place.host for place in places}):
        here = [(rank, place) for rank, place in enumerate(places) if place.host == host]
        available = len({core for _, place in here for core in place.cores})
        needed = len(here) * layout.threads
        if available < needed:
            faults.append(f"{len(here)} ranks x {layout.threads} threads share {available} cores on {host}")
            continue
        taken = Counter(core for _, place in here for core in place.cores if len(place.cores) <= layout.threads)
        shared = sorted(core for core, ranks in taken.items() if ranks > 1)
        if shared:
            faults.append(f"core {shared[0]} on {host} is bound to {taken[shared[0]]} ranks")
        short = [rank for rank, place in here if len(place.cores) < layout.threads]
        if short:
            faults.append(
                f"rank {short[0]} may use {len(here[0][1].cores)} cores for {layout.threads} threads on {host}"
            )
    return tuple(faults)


def describe_ranks(ranks: Sequence[RankRecord]) -> tuple[str, ...]:
    """Return one line for each rank of a record: where it was and which cores it might use."""
    return tuple(
        f"rank {rank:3}  {place.node or place.host}  core {place.core} of {_ranges(place.cores)}"
        for rank, place in enumerate(ranks)
    )


def _ranges(cores: Sequence[int]) -> str:
    """Return core numbers as ``0-3,8``."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
