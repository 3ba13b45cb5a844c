"""Cores, memory, GPUs, folders, and what else the machine is doing."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from harness.base.cache import cache_folder, make_folder
from harness.base.cores import affinity_narrowed, cpu_quota, usable_cores
from harness.base.errors import UserError
from harness.base.files import user_errors
from harness.base.hostload import TOLERANCE, look
from harness.base.processes import ask
from harness.datasets.registry import dataset, names
from harness.datasets.source import data_folder
from harness.doctor.check import Check, ok, problem, warning

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


_LITTLE_DISK = 2 * _GIB


def check_cache() -> Check:
    """Return the line of the cache folder: it must be writable."""
    folder = cache_folder()
    fix = "set HARNESS_CACHE_DIR to a folder with space that you may write to"
    try:
        make_folder(folder)
        with user_errors("cache folder", folder), tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except UserError as error:
        return problem("cache folder", str(error), fix)
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {free / _GIB:.1f} GiB free"
    return ok("cache folder", found) if free >= _LITTLE_DISK else warning("cache folder", found, fix)


def check_data(data_dir: Path | None) -> Iterator[Check]:
    """Yield the lines of the data folder (`data_dir`, None for the default) and of every data set."""
    try:
        folder = data_folder(data_dir)
    except UserError as error:
        yield problem("data folder", str(error), "give --data-dir, or set HARNESS_DATA_DIR, to a folder that exists")
        return
    yield ok("data folder", str(folder) if folder.is_dir() else f"{folder}, not there yet")
    for name in names():
        yield ok(f"data {name}", _found(name, folder))


def _found(name: str, folder: Path) -> str:
    found = dataset(name).find(folder)
    if found.missing:
        return f"no original files (missing {', '.join(found.missing)}): a synthetic twin stands in"
    if dataset(name).info.separate_test and not found.test:
        return "training files only: test rows are held out of them"
    return "original files"
