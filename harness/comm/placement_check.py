"""Where the ranks run and what else runs there, compared with what was asked."""

import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from harness.base.cores import cpu_quota, physical_cores
from harness.comm.gpus import Gpu, processes_beside
from harness.schema.layout import Layout
from harness.schema.record import RankRecord

MOST_THROTTLED = 0.02  # of the timed time: a quota that holds ranks back for more is part of what was timed


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Host, the scheduler's name of it, the cores one rank may run on and the one it ran on when it was asked.

    `physical` names the physical core of each of `cores`, as `harness.base.cores.physical_cores`: empty where the
    system does not say, and then each of `cores` counts as one. `quota` are the CPUs that the rank's cgroup grants,
    None without a limit. `gpu_processes` compute on its GPU (`harness.comm.gpus.processes_beside`).
    """

    host: str
    cores: tuple[int, ...]
    node: str = ""
    core: int = -1
    physical: tuple[int, ...] = ()
    quota: float | None = None
    gpu_processes: tuple[int, ...] = ()

    @property
    def own_cores(self) -> frozenset[int]:
        """The physical cores that the rank may run on."""
        return frozenset(self.physical or self.cores)


def observe(gpu: Gpu | None = None) -> RankPlace:
    """Return the place of this process, which trains on `gpu`, None for the processor."""
    host = socket.gethostname()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return RankPlace(
        host=host,
        cores=cores,
        node=os.environ.get("SLURMD_NODENAME") or host,
        core=int(psutil.Process().cpu_num()),
        physical=physical_cores(cores),
        quota=cpu_quota(),
        gpu_processes=processes_beside(gpu),
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


def occupied_gpus(ranks: Sequence[RankRecord]) -> tuple[str, ...]:
    """Return a sentence for every rank on whose GPU a process computed that is no rank of the launch.

    Nothing is said of a rank that the driver does not list either: its numbers are of another PID namespace.
    """
    faults = []
    for rank in ranks:
        rank_pids = {other.pid for other in ranks if other.host == rank.host}
        others = sorted(set(rank.gpu_processes) - rank_pids)
        if others and rank.pid in rank.gpu_processes:
            named = ", ".join(map(str, others))
            faults.append(
                f"other processes ({named}) compute on GPU {rank.device} of rank {rank.rank} on {rank.host}: "
                "its times are not of the launch alone"
            )
    return tuple(faults)


def throttled_hosts(layout: Layout, places: Sequence[RankPlace], ranks: Sequence[RankRecord]) -> tuple[str, ...]:
    """Return a sentence for every host whose CPU quota held the ranks back for more than `MOST_THROTTLED` of the time.

    `places` and `ranks` are one for each rank. The cores that the quota held back are counted against those that the
    ranks of the host need.
    """
    faults = []
    for host in sorted({place.host for place in places}):
        here = [(place, rank) for place, rank in zip(places, ranks, strict=True) if place.host == host]
        held_back = max(rank.throttled_cpus for _, rank in here)
        share = min(1.0, held_back / (len(here) * layout.threads))
        if share <= MOST_THROTTLED:
            continue
        quotas = [place.quota for place, _ in here if place.quota is not None]
        quota = f"a quota of {min(quotas):g} CPUs" if quotas else "a CPU quota"
        faults.append(
            f"{quota} held the ranks on {host} back for {share:.0%} of the timed time, at most {MOST_THROTTLED:.0%} is "
            "allowed: raise the quota of the container or job, or use fewer ranks and threads"
        )
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
        here = {rank: place for rank, place in enumerate(places) if place.host == host}
        faults += _core_faults(host, here, layout.threads)
    return tuple(faults)


def _core_faults(host: str, places: dict[int, RankPlace], threads: int) -> list[str]:
    """Return what is wrong with the cores of the ranks of one host, whose `places` are by rank.

    Cores are physical ones: a core's hardware threads share its units, and two threads on them are no two cores' worth.
    """
    own_cores = {rank: place.own_cores for rank, place in places.items()}
    available = len(frozenset().union(*own_cores.values()))
    if available < len(places) * threads:
        return [f"{len(places)} ranks x {threads} threads share {available} physical cores on {host}"]
    for cores in sorted(set(own_cores.values()), key=len):
        within = [rank for rank, others in own_cores.items() if others <= cores]
        if len(within) * threads > len(cores) and len(cores) > threads:  # smaller sets are those of bound ranks, below
            return [
                f"{len(within)} ranks x {threads} threads, rank {within[0]} among them, share {len(cores)} physical "
                f"cores on {host}"
            ]
    faults = []
    bound: dict[int, list[int]] = {}
    for rank, cores in own_cores.items():
        if len(cores) <= threads:  # with more of them it is not bound, and the kernel keeps ranks apart
            for core in cores:
                bound.setdefault(core, []).append(rank)
    shared = sorted(core for core, ranks in bound.items() if len(ranks) > 1)
    if shared:
        names = " and ".join(map(str, bound[shared[0]]))
        faults.append(f"ranks {names} are bound to the same physical core {shared[0]} on {host}")
    short = [rank for rank, cores in own_cores.items() if len(cores) < threads]
    if short:
        count = len(own_cores[short[0]])
        faults.append(f"rank {short[0]} may use {count} physical cores for {threads} threads on {host}")
    return faults


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
