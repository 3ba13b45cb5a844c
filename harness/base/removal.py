"""Removing and replacing files and folders: no other module does either.

The harness removes only what it has made. A folder that it makes has a file `MARK`, which says what is ours in it:

| kind of folder | its mark | what may be removed |
|---|---|---|
| staging | names the process that writes it | all of it: its hidden name is ours alone |
| finished | lists every file that was written into it | the folder, while it has nothing else in it |
| place | says that ours are put there, beside others | nothing of it as a whole |

Nothing here goes through a link, removes a mount point or a folder with a mount below it, or touches what another user
owns. What is refused is refused before anything is removed.
"""

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from harness.base import mounts
from harness.base.current_user import home_folder
from harness.base.errors import UserError
from harness.base.host import ProcessPlace, boot_id, host_name

MARK = ".mpi-tf-harness"
_ATTRIBUTE = "user.mpi-tf-harness"  # of files
_STAGING = ".harness-"  # between the name of what is written and eight letters of mkstemp's
_STAGING_NAME = re.compile(r"\.(.+)\.harness-[a-z0-9_]{8}(\.before)?", re.DOTALL)
_NOBODYS = frozenset(
    (".DS_Store", ".gitignore", ".gitkeep", "lost+found")
)  # what a folder has that is empty for people
_BEFORE = ".before"  # ends the name of a folder that is being replaced
_MARK_BYTES = 16 * 2**20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # see renameat2(2)
_libc = ctypes.CDLL(None)


class FolderKind(StrEnum):
    """What a folder with a mark is."""

    STAGING = "staging"
    FINISHED = "finished"
    PLACE = "place"


