"""Where the writes of ranks above 0 go: each into a file tree of its own (`private_tree`), or none of them.

Where one rank cannot have its tree, the launch ends before the script starts, with a sentence that names the choices.
Scripts that see their ranks themselves, and launches with `--shared-files`, write the real files on all ranks.
"""

import contextlib
import errno
import os
import select
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from harness.base.current_user import home_folder
from harness.base.errors import UserError
from harness.base.files import cache_folder
from harness.base.setting_names import setting
from harness.transparent.private_files.crossing_renames import CrossingRenames
from harness.transparent.private_files.private_tree import PrivateTree, TreePlaces

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

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "SLURM_PROCID")
_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
_PACKAGE = Path(__file__).resolve().parents[2]


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


class Entered:
    """What this process has entered: the files that it sees, and the tree in which they are."""

    files: RankFiles | None = None
    tree: PrivateTree | None = None


def enter(script: Path, logs: Path, *, keep: str = "") -> RankFiles:
    """Give this process, rank above 0 or witness, files of its own if that is possible; once.

    It is to have one thread. `logs` is made, and stays the real folder. `keep` names the process where its files are to
    outlast it.
    """
    if Entered.files is None:
        Entered.files = _enter(script, logs, keep)
    return Entered.files


def enter_as_witness(script: Path, logs: Path) -> None:
    """Give this process, a witness, files of its own; rank 0, at the other end of standard input, is told, and waits.

    Where that is not possible, the process ends.
    """
    files = enter(script, logs)
    if files.refusal:
        sys.exit(f"no file tree of its own: {files.refusal}")
    with Connection(os.dup(0)) as line:
        line.send(files.place)


def leave() -> None:
    """See the real files again: the script sees to its ranks itself."""
    if Entered.tree is not None:
        Entered.tree.leave()


def rank_by_environment() -> int | None:
    """Return this process's rank as its launcher says it, None where none does: MPI has not been started yet."""
    texts = (os.environ.get(name) for name in RANK_VARIABLES)
    return next((int(text) for text in texts if text and text.isdecimal()), None)


def namespace_refusal(limit_s: float = 30.0) -> str:
    """Return why this machine has no file tree for each rank, empty where it has: a child process tries it.

    It is killed after `limit_s` seconds: a file server may not answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _try_tree(writing)
    os.close(writing)
    with os.fdopen(reading) as answer:
        has_ended = bool(select.select([answer], [], [], limit_s)[0])
        refusal = answer.read() if has_ended else ""
    if not has_ended:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return refusal or (f"exit code {code}" if code else "")


def _try_tree(answer: int) -> NoReturn:
    """Be the child that tries to have a file tree of its own, and say by `answer` why it has none."""
    code = 1
    try:
        PrivateTree().show(TreePlaces(top=Path(tempfile.gettempdir()).resolve()))
        code = 0
    except OSError as error:
        os.write(answer, (error.strerror or str(error)).encode())
    finally:
        os._exit(code)


def shared_files_words() -> str:
    """Return by which switches all ranks write the real files: no witness runs then, which `harness run` asks about."""
    return f"--shared-files --unjudged (in a sweep {setting('shared_files', True)})"


def check_trees(refusals: Sequence[str]) -> None:
    """Check that every rank above 0 has its tree; `refusals` say why not, empty where one has.

    Raises:
        UserError: one has none.
    """
    refusal = next(filter(None, refusals), "")
    if refusal:
        raise UserError(
            f"ranks above 0 have no file tree of their own here ({refusal}): {PERMISSIONS}, let all ranks write the "
            f"real files, as plain mpirun does, by {shared_files_words()}, or run the script with -n 1"
        )


def refused_write(rank: int, error: BaseException) -> UserError | None:
    """Return what to show for an `error` of a script, if it cannot write something in this rank's own tree."""
    has_tree = Entered.files is not None and bool(Entered.files.place)
    if not has_tree or not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EROFS):
        return None
    return UserError(
        f"rank {rank} cannot write '{error.filename}' in its own file tree ({error.strerror}): what it changes is "
        f"copied into '{tempfile.gettempdir()}', so set TMPDIR to a folder with room for it, keep to folders that are "
        f"not read-only for ranks above 0, or let all ranks write the real files by {shared_files_words()}"
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
    Entered.tree = tree
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
