"""How many cores and how much memory this process may really use, whatever the machine has."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_ROOT = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """Return the number of cores for ranks: physical ones in the affinity mask, within the cgroup's CPU quota.

    `root` is where ``proc`` and ``sys`` are found.
    """
    affinity = os.sched_getaffinity(0)
    limits = [min(len(affinity), psutil.cpu_count(logical=False) or len(affinity))]
    physical = physical_cores(affinity, root)
    if physical:  # hyper-threads of one core count once
        limits = [len(set(physical))]
    quota = cpu_quota(root)
    if quota is not None:
        limits.append(max(1, int(quota)))
    return min(limits)


def host_cores() -> int:
    """Return the number of physical cores of this host: the load of others takes cores, not hardware threads."""
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


def physical_cores(cpus: Iterable[int], root: Path = _ROOT) -> tuple[int, ...]:
    """Return for each of `cpus` its physical core, by the lowest number of that core's hardware threads.

    Empty where the system does not say.
    """
    topology = root / "sys/devices/system/cpu"
    siblings = [_words(topology / f"cpu{cpu}/topology/thread_siblings_list") for cpu in cpus]
    if not all(siblings):
        return ()
    return tuple(min(_numbers(words[0])) for words in siblings)


def throttled_s(root: Path = _ROOT) -> tuple[float, ...]:
    """Return the CPU seconds that quotas have held back so far, of this process's cgroup and each of those around it.

    The kernel adds up the CPUs: two that wait for a second are two seconds. 0 where a cgroup does not count it.
    """
    return tuple(_throttled_s(folder / "cpu.stat") for folder in _cgroup_folders(root, "cpu"))


def _throttled_s(path: Path) -> float:
    words = _words(path)
    counters = dict(zip(words[::2], words[1::2], strict=True))
    if "throttled_usec" in counters:  # cgroup v2
        return 1e-6 * int(counters["throttled_usec"])
    return 1e-9 * int(counters.get("throttled_time", 0))  # cgroup v1


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the CPUs' worth of time that the cgroup (v1 or v2) grants, None without a limit."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        words = _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and words[0] not in ("max", "-1"):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT) -> int:
    """Return the bytes of memory that are free for this process: the machine's, within the cgroup's limit."""
    free = [int(psutil.virtual_memory().available)]
    for folder in _cgroup_folders(root, "memory"):
        limit = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        used = _words(folder / "memory.current") or _words(folder / "memory.usage_in_bytes")
        if limit and used and limit[0] != "max":
            free.append(max(0, int(limit[0]) - int(used[0])))
    return min(free)


def affinity_narrowed(root: Path = _ROOT) -> bool:
    """Return whether this process may run on fewer CPUs than its cgroup allows, as after ``taskset``.

    Open MPI's mpirun binds to all CPUs of the cgroup and ignores such a mask.
    """
    return len(os.sched_getaffinity(0)) < len(allowed_cpus(root))


def allowed_cpus(root: Path = _ROOT) -> set[int]:
    """Return the numbers of the CPUs that the cgroup's cpuset allows: all, where there is none.

    A job's own share of a host that others use too, as Slurm gives it.
    """
    for folder in _cgroup_folders(root, "cpuset"):
        words = _words(folder / "cpuset.cpus.effective") or _words(folder / "cpuset.effective_cpus")
        if words:
            return _numbers(words[0])
    return set(range(os.cpu_count() or 1))


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's cgroup folders that may limit `controller`, innermost first."""
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mounts / controllers if controllers else mounts
        if controllers and not base.exists():
            base = mounts / controller
        inner = base / path.strip("/")
        # Inside a container the path may be the host's: the folders that exist here still count.
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list of the kernel's, such as 0-3,8."""
    ends = [part.partition("-") for part in text.split(",")]
    return {number for first, _, last in ends for number in range(int(first), int(last or first) + 1)}


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