class FolderMark(msgspec.Struct, frozen=True, kw_only=True):
    """What a mark says: the `files` of a finished folder relative to it, or who writes one that is not finished."""

    kind: FolderKind
    files: tuple[str, ...] = ()
    host: str = ""
    boot: str = ""
    process: int = 0


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why something may not be removed: `path` is what stands against it."""

    path: Path
    reason: str


def check_folder(folder: Path, field: str) -> None:
    """Refuse a folder that is to be written anew: it must be new, empty, or a finished one with nothing else in it.

    Raises:
        UserError: it is a file, a link, a mount point, the working or home folder, another user's, or it holds what
            the harness has not written.
    """
    fault = _fault_of_new_folder(folder)
    if fault is not None:
        raise UserError(f"{field} '{folder}' is not used: {_sentence(fault)}; name a new or empty folder")


def check_new_folder(folder: Path, field: str) -> None:
    """Refuse, before work begins, a folder that could not be written at its end: `check_folder`, and a trial beside it.

    Raises:
        UserError: as `check_folder`, or nothing can be written there, or its name is too long.
    """
    check_folder(folder, field)
    nearest = next(parent for parent in folder.absolute().parents if os.path.lexists(parent))
    try:
        trial = new_staging_folder(nearest / folder.name)
        _remove_tree(trial)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UserError(f"{field} '{folder}' cannot be written: {reason}; name another folder") from error


def check_file(path: Path, field: str) -> None:
    """Refuse a file that is to be written anew: it must be new, or a plain file of this user.

    Raises:
        UserError: it is a link, a folder, a device, or another user's.
    """
    fault = _fault_of_file(path)
    if fault is not None:
        raise UserError(f"{field} '{path}' is not written: {_sentence(fault)}; name another file")


def check_output(path: Path, field: str) -> None:
    """Refuse a file that a user names for output: it must be new, empty, or written by the harness.

    Raises:
        UserError: it is anything else.
    """
    check_file(path, field)
    if path.exists() and path.stat().st_size and not _is_own_file(path):
        raise UserError(
            f"{field} '{path}' is there and was not written by the harness: name another file, or remove it first"
        )


def check_place(folder: Path, field: str) -> None:
    """Refuse a folder in which others are to be made: it must be new, empty, or have the mark of ours.

    Raises:
        UserError: it is a file, or holds what the harness has not made.
    """
    if not os.path.lexists(folder) or _read_mark(folder) is not None:
        return
    if not folder.is_dir():
        raise UserError(f"{field} '{folder}' is not a folder: name a new or empty one")
    entries = {entry.name for entry in folder.iterdir()} - _NOBODYS
    names = sorted(name for name in entries if not name.startswith(f"{MARK}{_STAGING}"))  # another rank's mark
    if names and _read_mark(folder) is None:  # no other rank has made it meanwhile
        raise UserError(
            f"{field} '{folder}' has '{names[0]}' in it, which the harness did not make: name a new or empty folder"
        )


def make_place(folder: Path, field: str, *, is_ours: bool = False) -> None:
    """Make a folder in which others are made, with its mark; one that has a mark stays as it is.

    `is_ours`: what is in it shows that the harness made it, so that it gets its mark whatever else is there.

    Raises:
        UserError: as `check_place`.
        OSError: the file system refuses.
    """
    if not is_ours:
        check_place(folder, field)
    folder.mkdir(parents=True, exist_ok=True)
    if _read_mark(folder) is None:
        _write_mark(folder, FolderMark(kind=FolderKind.PLACE))


def new_staging_folder(target: Path) -> Path:
    """Make a folder beside `target` for its content, ``.NAME.harness-XXXXXXXX``, and return it.

    Raises:
        OSError: the file system refuses.
    """
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{_STAGING}"))
    try:
        _write_mark(
            staging,
            FolderMark(kind=FolderKind.STAGING, host=host_name(), boot=boot_id(), process=os.getpid()),
        )
    except OSError:
        staging.rmdir()
        raise
    return staging


def finish_folder(staging: Path) -> None:
    """Mark a staging folder as finished, with the list of its files, and bring all of it to the disk.

    Raises:
        OSError: the disk is full.
    """
    entries = list(_walk(staging))
    files = [path.relative_to(staging).as_posix() for path in entries if not _is_folder(path)]
    _write_mark(staging, FolderMark(kind=FolderKind.FINISHED, files=tuple(sorted(set(files) - {MARK}))))
    staging.chmod(0o777 & ~umask())
    for path in (*entries, staging):
        _sync(path)


def replace_folder(staging: Path, target: Path, field: str) -> None:
    """Put the finished folder `staging` in the place of `target`, and remove what was there.

    The two change names in one step of the kernel, so that a process that is killed leaves the old one or the new one
    whole under its name. A file system that cannot do that renames twice; between the two the old one has the name of
    the staging folder and ``.before``, and `remove_left` gives it its own back.

    Raises:
        UserError: as `check_folder`.
        OSError: the file system refuses; `target` is as it was.
    """
    check_folder(target, field)
    if not target.exists():
        staging.rename(target)
        _sync(target.parent)
        return
    staging.chmod(stat.S_IMODE(target.stat().st_mode))
    old = staging
    if _exchange(staging, target):
        fault = _fault_of_new_folder(old)
        if fault is not None:  # somebody has written there since it was checked
            _exchange(staging, target)
            raise UserError(f"{field} '{target}' is not replaced: {_sentence(fault)}; name a new or empty folder")
    else:
        old = staging.with_name(f"{staging.name}{_BEFORE}")
        target.rename(old)
        try:
            staging.rename(target)
        except BaseException:
            old.rename(target)
            raise
    _sync(target.parent)
    with contextlib.suppress(OSError):  # a file in use on a network's file system: `remove_left` takes it later
        _remove_tree(old)


def keep_beside(staging: Path, target: Path) -> Path:
    """Give the finished folder `staging` a free name beside `target`, which cannot be replaced; return it.

    Raises:
        OSError: the file system refuses.
    """
    number = 2
    while os.path.lexists(target.with_name(f"{target.name}-{number}")):
        number += 1
    beside = target.with_name(f"{target.name}-{number}")
    staging.rename(beside)
    return beside


def publish_staging(staging: Path, target: Path) -> bool:
    """Give the finished folder `staging` its name `target`; return False where another process has been first.

    Raises:
        OSError: the file system refuses.
    """
    try:
        staging.rename(target)  # onto a folder that has content it fails, on any file system
    except OSError:
        if not target.is_dir():
            raise
        return False
    _sync(target.parent)
    return True


def new_staging_file(target: Path) -> tuple[int, Path]:
    """Open a new file beside `target` for its content, ``.NAME.harness-XXXXXXXX``; return its descriptor and path.

    Raises:
        OSError: the file system refuses.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}{_STAGING}")
    return handle, Path(name)


