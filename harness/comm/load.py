"""How busy other processes kept a host while the ranks were timed."""

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from harness.comm.world import World

_TOLERANCE = 0.25  # cores; what a host's own housekeeping takes is well below


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """CPU seconds of this process and of its whole host (stolen time included) at one moment."""

    clock: float
    process: float
    host: float

    @classmethod
    def now(cls) -> "Usage":
        """Return the usage so far."""
        own = psutil.Process().cpu_times()
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        return cls(clock=time.perf_counter(), process=own.user + own.system, host=busy)


def other_loads(world: "World", hosts: list[str], begin: Usage, end: Usage) -> dict[str, float]:
    """Return for every host the cores that processes other than the ranks kept busy between two moments.

    `hosts` names every rank's host. Cores, at least 0.
    """
    elapsed = end.clock - begin.clock
    shares = world.comm.allgather((end.process - begin.process, end.host - begin.host, elapsed))
    ours: dict[str, float] = defaultdict(float)
    for host, (process, _, _) in zip(hosts, shares, strict=True):
        ours[host] += process
    found = {}
    for host, (_, total, seconds) in zip(hosts, shares, strict=True):
        found[host] = max(0.0, (total - ours[host]) / max(seconds, 1e-9))
    return found


def overloads(loads: dict[str, float], needed: dict[str, int], cores: dict[str, int]) -> tuple[str, ...]:
    """Return one sentence for every host where other processes took cores that the ranks needed.

    All by host: other load, cores that the ranks need, cores there are.
    """
    return tuple(
        f"other processes kept {load:.1f} of {cores[host]} cores busy on {host}, where the ranks need {needed[host]}"
        for host, load in sorted(loads.items())
        if load + needed[host] > cores[host] + _TOLERANCE
    )
