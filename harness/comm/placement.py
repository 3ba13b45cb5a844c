"""Where the ranks run, compared with what was asked, and the times of their hosts on one clock.

`time.perf_counter` (CLOCK_MONOTONIC) is one clock for all processes of a host; hosts start theirs at different times
and run them at slightly different rates. Offsets are estimated as NTP does (Mills 1991, section 3): of many exchanges
the fastest counts, and it is wrong by at most half its round trip.
"""

import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psutil

from harness.base.turns import clock
from harness.comm.world import World
from harness.schema.record import RankRecord
from harness.schema.sweep import Layout

_EXCHANGES = 60


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


def misplacements(layout: Layout, places: Sequence[RankPlace], *, by_nodes: bool = False) -> tuple[str, ...]:
    """Return one sentence for everything about `places` (one per rank) that makes times unusable.

    With `by_nodes` the ranks must be on as many nodes as the layout has, and as many on each.
    """
    found = list[str]()
    ranks = [layout.ranks_per_node] * (layout.nodes - 1) + [layout.last_node or layout.ranks_per_node]
    there = Counter(place.node for place in places)
    if by_nodes and sorted(there.values()) != sorted(ranks):
        seen = ", ".join(f"{count} on {node}" for node, count in sorted(there.items()))
        found.append(f"{layout.nodes} nodes of {layout.ranks_per_node} ranks were asked for, but there are {seen}")
    for host in sorted({place.host for place in places}):
        here = [(rank, place) for rank, place in enumerate(places) if place.host == host]
        available = len({core for _, place in here for core in place.cores})
        needed = len(here) * layout.threads
        if available < needed:
            found.append(f"{len(here)} ranks x {layout.threads} threads share {available} cores on {host}")
            continue
        taken = Counter(core for _, place in here for core in place.cores if len(place.cores) <= layout.threads)
        shared = sorted(core for core, ranks in taken.items() if ranks > 1)
        if shared:
            found.append(f"core {shared[0]} on {host} is bound to {taken[shared[0]]} ranks")
        short = [rank for rank, place in here if len(place.cores) < layout.threads]
        if short:
            found.append(
                f"rank {short[0]} may use {len(here[0][1].cores)} cores for {layout.threads} threads on {host}"
            )
    return tuple(found)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Offset:
    """How far this host's clock is ahead of rank 0's (s) at its own time `at` (s), wrong by at most `error_s`."""

    at: float
    offset_s: float
    error_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HostClock:
    """This host's clock against rank 0's, between two estimates."""

    begin: Offset
    end: Offset

    @property
    def drift(self) -> float:
        """Seconds that this clock gains on rank 0's in a second."""
        span = self.end.at - self.begin.at
        return (self.end.offset_s - self.begin.offset_s) / span if span > 0 else 0.0

    @property
    def error_s(self) -> float:
        """The most that a converted time can be wrong by, seconds, as long as the drift is steady."""
        return max(self.begin.error_s, self.end.error_s)

    def common(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return `times` (s) of this host's clock on rank 0's, of the same shape; exact on rank 0's host."""
        converted: npt.NDArray[np.float64] = times - self.begin.offset_s - self.drift * (times - self.begin.at)
        return converted


def read_offset(world: World, hosts: list[str]) -> Offset:
    """Estimate this rank's offset; on all ranks together. `hosts` names the host of every rank.

    One rank of each host exchanges messages with rank 0, one host after the other. Ranks on rank 0's host have no
    offset and no error.
    """
    leaders = {host: hosts.index(host) for host in hosts if host != hosts[0]}
    found = {hosts[0]: Offset(at=clock(), offset_s=0.0, error_s=0.0)}
    message = np.zeros(1)
    for host, leader in leaders.items():
        if world.rank == leader:
            for _ in range(_EXCHANGES):
                world.comm.Recv(message, source=0)
                message[0] = clock()
                world.comm.Send(message, dest=0)
        elif world.rank == 0:
            found[host] = _measure_offset(world, leader)
    if leaders:
        found = world.comm.bcast(found, root=0)
    return found[hosts[world.rank]]


def _measure_offset(world: World, leader: int) -> Offset:
    sent, received = np.zeros(1), np.empty(1)
    best = Offset(at=0.0, offset_s=0.0, error_s=float("inf"))
    for _ in range(_EXCHANGES):
        begin = clock()
        world.comm.Send(sent, dest=leader)
        world.comm.Recv(received, source=leader)
        end = clock()
        theirs = float(received[0])
        if (end - begin) / 2 < best.error_s:
            best = Offset(at=theirs, offset_s=theirs - (begin + end) / 2, error_s=(end - begin) / 2)
    return best