def replace_file(staging: Path, target: Path, field: str) -> None:
    """Put the file `staging`, which this process has written, in the place of `target`.

    Raises:
        UserError: as `check_file`.
        OSError: the file system refuses; `target` is as it was.
    """
    check_file(target, field)
    with contextlib.suppress(OSError):  # a file system without attributes: `check_output` takes it for another's
        os.setxattr(staging, _ATTRIBUTE, b"1")
    staging.replace(target)


def move(path: Path, target: Path) -> None:
    """Give a file or folder of ours another name, which must be free.

    Raises:
        UserError: it is a link or another user's.
        OSError: there is none, the file system refuses, or something has that name.
    """
    fault = _fault_of_kind(path, is_folder=path.is_dir())
    if fault is not None:
        raise UserError(f"'{path}' is not moved: {_sentence(fault)}; move it yourself")
    if os.path.lexists(target):
        raise FileExistsError(f"'{target}' exists")
    path.rename(target)


def remove_file(path: Path) -> None:
    """Remove a plain file of this user, which the harness has written.

    Raises:
        UserError: it is a link, a folder, a device, or another user's.
        OSError: the file system refuses.
    """
    fault = _fault_of_file(path)
    if fault is not None:
        raise _not_removed(path, _sentence(fault))
    path.unlink(missing_ok=True)


def remove_empty_folder(folder: Path) -> bool:
    """Remove a folder that has nothing but a mark in it; return whether it is gone. A link stays, as does a mount."""
    if not _is_folder(folder):
        return False
    try:
        entries = list(folder.iterdir())
        if any(entry.name != MARK and not entry.name.startswith(f"{MARK}{_STAGING}") for entry in entries):
            return False
        for entry in entries:
            entry.unlink(missing_ok=True)
        folder.rmdir()
    except FileNotFoundError:  # another rank has removed it meanwhile
        return True
    except OSError:  # it is in use, a mount point, or somebody has written there meanwhile
        return False
    return True


def remove_folder(folder: Path, *, below: Path) -> None:
    """Remove a staging or finished folder of ours that lies below the folder `below`; nothing where there is none.

    Raises:
        UserError: it is not ours, or has something else in it; nothing is removed.
        OSError: the file system refuses.
    """
    if not os.path.lexists(folder):
        return
    if below.resolve() not in (folder.parent.resolve() / folder.name).parents:
        raise _not_removed(folder, f"it does not lie in '{below}'")
    fault = _fault_of_tree(folder) or _fault_of_mark(folder, may_be_staging=bool(_STAGING_NAME.fullmatch(folder.name)))
    if fault is not None:
        raise _not_removed(folder, _sentence(fault))
    _remove_tree(folder)


def remove_contents(folder: Path) -> int:
    """Remove all that is in a folder of which all is ours, such as a part of the cache; return its bytes.

    Raises:
        UserError: it is a link, has a mount below it, or something of another user's; nothing is removed.
        OSError: the file system refuses.
    """
    fault = _fault_of_tree(folder)
    if fault is not None:
        raise _not_removed(folder, _sentence(fault))
    size = sum(path.lstat().st_size for path in _walk(folder) if not _is_folder(path))
    aside = new_staging_folder(folder)
    folder.rename(aside / folder.name)  # at once: nobody finds half of it
    _remove_tree(aside)
    return size


