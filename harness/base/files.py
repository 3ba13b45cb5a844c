"""Files and folders that appear whole or not at all, those that travel with the package, and the cache."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import psutil

from harness.base.current_user import base_folder, can_be_written, temporary_folder
from harness.base.errors import UserError
from harness.base.user_path import expanded

_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EFBIG}


def resource(name: str) -> Path:
    """Return the path of a file shipped with the harness, such as ``jobs/templates/local.sh.j2``.

    An installed wheel carries them in ``harness/_resources``; a checkout has them at its top level.
    """
    package = Path(__file__).parent.parent
    installed = package / "_resources" / name
    return installed if installed.exists() else package.parent / name


@contextlib.contextmanager
def user_errors(field: str, path: Path) -> Iterator[None]:
    """Turn the operating system's refusal (full disk, no permission) into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        reason = os.strerror(error.errno).lower()
        raise UserError(f"{field} '{path}' cannot be written: {reason}; choose another folder") from error


def read_bytes(path: Path, what: str = "", fix: str = "") -> bytes:
    """Return what the file at `path` holds; raise a UserError that names it, with the `fix`, if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        sentence = f"{what} '{path}' cannot be read: {error.strerror}".lstrip()
        raise UserError(f"{sentence}; {fix}" if fix else sentence) from error


def umask() -> int:
    """Return what the user withholds from others, all of it where the kernel does not say.

    `os.umask` would set it for a moment, for all threads.
    """
    for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], base=8)
    return 0o077


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write `content` to `path` by way of a temporary name, so that no reader ever sees half a file.

    Raises:
        UserError: the folder cannot be written to or the disk is full; `path` is as it was before.
    """
    with file_atomic(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def file_atomic(path: Path, field: str = "output file") -> Iterator[BinaryIO]:
    """Yield an open file of a temporary name that becomes `path` when the block ends without an error.

    Raises:
        UserError: the folder cannot be written to or the disk is full; it names `field`, and `path` is as it was.
    """
    with user_errors(field, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            Path(name).chmod(0o666 & ~umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def folder_atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that becomes `path` when the block ends without an error.

    An existing `path` is replaced. On any error the temporary folder is removed and `path` is untouched.

    Raises:
        UserError: the parent folder cannot be written to or the disk is full.
    """
    with user_errors("output folder", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        staging.chmod(0o777 & ~umask())
    try:
        with user_errors("output folder", path):
            yield staging
            if path.exists():
                shutil.rmtree(path)
            staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return $HARNESS_CACHE_DIR, else $XDG_CACHE_HOME/mpi-tf-harness, else ~/.cache/mpi-tf-harness.

    For a user without a home that can be written to, it is a folder of their own below the temporary one. That is
    logged, and kept in $HARNESS_CACHE_DIR for all that this process starts.

    Raises:
        UserError: there is no home, and no temporary folder either.
    """
    named = os.environ.get("HARNESS_CACHE_DIR")
    if named:
        return expanded(named)
    base = base_folder("XDG_CACHE_HOME", ".cache")
    if base is not None and (os.environ.get("XDG_CACHE_HOME") or can_be_written(base / "mpi-tf-harness")):
        return base / "mpi-tf-harness"
    folder = temporary_folder()
    _log.warning("no home that can be written to: the cache is '%s'; HARNESS_CACHE_DIR names another", folder)
    os.environ["HARNESS_CACHE_DIR"] = str(folder)
    return folder


def discard(part: str) -> int:
    """Remove the cache's folder `part` and return its bytes, 0 without; raise a UserError if it cannot be removed."""
    folder = cache_folder() / part
    if not folder.is_dir():
        return 0
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    with user_errors("cache folder", folder):
        gone = folder.rename(folder.with_name(f".{part}.{os.getpid()}"))  # at once: nobody finds half of it
        shutil.rmtree(gone)
    return size


def make_folder(folder: Path, field: str = "cache folder", fix: str = "remove it") -> Path:
    """Create `folder`, the cache's or another `field`, and return it; raise a UserError if it cannot be created."""
    try:
        with user_errors(field, folder):
            folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"{field} '{folder}' cannot be made: a file is in its way; {fix}") from error
    return folder


@contextlib.contextmanager
def hold_lock_file(path: Path) -> Iterator[None]:
    """Hold the exclusive lock file `path` during the block.

    A file system without locks is noted in the log and goes on: `publish` keeps the result right.
    """
    make_folder(path.parent)
    with user_errors("lock file", path), path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _log.warning("no lock on '%s' (%s): ranks may prepare the data more than once", path, error.strerror)
        yield


@contextlib.contextmanager
def publish_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` at the end, unless another process was first.

    Renaming a folder onto one that has content fails, on any file system: the first stays as it is, so nobody who has
    it open loses it. On an error nothing is left.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    parent = make_folder(folder.parent)
    prefix = f".{folder.name}.{socket.gethostname()}."
    for old in parent.glob(f"{prefix}*"):  # what killed processes of this machine left of the same folder
        pid = old.name.removeprefix(prefix).partition(".")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    with user_errors("cache folder", parent):
        staging = Path(tempfile.mkdtemp(dir=parent, prefix=f"{prefix}{os.getpid()}."))
    try:
        with user_errors("cache folder", folder):
            yield staging
            staging.chmod(0o777 & ~umask())
            try:
                staging.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
                _log.info("'%s' was prepared by another process meanwhile", folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def publish_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a temporary folder that becomes `folder`, if that is not there yet.

    Processes that start together write once: the others wait at a lock, and where locks do not work the first to
    finish wins. Nothing is locked where the folder is there: a cache that somebody else prepared may be read-only.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    if not folder.exists():
        with hold_lock_file(folder.with_name(f"{folder.name}.lock")):
            if not folder.exists():
                with publish_folder(folder) as staging:
                    write(staging)
