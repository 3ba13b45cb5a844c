"""The code of a bundle: the present source, that of the records' commits, the lock file, and wheels on request."""

import io
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import resource
from harness.base.processes import ask
from harness.base.provenance import git, has_commit
from harness.schema.identity import harness_identity

LOCK = "requirements.lock"
CHANGES = "uncommitted.diff"
_WHEELS_LIMIT_S = 3600.0
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
_CHECKOUT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """What a bundle has of code: a sentence on each file, the `commands` that install it, whether it has `wheels`.

    `setup_s` is what a set-up took in seconds: of the wheels, else of this environment; None where that is not known.
    """

    said: tuple[str, ...]
    commands: tuple[str, ...]
    wheels: bool
    setup_s: float | None


def add_code(root: Path, commits: Iterable[str], *, wheels: bool) -> Code:
    """Write the present source and that of `commits` into ``ROOT/source``, `wheels` into ``ROOT/wheels`` if asked for.

    The source is what git has of this checkout and its uncommitted changes, or the files of the installed package.

    Raises:
        UserError: a wheel cannot be had or does not install, or git cannot tell the source.
    """
    folder, checkout = root / "source", (_CHECKOUT / ".git").exists()
    folder.mkdir()
    said = _of_checkout(folder, commits) if checkout else _of_package(folder, commits)
    name = said[0].partition(":")[0]
    commands = [f"mkdir harness && tar xf source/{name} -C harness --strip-components 1"]
    if (folder / CHANGES).exists():
        commands.append(f"patch -p1 -d harness <source/{CHANGES}")
    if wheels:
        add_wheels(root / "wheels")
        commands = ["pip install --no-deps --no-index --find-links wheels mpi-tf-harness"]
    elif checkout:
        commands.append("pip install --no-deps --no-build-isolation ./harness")
    else:
        commands = [f"tar xf source/{name}", "alias harness='python -m harness'  # in this folder"]
    setup_s = try_wheels(root / "wheels") if wheels else setup_seconds()
    return Code(said=tuple(said), commands=tuple(commands), wheels=wheels, setup_s=setup_s)


def setup_seconds() -> float | None:
    """Return what setting up this environment took (the Makefile notes it), None where that was not noted."""
    try:
        return float((Path(sys.prefix) / ".stamp").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _of_package(folder: Path, commits: Iterable[str]) -> list[str]:
    name = f"harness-{harness_identity()}.tar"
    _tar_package(folder / name)
    return [f"{name}: the installed package that made the bundle", *_lost(sorted({*commits} - {""}))]


def _of_checkout(folder: Path, commits: Iterable[str]) -> list[str]:
    head = git(_CHECKOUT, "rev-parse", "HEAD").out.strip()
    said = [_archive(folder, head, "the source that made the bundle")]
    changes = git(_CHECKOUT, "diff", "--binary", "HEAD").out
    if changes:
        (folder / CHANGES).write_text(changes, encoding="utf-8", errors="surrogateescape")
        said.append(f"{CHANGES}: what differed from that commit when the bundle was made")
    for commit in sorted({*commits} - {head, ""}):
        known = has_commit(_CHECKOUT, commit)
        said += [_archive(folder, commit, "the source of launches")] if known else _lost([commit])
    return said


def _archive(folder: Path, commit: str, what: str) -> str:
    name = f"harness-{commit[:12]}.tar"
    made = git(
        _CHECKOUT, "archive", "--format=tar", f"--prefix=harness-{commit[:12]}/", "-o", str(folder / name), commit
    )
    if made.code != 0:
        raise UserError(f"git cannot archive commit {commit[:12]}: {made.last_error}")
    return f"{name}: {what}, commit {commit}"


def _lost(commits: Iterable[str]) -> list[str]:
    return [f"commit {commit} of some launches is not here: its source is not in the bundle" for commit in commits]


def _tar_package(target: Path) -> None:
    package = Path(__file__).parent.parent
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(files):
            entry = tarfile.TarInfo(f"harness/{path.relative_to(package).as_posix()}")
            content = path.read_bytes()
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def add_wheels(folder: Path) -> None:
    """Write a wheel of the harness and of every distribution in the lock file into `folder`.

    Raises:
        UserError: one cannot be had.
    """
    folder.mkdir()
    pip = [sys.executable, *_PIP]
    lock = str(resource(LOCK))
    own = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(_CHECKOUT)]
    others = [*pip, "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", str(folder)]
    others += ["-r", lock]
    if not (_CHECKOUT / "pyproject.toml").exists():
        raise UserError("--offline needs a checkout, which the harness's own wheel is built from: run it there")
    for command in (own, others):
        made = ask(command, limit_s=_WHEELS_LIMIT_S, changes={"SOURCE_DATE_EPOCH": "315532800"})
        if made.code != 0:
            raise UserError(f"--offline: the wheels cannot be had: {made.last_error}")


def try_wheels(folder: Path) -> float:
    """Return the seconds that the set-up from the wheels in `folder` alone takes; its environment is removed again.

    Raises:
        UserError: one is missing or does not install.
    """
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as name:
        install = [f"{name}/bin/python", *_PIP, "--isolated", "install", "--no-deps", "--no-index"]
        install += ["--find-links", str(folder)]
        began = time.monotonic()
        for command in (
            [sys.executable, "-m", "venv", name],
            [*install, "--require-hashes", "-r", str(resource(LOCK))],
            [*install, "mpi-tf-harness"],
        ):
            made = ask(command, limit_s=_WHEELS_LIMIT_S, changes={"PIP_CONFIG_FILE": os.devnull})
            if made.code != 0:
                raise UserError(f"--offline: the wheels do not install: {made.last_error}")
        return time.monotonic() - began
