"""Where the writes of ranks above 0 go: each into a file tree of its own (`private_tree`), or none of them.

Where one rank cannot have its tree, the launch ends before the script starts, with a sentence that names the choices.
Scripts that see their ranks themselves, and launches with `--shared-files`, write the real files on all ranks.
"""

import ast
import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.base.current_user import home_folder
from harness.base.errors import UserError
from harness.base.files import cache_folder
from harness.base.processes import run_program
from harness.transparent.private_tree import PrivateTree, TreePlaces

# What a script imports, as its text says it: nothing is run.

_HOROVOD = "horovod"


def imports_horovod(script: Path) -> bool:
    """Tell whether a script, or a file beside it that it imports by name, imports Horovod."""
    waiting = [script]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        names = set(_imported_names(file))
        if _HOROVOD in names:
            return True
        beside = [script.parent / f"{name}.py" for name in sorted(names)]
        waiting += [path for path in beside if path.is_file() and path not in seen]
    return False


def _imported_names(file: Path) -> Iterator[str]:
    """Yield the first names of the modules that a file imports; none of a file that is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):  # Python says so when it runs the file
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


# Renames between mounts of a rank's own tree that one process would make within one file system: by a copy.
#
# The kernel renames nothing from one mount to another, nor a folder below an overlay (EXDEV), and a rank's tree has
# more mounts than the tree that everybody sees.


class CrossingRenames:
    """Replaces `os.rename` and `os.replace`; `is_one_place` tells whether all of two folders is in one file system."""

    def __init__(self, is_one_place: Callable[[Path, Path], bool]) -> None:
        self._is_one_place = is_one_place

    def install(self) -> None:
        """Put the replacements in place, for child processes too."""
        for name in ("rename", "replace"):
            setattr(os, name, partial(self._rename, getattr(os, name)))

    def _rename(self, original: Callable[..., None], source: Any, target: Any, **folders: int | None) -> None:
        try:
            original(source, target, **folders)
        except OSError as error:
            if error.errno != errno.EXDEV or any(folder is not None for folder in folders.values()):
                raise
            old, new = (Path(os.path.abspath(os.fsdecode(path))) for path in (source, target))  # noqa: PTH100 - links
            if not self._is_one_place(old.parent, new.parent):
                raise
            _move(original, old, new)


def _move(rename: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    """Copy `source` beside `target`, put the copy in its place as the kernel allows it, and remove `source`."""
    copy = target.with_name(f".{target.name}.{os.getpid()}")
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, copy, symlinks=True)
    else:
        shutil.copy2(source, copy, follow_symlinks=False)
    try:
        rename(copy, target)
    except OSError:
        _remove(copy)
        raise
    _remove(source)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


WITNESS = "HARNESS_WITNESS"
"""Environment variable of a witness, whose standard input is the way to rank 0.

It names the script and the folder of the ranks' output, one a line.
"""

PERMISSIONS = (
    "permit user namespaces and overlays (sysctl user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container --security-opt seccomp=unconfined or "
    "--cap-add SYS_ADMIN)"
)
"""What gives each rank its tree where the kernel or a container refuses that."""

_TRIAL = """
import tempfile
from pathlib import Path
from harness.transparent.private_tree import PrivateTree, TreePlaces
try:
    PrivateTree().show(TreePlaces(top=Path(tempfile.gettempdir()).resolve()))
except OSError as error:
    raise SystemExit(error.strerror or str(error))
"""

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "SLURM_PROCID")
_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFiles:
    """What a process has: where its own files are, or why it has none (`refusal`).

    `unfrozen` folders could not be copied, in `read_only` ones it can write nothing. `is_in_memory`: what it writes
    outside of the copied folders is in memory, and is gone with the process.
    """

    place: str = ""
    refusal: str = ""
    unfrozen: Sequence[str] = ()
    read_only: Sequence[str] = ()
    is_in_memory: bool = False


class _Process:
    """What this process has entered."""

    files: RankFiles | None = None
    tree: PrivateTree | None = None


def enter(script: Path, logs: Path, *, keep: str = "") -> RankFiles:
    """Give this process, rank above 0 or witness, files of its own if that is possible; once.

    It is to have one thread. `logs` is made, and stays the real folder. `keep` names the process where its files are to
    outlast it.
    """
    if _Process.files is None:
        _Process.files = _enter(script, logs, keep)
    return _Process.files


def leave() -> None:
    """See the real files again: the script sees to its ranks itself."""
    if _Process.tree is not None:
        _Process.tree.leave()


def sees_ranks(script: Path, arguments: Sequence[str]) -> bool:
    """Tell whether the script, given these `arguments`, may see to its ranks itself, and so to their files."""
    return any("horovod" in word for word in arguments) or imports_horovod(script)


def rank_by_environment() -> int | None:
    """Return this process's rank as its launcher says it, None where none does: MPI has not been started yet."""
    texts = (os.environ.get(name) for name in _RANK_VARIABLES)
    return next((int(text) for text in texts if text and text.isdecimal()), None)


