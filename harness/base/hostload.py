"""What other processes take of a host: times are only worth something when it is little."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from harness.base.errors import UserError

if TYPE_CHECKING:
    from mpi4py import MPI


TOLERANCE = 0.25  # cores; a quiet machine's own housekeeping takes less
_LOOK_S = 2.0
_PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """CPU seconds of the host (stolen time included), and of this process with its ended descendants, at one moment."""

    clock: float
    host: float
    own: float

    @classmethod
    def now(cls) -> "Usage":
        """Return the usage so far."""
        own, host = os.times(), psutil.cpu_times()
        return cls(
            clock=time.perf_counter(),
            host=sum(host) - host.idle - host.iowait - host.guest - host.guest_nice,
            own=own.user + own.system + own.children_user + own.children_system,
        )


def other_load(begin: Usage, end: Usage) -> float:
    """Return the cores that all other processes kept busy between two moments; at least 0."""
    busy = (end.host - begin.host) - (end.own - begin.own)
    return max(0.0, busy / max(end.clock - begin.clock, 1e-9))


def other_loads(comm: "MPI.Intracomm", hosts: Sequence[str], begin: Usage, end: Usage) -> dict[str, float]:
    """Return for every host the cores that processes other than the ranks of `comm` kept busy between two moments.

    `hosts` names every rank's host. At least 0.
    """
    shares = comm.allgather((end.own - begin.own, end.host - begin.host, end.clock - begin.clock))
    ours: dict[str, float] = defaultdict(float)
    for host, (own, _, _) in zip(hosts, shares, strict=True):
        ours[host] += own
    return {
        host: max(0.0, (total - ours[host]) / max(seconds, 1e-9))
        for host, (_, total, seconds) in zip(hosts, shares, strict=True)
    }


def overloads(loads: Mapping[str, float], needed: Mapping[str, int], cores: Mapping[str, int]) -> tuple[str, ...]:
    """Return one sentence for every host where other processes took cores that the ranks needed.

    All by host: other load, cores that the ranks need, cores there are.
    """
    return tuple(
        f"other processes kept {load:.1f} of {cores[host]} cores busy on {host}, where the ranks need {needed[host]}"
        for host, load in sorted(loads.items())
        if load + needed[host] > cores[host] + TOLERANCE
    )


def wait_until_quiet(say: Callable[[str], None], *, force: bool, patience_s: float = _PATIENCE_S) -> float:
    """Return the load of other processes (cores) once it is low; with `force`, whatever it is.

    Raises:
        UserError: other processes stay busy for `patience_s` seconds; it says how busy, and who most.
    """
    deadline = time.monotonic() + patience_s
    while True:
        load, busiest = look()
        if load <= TOLERANCE or force:
            return load
        if time.monotonic() >= deadline:
            raise UserError(
                f"other processes keep {load:.1f} of {psutil.cpu_count()} cores busy (most of all {busiest}): "
                "end them and try again, or add --force to measure all the same"
            )
        say(f"waiting: other processes keep {load:.1f} cores busy (most of all {busiest})")


def look() -> tuple[float, str]:
    """Return the other processes' load (cores) over two seconds, and the name and number of the busiest one."""
    others = {process.pid: process for process in psutil.process_iter() if process.pid != os.getpid()}
    before = {pid: _cpu_s(process) for pid, process in others.items()}
    begin = Usage.now()
    time.sleep(_LOOK_S)
    load = other_load(begin, Usage.now())
    used = {pid: _cpu_s(process) - before[pid] for pid, process in others.items()}
    busiest = max(used, key=lambda pid: used[pid], default=None)
    if busiest is None:
        return load, "unknown"
    try:
        return load, f"{others[busiest].name()}, process {busiest}"
    except psutil.Error:
        return load, f"process {busiest}"


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
