"""What other processes take of a host: times are only worth something when it is little."""

import contextlib
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from harness.base.cores import allowed_cpus, throttled_s
from harness.base.errors import UserError
from harness.base.turns import clock, current_turns

if TYPE_CHECKING:
    from mpi4py import MPI


TOLERANCE = 0.25  # cores; a quiet machine's own housekeeping takes less
MOST_QUEUED = 0.1  # of a rank's time, waiting for others to leave its core: beyond it times are not the program's own
_LOOK_S = 2.0
_PATIENCE_S = 60
_MOST_NAMED = 3  # of the processes that keep cores busy
_GLANCE_S = 0.5  # enough for a machine that is quiet


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuUsage:
    """CPU seconds of the host (stolen time included), and of this process with its ended descendants, at one moment.

    Of a host that is shared with others by cgroups, only the CPUs of this process's cgroup count.

    `stolen` are the host's seconds that its hypervisor gave to others, `queued` the seconds that this process's threads
    were ready to run and had no core (Linux's schedstat, 0 elsewhere), `preempted` how often they lost theirs.
    `throttled` is as in `harness.base.cores.throttled_s`, and `wall` the time of time.monotonic, turns of others
    included as there.
    """

    clock: float
    host: float
    process: float
    stolen: float = 0.0
    queued: float = 0.0
    preempted: int = 0
    throttled: tuple[float, ...] = ()
    wall: float = 0.0

    @classmethod
    def now(cls) -> "CpuUsage":
        """Return the usage so far."""
        times = os.times()
        cpus = _cpu_times()
        turns = current_turns()
        return cls(
            clock=clock(),
            host=busy_s(cpus) - (turns.host_s if turns else 0.0),
            process=times.user + times.system + times.children_user + times.children_system,
            stolen=sum(getattr(cpu, "steal", 0.0) for cpu in cpus),
            queued=_queued_s(),
            preempted=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
            throttled=throttled_s(),
            wall=time.monotonic(),
        )


def busy_s(times: Sequence[Any] = ()) -> float:
    """Return the CPU seconds, stolen ones included, that this process's CPUs were busy: by `times`, else so far."""
    cpus = times or _cpu_times()
    return float(sum(sum(cpu) - cpu.idle - cpu.iowait - cpu.guest - cpu.guest_nice for cpu in cpus))


def _cpu_times() -> list[Any]:
    """Return the times of the CPUs that this process's cgroup allows: who works on others takes nothing from it."""
    allowed = allowed_cpus()
    times = psutil.cpu_times(percpu=True)
    return [times[cpu] for cpu in sorted(allowed) if cpu < len(times)] or times


def _queued_s() -> float:
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            total += int(path.read_text().split()[1])
    return 1e-9 * total


@dataclass(frozen=True, kw_only=True, slots=True)
class Delays:
    """What others took from a rank between two moments, as shares of the time.

    `queued`: of its threads' time, ready to run but without a core, be it for each other; `stolen`: of the host's
    cores, by the hypervisor. `preempted` is a count. `throttled` are the CPUs that a quota held back on the average, in
    the one of the cgroups around the process where that is most.
    """

    queued: float
    stolen: float
    preempted: int
    throttled: float

    @classmethod
    def between(cls, begin: CpuUsage, end: CpuUsage, *, threads: int) -> "Delays":
        """Return the delays of a process of `threads` threads."""
        seconds = max(end.clock - begin.clock, 1e-9)
        throttled = [after - before for before, after in zip(begin.throttled, end.throttled, strict=False)]
        return cls(
            queued=(end.queued - begin.queued) / seconds / threads,
            stolen=(end.stolen - begin.stolen) / seconds / len(_cpu_times()),
            preempted=end.preempted - begin.preempted,
            throttled=max(throttled, default=0.0) / max(end.wall - begin.wall, 1e-9),
        )


