"""One line of the doctor's table (`Diagnostic`), and the lines of the machine and its software."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.base.cores import affinity_narrowed, cpu_quota, usable_cores
from harness.base.cpu_contention import TOLERANCE, look
from harness.base.errors import UserError
from harness.base.files import cache_folder, make_folder, user_errors
from harness.base.processes import Reply, ask
from harness.base.provenance import git_commit, package_version
from harness.comm.gpus import INSTALL_CUDA
from harness.datasets import data_folder, info, names

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_GIB = 2**30
_LITTLE_MEMORY = 2 * _GIB
_LITTLE_DISK = 2 * _GIB
_IMPORT_LIMIT_S = 180.0
_SLOW_IMPORT_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnostic:
    """What was found out about `topic`: ``ok``, ``warning`` (it works, but), or ``problem`` (runs will fail).

    `fix` is one line that mends it, empty for what is ok.
    """

    topic: str
    status: str
    found: str
    fix: str = ""


def ok(topic: str, found: str) -> Diagnostic:
    """Return the line for something in order."""
    return Diagnostic(topic=topic, status=OK, found=found)


def warning(topic: str, found: str, fix: str) -> Diagnostic:
    """Return the line for something that works worse than it could."""
    return Diagnostic(topic=topic, status=WARNING, found=found, fix=fix)


def problem(topic: str, found: str, fix: str) -> Diagnostic:
    """Return the line for something that runs need and that does not work."""
    return Diagnostic(topic=topic, status=PROBLEM, found=found, fix=fix)


def check_cores() -> Iterator[Diagnostic]:
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


def _cpu_name() -> str:
    import cpuinfo

    return str(cpuinfo.get_cpu_info().get("brand_raw", platform.machine()))


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
        yield ok(f"data {name}", _found(name, folder))


def _found(name: str, folder: Path) -> str:
    found = info(name).find(folder)
    if found.missing:
        return f"no original files (missing {', '.join(found.missing)}): a synthetic stand-in is used"
    if info(name).separate_test and not found.test:
        return "training files only: test rows are held out of them"
    return "original files"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFlow:
    """What TensorFlow said in a process of its own. `gpus` are the ones it sees; `error` why it does not work."""

    seconds: float = 0.0
    gpus: tuple[str, ...] = ()
    error: str = ""


def check_python() -> Diagnostic:
    """Return the interpreter's line."""
    return ok("Python", f"{platform.python_version()}, {sys.executable}")


def check_package(name: str, title: str) -> Diagnostic:
    """Return the line of an installed package, by its metadata."""
    version = package_version(name)
    if version:
        return ok(title, version)
    return problem(title, "not installed", f"pip install {name}")


def try_tensorflow() -> TensorFlow:
    """Import TensorFlow in another process and compute something."""
    reply = ask([sys.executable, "-m", "harness.doctor.probes", "tensorflow"], limit_s=_IMPORT_LIMIT_S)
    answers = reply.answers()
    if not answers:
        return TensorFlow(error=reply.last_error)
    if answers[0]["sum"] != 8:
        return TensorFlow(error=f"2 x 2 ones times 2 x 2 ones sum to {answers[0]['sum']}, not 8")
    return TensorFlow(seconds=answers[0]["seconds"], gpus=tuple(answers[0]["gpus"]))


def check_tensorflow(tried: TensorFlow) -> Diagnostic:
    """Return TensorFlow's line."""
    title, version = "TensorFlow", package_version("tensorflow")
    if tried.error:
        found = f"{version or 'not installed'}: cannot be imported: {tried.error}"
        return problem(title, found, "pip install --force-reinstall tensorflow")
    found = f"{version or 'unknown version'}, imported in {tried.seconds:.1f} s"
    if tried.seconds > _SLOW_IMPORT_S:
        return warning(title, found, "every rank imports it: put the environment on a fast local disk")
    return ok(title, found)


def check_compilers(launcher: Path | None) -> Iterator[Diagnostic]:
    """Yield the lines of the C++ compiler and of the MPI library's wrapper beside `launcher`."""
    compiler = shutil.which("c++") or shutil.which("g++")
    fix = "install g++; without it the slower numpy_function bridge sums gradients"
    yield _version("C++ compiler", compiler, fix)
    beside = launcher.parent / "mpicxx" if launcher else None
    wrapper = str(beside) if beside and beside.exists() else None
    yield _version("mpicxx", wrapper, "install the MPI library with its compiler wrappers, and a C++ compiler")


def _version(title: str, path: str | None, fix: str) -> Diagnostic:
    if path is None:
        return warning(title, "not found", fix)
    reply: Reply = ask([path, "--version"], limit_s=30)
    if reply.code != 0:
        return warning(title, f"{path}: {reply.last_error}", fix)
    return ok(title, f"{reply.first_line}, {path}")


def check_commit() -> Diagnostic:
    """Return the line of the checkout that the harness runs from."""
    commit, dirty = git_commit()
    if not commit:
        return ok("git commit", "no checkout: an installed package")
    if dirty:
        return warning("git commit", f"{commit[:12]} with changes", "commit them before measuring for others")
    return ok("git commit", commit[:12])
