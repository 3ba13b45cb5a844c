"""What would run: a hash of all code and versions that decide how a launch trains and how fast.

It is one of two identities. This one tells whether a finished launch still answers the question: after an edit or an
upgrade it does not. The workload (`Sweep.name`), by which launches are compared over time, has none of it.
"""

import ast
import functools
import hashlib
import platform
from collections.abc import Iterator
from importlib.machinery import PathFinder, all_suffixes
from importlib.util import find_spec
from itertools import chain, starmap
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import read_bytes, resource
from harness.base.provenance import package_version
from harness.schema.workload import Workload

_BESIDE_RANKS = frozenset(
    {
        "analysis",
        "bench",
        "bundle",
        "claims",
        "cli",
        "doctor",
        "prediction",
        "probe",
        "regression",
        "report",
        "sweep",
        "why",
    }
)
"""Rooms that change no number of a launch. A new room counts.

They read what launches wrote, or launch something else; `cli` makes a command's words into the values that a point
has, which are a part of its key; `sweep` plans, submits and watches jobs.
"""
_STARTS_RANKS = frozenset(
    {"block_program.py", "fork_server.py", "launch_command.py", "referee.py", "turn_block.py", "warm_python.py"}
)
"""The modules of `sweep` that count all the same: they bind ranks to cores, and say which steps are timed, and when."""
_SOURCES = (".py", ".cc", ".h")
_read = functools.partial(read_bytes, fix="what it holds decides what is trained")
_PACKAGES = ("tensorflow", "tensorflow-cpu", "tf-nightly", "keras", "mpi4py")


def code_identity(workload: Workload, mpi: str) -> str:
    """Return ``SOURCE-VERSIONS``: twelve hexadecimal digits of `source_identity` and twelve of the versions.

    Those are of Python, TensorFlow, Keras, mpi4py and the MPI library `mpi` (`harness.comm.mpi_library.mpi_version`).

    Raises:
        UserError: a file of the user's code cannot be read.
    """
    versions = [platform.python_version(), mpi, *map(package_version, _PACKAGES)]
    return f"{source_identity(workload)}-{_digest(versions)}"


def source_identity(workload: Workload) -> str:
    """Return twelve digits of the harness's source and of the user's: script or MODEL, SYNC, OPTIMIZER, and imports.

    Followed are import statements that lead to files in the script's own folder, in the working directory, or
    in the package of a MODEL that is installed. What code imports or reads in another way is not seen.

    Raises:
        UserError: a file of the user's code cannot be read.
    """
    return _digest([harness_identity(), *chain.from_iterable(starmap(_hashes, user_files(workload)))])


def check_source(workload: Workload, code: str) -> None:
    """Raise a UserError if the source of a launch, planned as `code`, has changed since."""
    if code and source_identity(workload) != code.partition("-")[0]:
        raise UserError(
            "the harness, the script or MODEL was changed after this launch was planned, its record would be of "
            "neither state: give the sweep command again"
        )


@functools.cache
def harness_identity() -> str:
    """Return twelve digits of the harness's own source: every file that can change a number of a launch.

    These are the rooms that ranks run, the modules that start them, and the templates of job scripts.
    """
    package = Path(__file__).parent.parent
    templates = resource("jobs/templates")
    files = [path for path in package.rglob("*") if path.suffix in _SOURCES]
    counted = [path for path in files if _changes_numbers(path.relative_to(package).parts)]
    return _digest([*_hashes(package, counted), *_hashes(templates, templates.iterdir())])


def _changes_numbers(place: tuple[str, ...]) -> bool:
    """Return whether a file of the package, at `place` in it, can change what a launch measures."""
    room = place[0]
    return room not in _BESIDE_RANKS or (room == "sweep" and place[1] in _STARTS_RANKS)


def user_files(workload: Workload) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the user's own files that would run, with the folder they are found in; nothing is imported."""
    if workload.script:
        script = workload.script.path
        yield script.parent, _follow([script], script.parent, "")
        return
    for name in workload.own_modules:
        root = _root(name)
        if root is not None:  # else it is not to be found, which its import will say
            package = "" if root == Path.cwd() else name.partition(".")[0]
            yield root, _follow(list(_resolve(name, root)), root, package)


def _root(name: str) -> Path | None:
    """Return the folder from which module `name` would be imported, without importing anything."""
    top = name.partition(".")[0]
    try:
        spec = PathFinder.find_spec(top, [str(Path.cwd())]) or find_spec(top)
    except ValueError:  # __main__ is no file
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve().parent
    return Path(spec.origin).resolve().parent if spec.has_location and spec.origin else None


def _follow(files: list[Path], root: Path, package: str) -> list[Path]:
    """Return `files` and all that they import from `root`; with `package`, of that package only."""
    followed: dict[Path, None] = {}
    while files:
        path = files.pop()
        if path in followed:
            continue
        followed[path] = None
        for name in _imports(path, root) if path.suffix == ".py" else ():
            top = name.partition(".")[0]
            if top != "harness" and (not package or top == package):
                files += _resolve(name, root)
    return list(followed)


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Yield the names of the modules that a file's import statements may mean."""
    try:
        tree = ast.parse(_read(path))
    except (SyntaxError, ValueError):
        return  # the launch itself will say so
    package = path.relative_to(root).parent.parts if path.is_relative_to(root) else ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)


def _resolve(name: str, root: Path) -> Iterator[Path]:
    """Yield the files under `root` that importing the module `name` runs: its packages' and its own."""
    place = root
    for part in name.split("."):
        place /= part
        beside = [place.with_name(part + suffix) for suffix in all_suffixes()]
        yield from (path for path in (place / "__init__.py", *beside) if path.is_file())
        if not place.is_dir():
            return


def _hashes(folder: Path, files: "Iterator[Path] | list[Path]") -> list[str]:
    """Return name and hash of every file, in an order that does not depend on where the folder is."""
    named = {path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name: path for path in files}
    return [f"{name} {hashlib.sha256(_read(named[name])).hexdigest()}" for name in sorted(named)]


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def script_id(script: Path) -> str:
    """Return the SHA-256 of the script's text; raise a UserError if it cannot be read."""
    return hashlib.sha256(_read(script)).hexdigest()