def remove_left(place: Path, *, only: str | None = None, keep: Collection[str] = (), ended_only: bool = False) -> None:
    """Remove what killed processes have left unfinished in the folder `place`: staging folders and staging files.

    With `only`, of the folder or file of that name. `keep` has the names of what is being written now. With
    `ended_only` what a process may still be writing stays: staging folders of another host, and all staging files.
    What cannot be removed stays. A folder that was being replaced gets its name back.
    """
    if not _is_folder(place):
        return
    for path in sorted(place.glob(f".*{_STAGING}*")):
        staging_name = _STAGING_NAME.fullmatch(path.name)
        if staging_name is None:
            continue
        name = staging_name[1]
        if name in keep or only not in (None, name):
            continue
        with contextlib.suppress(OSError, UserError):
            if path.name.endswith(_BEFORE) and not os.path.lexists(place / name):
                move(path, place / name)
            elif _is_folder(path):
                mark = _read_mark(path)
                has_ended = False
                if mark is not None:
                    has_ended = ProcessPlace(host=mark.host, boot=mark.boot, process=mark.process).has_ended
                if not ended_only or has_ended:
                    remove_empty_folder(path)  # killed before it had a mark, or when its mark was to go
                    remove_folder(path, below=place)
            elif not ended_only:
                remove_file(path)


def _remove_tree(folder: Path) -> None:
    """Remove a folder whose mark allows it, the mark last: what a kill leaves is still known for ours."""
    content = [entry for entry in folder.iterdir() if entry.name != MARK]
    for entry in content:
        if _is_folder(entry):
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (folder / MARK).unlink(missing_ok=True)
    folder.rmdir()


def _exchange(first: Path, second: Path) -> bool:
    """Have two folders change names in one step; return False where the file system cannot do that."""
    if not hasattr(_libc, "renameat2"):
        return False
    status: int = _libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return status == 0


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Yield a descriptor of `folder`; raise an OSError where that is none."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def remove_scratch(name: str, place: int) -> None:
    """Remove the folder `name` of the open folder `place`: a real folder of this user's own, that nobody else may open.

    What was opened before a mount does not see what it shows. Links are removed and not followed.

    Raises:
        OSError: it is not such a folder, something is mounted at it or below it, or something cannot be removed.
    """
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
    try:
        state = os.fstat(handle)
        if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) != 0o700:
            raise PermissionError(errno.EPERM, "not a folder of this user's own", name)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        is_mounted = any(point.path.is_relative_to(path) for point in mounts.mount_points())
        if is_mounted or mounts.mount_number(handle) != mounts.mount_number(place):
            raise OSError(errno.EBUSY, "something is mounted there", name)
        _empty_scratch(handle)
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=place)


def _empty_scratch(folder: int) -> None:
    """Remove what is in the open `folder`, whose file system and mount nothing of it may leave."""
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # whoever made it has removed it meanwhile
            _remove_scratch_entry(name, folder)


