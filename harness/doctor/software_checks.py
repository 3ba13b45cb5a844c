"""The doctor's lines of software: packages, TensorFlow, compilers, the checkout."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base.processes import run_program
from harness.base.provenance import git_commit, package_version
from harness.doctor.diagnostic import Diagnostic, ok, problem, warning

_IMPORT_LIMIT_S = 180.0
_SLOW_IMPORT_S = 20.0


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
    reply = run_program([path, "--version"], limit_s=30)
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
