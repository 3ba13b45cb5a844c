"""The doctor's lines of the machine: cores, memory, GPUs, other load, the cache folder, the data."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from harness.base.cores import affinity_narrowed, cpu_quota, usable_cores
from harness.base.cpu_contention import TOLERANCE, look
from harness.base.errors import UserError
from harness.base.files import cache_folder, make_folder, user_errors
from harness.base.processes import run_program
from harness.base.provenance import processor_name
from harness.comm.gpus import INSTALL_CUDA
from harness.datasets import data_folder, dataset_info, dataset_names
from harness.doctor.diagnostic import Diagnostic, ok, problem, warning
from harness.transparent.file_mechanism import PERMISSIONS, namespace_refusal

_GIB = 2**30
_LITTLE_MEMORY = 2 * _GIB
_LITTLE_DISK = 2 * _GIB


def check_cores() -> Iterator[Diagnostic]:
    """Yield the lines of the machine and of the cores that ranks may use."""
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    yield ok("machine", f"{platform.node()}, {processor_name()}, {platform.system()} {platform.release()}")
    quota = cpu_quota()
    limit = f", cgroup limit {quota:g}" if quota is not None else ""
    usable = usable_cores()
    finding = f"{usable} usable of {physical} physical, {os.cpu_count()} CPUs{limit}"
    if usable < 2:
        yield warning(
            "cores", finding, "a scaling study needs at least 2: ask for more, or use OVERSUBSCRIBE=1 for function"
        )
    elif affinity_narrowed():
        yield warning(
            "cores", finding, "this shell is bound to some CPUs: ranks cannot be bound; start it without taskset"
        )
    else:
        yield ok("cores", finding)


def check_memory() -> Diagnostic:
    """Return the line of the memory."""
    memory = psutil.virtual_memory()
    finding = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    if memory.available < _LITTLE_MEMORY:
        return warning("memory", finding, "end other programs, or train on fewer SAMPLES")
    return ok("memory", finding)


def check_gpus(seen: tuple[str, ...]) -> Diagnostic:
    """Return the line of the GPUs: those of the driver, and those that TensorFlow has `seen`."""
    if shutil.which("nvidia-smi") is None:
        return ok("GPUs", f"{len(seen)}: {', '.join(seen)}" if seen else "none")
    reply = run_program(
        ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], limit_s=30
    )
    if reply.code != 0:
        return warning("GPUs", f"nvidia-smi fails: {reply.first_line}", "install the GPU's driver, or go on without it")
    driver = [line.strip() for line in reply.out.splitlines() if line.strip()]
    finding = f"{len(driver)} in the driver ({'; '.join(driver)}), {len(seen)} seen by TensorFlow"
    if len(seen) < len(driver):
        return warning("GPUs", finding, f"{INSTALL_CUDA}, and unset CUDA_VISIBLE_DEVICES")
    return ok("GPUs", finding)


def check_load() -> Diagnostic:
    """Return the line of what other processes take now."""
    load, busiest = look()
    finding = f"{load:.2f} cores busy"
    if load > TOLERANCE:
        return warning(
            "other load", f"{finding}, most of all {busiest}", "times will not be valid: end it before a sweep"
        )
    return ok("other load", finding)


def check_cache() -> Diagnostic:
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
    finding = f"{folder}, {free / _GIB:.1f} GiB free"
    return ok("cache folder", finding) if free >= _LITTLE_DISK else warning("cache folder", finding, fix)


def check_data(data_dir: Path | None) -> Iterator[Diagnostic]:
    """Yield the lines of the data folder (`data_dir`, None for the default) and of every data set."""
    try:
        folder = data_folder(data_dir)
    except UserError as error:
        yield problem("data folder", str(error), "give --data-dir, or set HARNESS_DATA_DIR, to a folder that exists")
        return
    yield ok("data folder", str(folder) if folder.is_dir() else f"{folder}, not there yet")
    for name in dataset_names():
        originals = dataset_info(name).find(folder)
        finding = "original files"
        if originals.missing:
            finding = f"no original files (missing {', '.join(originals.missing)}): a synthetic stand-in is used"
        elif dataset_info(name).separate_test and not originals.test:
            finding = "training files only: test rows are held out of them"
        yield ok(f"data {name}", finding)


def check_rank_files() -> Diagnostic:
    """Return the line of where ranks above 0 of a user's script write."""
    refusal = namespace_refusal()
    if not refusal:
        return ok("files of ranks", "a mount namespace with overlays for each rank of a script")
    return warning(
        "files of ranks",
        f"no file tree for each rank of a script: {refusal}",
        f"{PERMISSIONS}; or run scripts with --shared-files, or on one rank",
    )
