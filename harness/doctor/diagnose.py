"""All of the doctor's checks in the order of its table, and those of the machine, its scheduler and its data."""

import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from harness.base.cores import affinity_narrowed, cpu_quota, usable_cores
from harness.base.cpu_contention import TOLERANCE, look
from harness.base.errors import UserError
from harness.base.files import cache_folder, make_folder, user_errors
from harness.base.processes import ask
from harness.base.provenance import git_commit
from harness.comm.gpus import INSTALL_CUDA
from harness.datasets import data_folder, info, names
from harness.doctor import software
from harness.doctor.software import PROBLEM, Diagnostic, ok, problem, warning
from harness.schema.layout import Layout
from harness.sweep.schedulers import choose, open_scheduler, scheduler_class
from harness.sweep.site import find_site

_GIB = 2**30
_LITTLE_MEMORY = _LITTLE_DISK = 2 * _GIB
_NODES = 2


def all_checks(data_dir: Path | None) -> Iterator[Diagnostic]:
    """Yield every check as it is made; about 15 s altogether. `data_dir` is the data folder, None for the default."""
    yield check_load()  # first: the doctor's own processes come later
    yield ok("Python", f"{platform.python_version()}, {sys.executable}")
    tensorflow = software.try_tensorflow()
    yield software.check_tensorflow(tensorflow)
    for name, title in (("keras", "Keras"), ("numpy", "NumPy"), ("mpi4py", "mpi4py")):
        yield software.check_package(name, title)
    launcher = software.find_mpirun()
    yield from software.check_mpi(launcher)
    yield from check_scheduler()
    yield from software.check_compilers(None if isinstance(launcher, UserError) else launcher.path)
    yield from check_cores()
    yield check_memory()
    yield check_gpus(tensorflow.gpus)
    yield check_cache()
    yield from check_data(data_dir)
    yield check_commit()


def exit_code(checks: Iterable[Diagnostic]) -> int:
    """Return 0 when everything that runs need works, else 1."""
    return 1 if any(check.status == PROBLEM for check in checks) else 0


def check_scheduler() -> Iterator[Diagnostic]:
    """Yield the lines of the scheduler, of the site's file, of the PMI and of a launch on two nodes."""
    try:
        site = find_site(None)
        name, why = choose("auto", site)
        request = scheduler_class(name).suitable(site.request)
        scheduler = open_scheduler(name, site=site, request=request, oversubscribe=True)
        words = scheduler.launcher(Layout(nodes=_NODES)).words
        limit = scheduler.limit()
    except UserError as error:
        yield problem("scheduler", str(error), "correct it, or give SCHEDULER=local to train on this machine")
        return
    yield ok("scheduler", why.removeprefix("scheduler: "))
    yield ok("site", "none: `harness site list` names those there are" if site.name == "unnamed" else site.name)
    chosen = [word for word in words if "pmi" in word]
    yield ok("PMI", chosen[0].lstrip("-") if chosen else "the launcher's own")
    there = f"; at most {limit.nodes} nodes, cores of a node: {limit.cores_per_node}" if limit and limit.nodes else ""
    walltime = f", {request.walltime} each" if scheduler.directive else ""
    yield ok(f"{_NODES} nodes", f"{shlex.join(words)}{walltime}{there}")


def check_cores() -> Iterator[Diagnostic]:
    """Yield the lines of the machine and of the cores that ranks may use."""
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    import cpuinfo

    cpu = cpuinfo.get_cpu_info().get("brand_raw", platform.machine())
    yield ok("machine", f"{platform.node()}, {cpu}, {platform.system()} {platform.release()}")
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


def check_memory() -> Diagnostic:
    """Return the line of the memory."""
    memory = psutil.virtual_memory()
    found = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    if memory.available < _LITTLE_MEMORY:
        return warning("memory", found, "end other programs, or train on fewer SAMPLES")
    return ok("memory", found)


def check_gpus(seen: tuple[str, ...]) -> Diagnostic:
    """Return the line of the GPUs: those of the driver, and those that TensorFlow has `seen`."""
    if shutil.which("nvidia-smi") is None:
        return ok("GPUs", f"{len(seen)}: {', '.join(seen)}" if seen else "none")
    reply = ask(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], limit_s=30)
    if reply.code != 0:
        return warning("GPUs", f"nvidia-smi fails: {reply.first_line}", "install the GPU's driver, or go on without it")
    driver = [line.strip() for line in reply.out.splitlines() if line.strip()]
    found = f"{len(driver)} in the driver ({'; '.join(driver)}), {len(seen)} seen by TensorFlow"
    if len(seen) < len(driver):
        return warning("GPUs", found, f"{INSTALL_CUDA}, and unset CUDA_VISIBLE_DEVICES")
    return ok("GPUs", found)


def check_load() -> Diagnostic:
    """Return the line of what other processes take now."""
    load, busiest = look()
    found = f"{load:.2f} cores busy"
    if load > TOLERANCE:
        return warning(
            "other load", f"{found}, most of all {busiest}", "times will not be valid: end it before a sweep"
        )
    return ok("other load", found)


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
    found = f"{folder}, {free / _GIB:.1f} GiB free"
    return ok("cache folder", found) if free >= _LITTLE_DISK else warning("cache folder", found, fix)


def check_data(data_dir: Path | None) -> Iterator[Diagnostic]:
    """Yield the lines of the data folder (`data_dir`, None for the default) and of every data set."""
    try:
        folder = data_folder(data_dir)
    except UserError as error:
        yield problem("data folder", str(error), "give --data-dir, or set HARNESS_DATA_DIR, to a folder that exists")
        return
    yield ok("data folder", str(folder) if folder.is_dir() else f"{folder}, not there yet")
    for name in names():
        there, found = info(name).find(folder), "original files"
        if there.missing:
            found = f"no original files (missing {', '.join(there.missing)}): a synthetic stand-in is used"
        elif info(name).separate_test and not there.test:
            found = "training files only: test rows are held out of them"
        yield ok(f"data {name}", found)


def check_commit() -> Diagnostic:
    """Return the line of the checkout that the harness runs from."""
    commit, dirty = git_commit()
    if not commit:
        return ok("git commit", "no checkout: an installed package")
    if dirty:
        return warning("git commit", f"{commit[:12]} with changes", "commit them before measuring for others")
    return ok("git commit", commit[:12])
