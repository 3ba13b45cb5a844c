"""The code in a bundle: the source that made it, that of the launches, and how a stranger installs it."""

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.base.provenance import git, has_commit
from harness.schema.code_identity import harness_identity

CHANGES = "uncommitted.diff"
LOCK = "requirements.lock"
_CHECKOUT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledCode:
    """What a bundle has of code: a sentence on each file, and the `commands` that install it."""

    descriptions: tuple[str, ...]
    commands: tuple[str, ...]


def add_code(root: Path, commits: Sequence[str]) -> BundledCode:
    """Write the present source and that of `commits` into ``ROOT/source``.

    The source is what git has of this checkout and its uncommitted changes, or the files of the installed package.

    Raises:
        UserError: git cannot archive the source.
    """
    folder = root / "source"
    folder.mkdir()
    from_checkout = (_CHECKOUT / ".git").exists()
    descriptions = _of_checkout(folder, commits) if from_checkout else _of_package(folder, commits)
    archive = descriptions[0].partition(":")[0]
    if from_checkout:
        commands = [f"mkdir harness && tar xf source/{archive} -C harness --strip-components 1"]
        if (folder / CHANGES).exists():
            commands.append(f"patch -p1 -d harness <source/{CHANGES}")
        commands.append("pip install --no-deps --no-build-isolation ./harness")
    else:
        commands = [f"tar xf source/{archive}", "alias harness='python -m harness'  # in this folder"]
    return BundledCode(descriptions=tuple(descriptions), commands=tuple(commands))


def _of_package(folder: Path, commits: Sequence[str]) -> list[str]:
    """Archive the files of the installed package; return a sentence on each archive and on each commit without one."""
    name = f"harness-{harness_identity()}.tar"
    package = Path(__file__).parent.parent
    with tarfile.open(folder / name, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                entry = tarfile.TarInfo(f"harness/{path.relative_to(package).as_posix()}")
                entry.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(entry, content)
    return [f"{name}: the installed package that made the bundle", *map(_without_source, commits)]


def _of_checkout(folder: Path, commits: Sequence[str]) -> list[str]:
    """Archive what git has of this checkout and of `commits`; return a sentence on each."""
    head = git(_CHECKOUT, "rev-parse", "HEAD").out.strip()
    descriptions = [_archive_commit(folder, head, "the source that made the bundle")]
    changes = git(_CHECKOUT, "diff", "--binary", "HEAD").out
    if changes:
        (folder / CHANGES).write_text(changes, encoding="utf-8", errors="surrogateescape")
        descriptions.append(f"{CHANGES}: what differed from that commit when the bundle was made")
    for commit in commits:
        if commit == head:
            continue
        if has_commit(_CHECKOUT, commit):
            descriptions.append(_archive_commit(folder, commit, "the source of launches"))
        else:
            descriptions.append(_without_source(commit))
    return descriptions


def _archive_commit(folder: Path, commit: str, what: str) -> str:
    name = f"harness-{commit[:12]}"
    words = ["archive", "--format=tar", f"--prefix={name}/", "-o", f"{folder / name}.tar", commit]
    reply = git(_CHECKOUT, *words)
    if reply.code != 0:
        raise UserError(f"git cannot archive commit {commit[:12]}: {reply.last_error}")
    return f"{name}.tar: {what}, commit {commit}"


def _without_source(commit: str) -> str:
    return f"commit {commit} of some launches is not here: its source is not in the bundle"