def _remove_scratch_entry(name: str, folder: int) -> None:
    """Remove a file, a link or a folder in the open `folder`."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    inner = _open_scratch_folder(name, folder)
    try:
        _empty_scratch(inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _open_scratch_folder(name: str, folder: int) -> int:
    """Open a folder in the open `folder` to empty it, also one that nobody may read, as an overlay has.

    Raises:
        OSError: it is a link, or something is mounted there.
    """
    flags = os.O_DIRECTORY | os.O_NOFOLLOW
    entry = os.open(name, os.O_PATH | flags, dir_fd=folder)
    try:
        state = os.fstat(entry)
        is_apart = state.st_dev != os.fstat(folder).st_dev or mounts.mount_number(entry) != mounts.mount_number(folder)
        if is_apart:
            raise OSError(errno.EBUSY, "something is mounted there", name)
        if state.st_uid == os.geteuid() and state.st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{entry}", 0o700)  # noqa: PTH101 - the very folder, whatever has its name now
        return os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(entry)


def _read_mark(folder: Path) -> FolderMark | None:
    """Return what the mark of `folder` says, None where there is none that we understand."""
    try:
        handle = os.open(folder / MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        try:
            return msgspec.json.decode(file.read(_MARK_BYTES), type=FolderMark)
        except (OSError, msgspec.DecodeError):
            return None


def _write_mark(folder: Path, mark: FolderMark) -> None:
    """Write the mark of `folder`, whole or not at all."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=f"{MARK}{_STAGING}")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(mark))
        Path(name).chmod(0o644)
        Path(name).replace(folder / MARK)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all that is in `folder` and below it; links are not followed."""
    with os.scandir(folder) as entries:
        paths = sorted(Path(entry.path) for entry in entries)
    for path in paths:
        yield path
        if _is_folder(path):
            yield from _walk(path)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_own_file(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, _ATTRIBUTE))
    except OSError:
        return False


def _fault_of_kind(path: Path, *, is_folder: bool) -> _Fault | None:
    """Return why `path` is no folder, or no plain file, of this user."""
    state = path.lstat()
    if stat.S_ISLNK(state.st_mode):
        return _Fault(path, "is a link")
    if is_folder and not stat.S_ISDIR(state.st_mode):
        return _Fault(path, "is not a folder")
    if not is_folder and not stat.S_ISREG(state.st_mode):
        return _Fault(path, "is not a plain file")
    if state.st_uid != os.geteuid():
        return _Fault(path, "belongs to another user")
    return None


def _fault_of_file(path: Path) -> _Fault | None:
    return _fault_of_kind(path, is_folder=False) if os.path.lexists(path) else None


def _fault_of_tree(folder: Path) -> _Fault | None:
    """Return why `folder` with all below it is not ours to remove, whatever its mark says."""
    fault = _fault_of_kind(folder, is_folder=True)
    if fault is not None:
        return fault
    real = folder.resolve()
    mounted = [point.path for point in mounts.mount_points() if point.path.is_relative_to(real)]
    if mounted:
        return _Fault(mounted[0], "is a mount point")
    device = folder.lstat().st_dev
    for path in _walk(folder):
        state = path.lstat()
        if state.st_uid != os.geteuid():
            return _Fault(path, "belongs to another user")
        if stat.S_ISDIR(state.st_mode) and state.st_dev != device:  # files of an overlay may be on several
            return _Fault(path, "is on another file system")
    return None


def _fault_of_mark(folder: Path, *, may_be_staging: bool = False) -> _Fault | None:
    """Return what the mark of `folder` does not allow to be removed."""
    mark = _read_mark(folder)
    if mark is None or (mark.kind is FolderKind.STAGING and not may_be_staging):
        return _Fault(folder, "was not made by the harness")
    if mark.kind is FolderKind.PLACE:
        return _Fault(folder, "may hold what the harness did not make")
    if mark.kind is FolderKind.FINISHED:
        files = {*mark.files, MARK}
        for path in _walk(folder):
            if not _is_folder(path) and path.relative_to(folder).as_posix() not in files:
                return _Fault(path, "was not written by the harness")
    return None


def _fault_of_new_folder(folder: Path) -> _Fault | None:
    """Return why `folder` may not be written anew."""
    if not os.path.lexists(folder):
        return None
    if folder.name in ("", "..") or folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        return _Fault(folder, "is the working folder or above it")
    fault = _fault_of_tree(folder)
    if fault is not None:
        return fault
    if not any(folder.iterdir()):
        home = home_folder()
        is_home = home is not None and folder.resolve() == home.resolve()
        return _Fault(folder, "is the home folder") if is_home else None
    return _fault_of_mark(folder)


def _sentence(fault: _Fault) -> str:
    return f"'{fault.path}' {fault.reason}"


def _not_removed(path: Path, reason: str) -> UserError:
    return UserError(f"'{path}' is not removed: {reason}; remove it yourself")


def umask() -> int:
    """Return what this process withholds from others; asking the system for it by setting it would show in threads."""
    for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def _sync(path: Path) -> None:
    """Bring a file or folder to the disk; where a file system does not know that, nothing is done."""
    if path.is_symlink():
        return
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
