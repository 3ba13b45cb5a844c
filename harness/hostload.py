"""What other processes take of this machine: times are only worth something when it is little."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from harness.comm.load import Usage
from harness.errors import UserError

TOLERANCE = 0.25  # cores; a quiet machine's own housekeeping takes less
_LOOK_S = 2.0
_PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """CPU seconds of the host, and of this process with all its ended descendants, at one moment."""

    clock: float
    host: float
    own: float

    @classmethod
    def now(cls) -> "Reading":
        """Return the seconds so far."""
        usage, times = Usage.now(), os.times()
        return cls(clock=usage.clock, host=usage.host, own=usage.process + times.children_user + times.children_system)


def other_load(begin: Reading, end: Reading) -> float:
    """Return the cores that all other processes kept busy between two readings; at least 0."""
    busy = (end.host - begin.host) - (end.own - begin.own)
    return max(0.0, busy / max(end.clock - begin.clock, 1e-9))


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
    begin = Reading.now()
    time.sleep(_LOOK_S)
    load = other_load(begin, Reading.now())
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
