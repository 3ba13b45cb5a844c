"""Times of different hosts on one clock: offsets to rank 0's host, their drift, and how far both may be wrong.

`time.perf_counter` (CLOCK_MONOTONIC) is one clock for all processes of a host; hosts start theirs at different times
and run them at slightly different rates. Offsets are estimated as NTP does (Mills 1991, section 3): of many exchanges
the fastest counts, and it is wrong by at most half its round trip.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
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


def read_offset(world: "World", hosts: list[str]) -> Offset:
    """Estimate this rank's offset; on all ranks together. `hosts` names the host of every rank.

    One rank of each host exchanges messages with rank 0, one host after the other. Ranks on rank 0's host have no
    offset and no error.
    """
    leaders = {host: hosts.index(host) for host in hosts if host != hosts[0]}
    found = {hosts[0]: Offset(at=time.perf_counter(), offset_s=0.0, error_s=0.0)}
    for host, leader in leaders.items():
        if world.rank == leader:
            _answer(world)
        elif world.rank == 0:
            found[host] = _ask(world, leader)
    if leaders:
        found = world.comm.bcast(found, root=0)
    return found[hosts[world.rank]]


def _ask(world: "World", leader: int) -> Offset:
    comm = world.comm
    sent, received = np.zeros(1), np.empty(1)
    best = Offset(at=0.0, offset_s=0.0, error_s=float("inf"))
    for _ in range(_EXCHANGES):
        begin = time.perf_counter()
        comm.Send(sent, dest=leader)
        comm.Recv(received, source=leader)
        end = time.perf_counter()
        theirs = float(received[0])
        if (end - begin) / 2 < best.error_s:
            best = Offset(at=theirs, offset_s=theirs - (begin + end) / 2, error_s=(end - begin) / 2)
    return best


def _answer(world: "World") -> None:
    message = np.empty(1)
    for _ in range(_EXCHANGES):
        world.comm.Recv(message, source=0)
        message[0] = time.perf_counter()
        world.comm.Send(message, dest=0)