def delayed(hosts: Sequence[str], queued: Sequence[float], loads: Mapping[str, float]) -> tuple[str, ...]:
    """Return one sentence when a rank waited too long for a core that other processes had: the longest wait of all.

    `hosts` and `queued` by rank: its host, and the share of the time that it waited; `loads` by host: the cores that
    others kept busy. A rank's threads also wait for each other (on a quiet machine 8 to 12 % with TensorFlow's own on
    one core), so that no more than the others' load counts.
    """
    waits = [min(share, loads[host]) for host, share in zip(hosts, queued, strict=True)]
    worst = max(range(len(waits)), key=lambda rank: waits[rank])
    if waits[worst] <= MOST_QUEUED:
        return ()
    return (
        f"rank {worst} waited {queued[worst]:.0%} of the timed epochs for a core on {hosts[worst]}, where other "
        f"processes kept {loads[hosts[worst]]:.2f} cores busy",
    )


def other_load(begin: CpuUsage, end: CpuUsage) -> float:
    """Return the cores that all other processes kept busy between two moments; at least 0."""
    busy = (end.host - begin.host) - (end.process - begin.process)
    return max(0.0, busy / max(end.clock - begin.clock, 1e-9))


def other_loads(comm: "MPI.Intracomm", hosts: Sequence[str], begin: CpuUsage, end: CpuUsage) -> dict[str, float]:
    """Return for every host the cores that processes other than the ranks of `comm` kept busy between two moments.

    `hosts` names every rank's host. At least 0.
    """
    usages = comm.allgather((end.process - begin.process, end.host - begin.host, end.clock - begin.clock))
    ranks_s: dict[str, float] = defaultdict(float)
    for host, (process_s, _, _) in zip(hosts, usages, strict=True):
        ranks_s[host] += process_s
    return {
        host: max(0.0, (host_s - ranks_s[host]) / max(seconds, 1e-9))
        for host, (_, host_s, seconds) in zip(hosts, usages, strict=True)
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


def patience_s() -> float:
    """Return how many seconds a busy machine is waited for: the user's HARNESS_QUIET_S, else a minute.

    0 lets a sweep wait for nothing; what has no other way to valid times waits the minute.

    Raises:
        UserError: it is not a number of seconds.
    """
    text = os.environ.get("HARNESS_QUIET_S") or str(_PATIENCE_S)
    if not text.isdecimal():
        raise UserError(f"HARNESS_QUIET_S={text} is not a number of seconds: write a whole one, 0 to wait for nothing")
    return float(text)


def wait_until_quiet(
    say: Callable[[str], None], *, force: bool = False, spare: int = 0, instead: str = "add --force to measure anyway"
) -> float:
    """Return the load of other processes (cores) once it needs no more than `spare` cores; with `force` whatever it is.

    Raises:
        UserError: other processes stay busy for `patience_s`; it says how busy, who most, and what to do `instead`.
    """
    patience = patience_s() or _PATIENCE_S
    waiting = False
    deadline = time.monotonic() + patience
    while True:
        load, busiest = look(_LOOK_S if waiting else _GLANCE_S)
        if load <= spare + TOLERANCE or force:
            return load
        busy = f"other processes keep {load:.1f} of {psutil.cpu_count()} cores busy (most of all {busiest})"
        if time.monotonic() >= deadline:
            raise UserError(f"{busy}: end them and try again, or {instead}")
        if not waiting:
            say(f"{busy}: waiting up to {patience:.0f} s for them to stop")
        waiting = True


def look(seconds: float = _LOOK_S) -> tuple[float, str]:
    """Return the other processes' load (cores) over some seconds, and the name and number of the busiest ones."""
    others = {process.pid: process for process in psutil.process_iter() if process.pid != os.getpid()}
    before = {pid: _cpu_s(process) for pid, process in others.items()}
    begin = CpuUsage.now()
    time.sleep(seconds)
    load = other_load(begin, CpuUsage.now())
    used = {pid: _cpu_s(process) - before[pid] for pid, process in others.items()}
    busiest: list[str] = []
    for pid in sorted(used, key=lambda pid: -used[pid]):
        if used[pid] < TOLERANCE * seconds or len(busiest) == _MOST_NAMED:
            break
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            busiest.append(f"{others[pid].name()}, process {pid}")
    return load, "; ".join(busiest) or "unknown"


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