def namespace_refusal() -> str:
    """Return why this machine has no file tree for each rank, empty where it has: a process of its own tries it."""
    reply = run_program([sys.executable, "-c", _TRIAL], folder=_PACKAGE.parent, limit_s=30.0)
    return "" if reply.code == 0 else reply.last_error


def check_trees(refusals: Sequence[str]) -> None:
    """Check that every rank above 0 has its tree; `refusals` say why not, empty where one has.

    Raises:
        UserError: one has none.
    """
    refusal = next(filter(None, refusals), "")
    if refusal:
        raise UserError(
            f"ranks above 0 have no file tree of their own here ({refusal}): {PERMISSIONS}, let all ranks write the "
            "real files, as plain mpirun does, by --shared-files (in a sweep SHARED_FILES=1), or run the script with "
            "-n 1"
        )


def refused_write(rank: int, error: BaseException) -> UserError | None:
    """Return what to show for an `error` of a script, if it cannot write something in this rank's own tree."""
    has_tree = _Process.files is not None and bool(_Process.files.place)
    if not has_tree or not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EROFS):
        return None
    return UserError(
        f"rank {rank} cannot write '{error.filename}' in its own file tree ({error.strerror}): what it changes is "
        f"copied into '{tempfile.gettempdir()}', so set TMPDIR to a folder with room for it, keep to folders that are "
        "not read-only for ranks above 0, or let all ranks write the real files by --shared-files"
    )


def kept_sentence(rank: int, files: RankFiles) -> str:
    """Return what of a rank's files is kept, and where."""
    if files.is_in_memory:
        return (
            f"what rank {rank} writes in the folders that are copied at its start is kept in {files.place}; what it "
            "writes elsewhere is in memory and is not kept: set TMPDIR to a folder on a local disk"
        )
    return f"what rank {rank} writes is kept in {files.place}"


def _enter(script: Path, logs: Path, keep: str) -> RankFiles:
    try:
        tree = PrivateTree()
        tree.show(rank_places(script, logs), keep=keep)
    except OSError as error:
        return RankFiles(refusal=error.strerror or str(error))
    _Process.tree = tree
    CrossingRenames(tree.is_one_place).install()
    return RankFiles(
        place=f"{os.uname().nodename}:{tree.scratch}",
        unfrozen=tuple(str(folder) for folder in tree.unfrozen if folder not in tree.read_only),
        read_only=tuple(map(str, tree.read_only)),
        is_in_memory=tree.is_in_memory,
    )


def rank_places(script: Path, logs: Path) -> TreePlaces:
    """Return which folders a rank of `script` sees as they are now, and which it shares with all ranks.

    Raises:
        OSError: `logs` cannot be made, or has in it what the script writes.
    """
    home = home_folder()
    keras = os.environ.get("KERAS_HOME") or (home / ".keras" if home else None)
    deep = [Path.cwd(), script.absolute().parent, *([Path(keras)] if keras else [])]
    shallow = [Path(tempfile.gettempdir()), Path("/tmp"), *([home] if home else [])]
    deep = [folder.resolve() for folder in deep]
    shallow = [folder.resolve() for folder in shallow]
    logs.mkdir(parents=True, exist_ok=True)
    logs = logs.resolve()
    if any(folder.is_relative_to(logs) for folder in deep):
        raise OSError(f"the folder of the ranks' output, '{logs}', is not apart from the script's")
    shared = [logs, *_folders_of_harness(), *_folders_of_mpi([*shallow, Path("/run")])]
    apart = [folder for folder in shared if not _has_any(folder, (*deep, *shallow))]
    return TreePlaces(deep=deep, shallow=shallow, shared=apart)


def _has_any(folder: Path, places: Sequence[Path]) -> bool:
    """Tell whether any of `places` is `folder` or below it."""
    return any(place.is_relative_to(folder) for place in places)


def _folders_of_harness() -> list[Path]:
    """Return where the ranks find what rank 0 makes ready for all: compiled operations, prepared data."""
    folders = [_PACKAGE]
    with contextlib.suppress(OSError, UserError):
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        folders.append(cache.resolve())
    return folders


def _folders_of_mpi(temporary: Sequence[Path]) -> list[Path]:
    """Return the folders in which the MPI library's processes meet: what its variables name below `temporary` ones."""
    named = {value for name, value in os.environ.items() if name.startswith(_MPI) and value.startswith("/")}
    folders = sorted({Path(value).resolve() for value in named if Path(value).is_dir()})
    return [folder for folder in folders if folder not in temporary and not set(temporary).isdisjoint(folder.parents)]
