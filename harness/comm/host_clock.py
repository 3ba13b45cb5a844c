"""The times of all hosts on one clock.

`time.perf_counter` (CLOCK_MONOTONIC) is one clock for all processes of a host; hosts start theirs at different times
and run them at slightly different rates. Offsets are estimated as NTP does (Mills 1991, section 3): of many exchanges
the fastest counts, and it is wrong by at most half its round trip.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.base.turns import clock
from harness.comm.world import World

_EXCHANGES = 60


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
    offsets = {hosts[0]: Offset(at=clock(), offset_s=0.0, error_s=0.0)}
    message = np.zeros(1)
    for host, leader in leaders.items():
        if world.rank == leader:
            for _ in range(_EXCHANGES):
                world.comm.Recv(message, source=0)
                message[0] = clock()
                world.comm.Send(message, dest=0)
        elif world.rank == 0:
            offsets[host] = _measure_offset(world, leader)
    if leaders:
        offsets = world.comm.bcast(offsets, root=0)
    return offsets[hosts[world.rank]]


def _measure_offset(world: World, leader: int) -> Offset:
    sent = np.zeros(1)
    received = np.empty(1)
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
