"""Cores, memory, GPUs, and what else the machine is doing."""

import os
import platform
import shutil
from collections.abc import Iterator

import psutil

from harness.comm.cores import affinity_narrowed, cpu_quota, usable_cores
from harness.doctor.ask import ask
from harness.doctor.check import Check, ok, warning
from harness.hostload import TOLERANCE, look

_GIB = 2**30
_LITTLE_MEMORY = 2 * _GIB


def check_cores() -> Iterator[Check]:
    """Yield the lines of the machine and of the cores that ranks may use."""
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    yield ok("machine", f"{platform.node()}, {_cpu_name()}, {platform.system()} {platform.release()}")
    quota = cpu_quota()
    limit = f", cgroup limit {quota:g}" if quota is not None else ""
    usable = usable_cores()
    found = f"{usable} usable of {physical} physical, {os.cpu_count()} CPUs{limit}"
    if usable < 2:
        yield warning(
            "cores", found, "a scaling study needs at least 2: ask for more, or use OVERSUBSCRIBE=1 for function"
        )
    elif affinity_narrowed():
        yield warning(
            "cores", found, "this shell is bound to some CPUs: ranks cannot be bound; start it without taskset"
        )
    else:
        yield ok("cores", found)


def check_memory() -> Check:
    """Return the line of the memory."""
    memory = psutil.virtual_memory()
    found = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    if memory.available < _LITTLE_MEMORY:
        return warning("memory", found, "end other programs, or train on fewer SAMPLES")
    return ok("memory", found)


def check_gpus(seen: tuple[str, ...]) -> Check:
    """Return the line of the GPUs: those of the driver, and those that TensorFlow has `seen`."""
    if shutil.which("nvidia-smi") is None:
        return ok("GPUs", f"{len(seen)}: {', '.join(seen)}" if seen else "none")
    reply = ask(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], limit_s=30)
    if reply.code != 0:
        return warning("GPUs", f"nvidia-smi fails: {reply.first_line}", "install the GPU's driver, or go on without it")
    driver = [line.strip() for line in reply.out.splitlines() if line.strip()]
    found = f"{len(driver)} in the driver ({'; '.join(driver)}), {len(seen)} seen by TensorFlow"
    if len(seen) < len(driver):
        return warning("GPUs", found, "pip install 'mpi-tf-harness[gpu]', and unset CUDA_VISIBLE_DEVICES")
    return ok("GPUs", found)


def check_load() -> Check:
    """Return the line of what other processes take now."""
    load, busiest = look()
    found = f"{load:.2f} cores busy"
    if load > TOLERANCE:
        return warning(
            "other load", f"{found}, most of all {busiest}", "times will not be valid: end it before a sweep"
        )
    return ok("other load", found)


def _cpu_name() -> str:
    import cpuinfo

    return str(cpuinfo.get_cpu_info().get("brand_raw", platform.machine()))
