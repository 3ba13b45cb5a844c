"""Files and folders that appear whole or not at all, those that travel with the package, and the cache."""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from harness.base import removal
from harness.base.current_user import base_folder, can_be_written, expanded, temporary_folder
from harness.base.errors import UserError

CACHE_PARTS = ("prepared", "images", "sha256", "data", "native", "matplotlib")
_CACHE = "mpi-tf-harness"
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = """Signature: 8a477f597d28d172789f06886806bc55
# The cache of mpi-tf-harness: all below is made again when it is needed, and `harness data clean` removes it.
"""
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


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file; raise an OSError where it cannot be read."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


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
        UserError: the folder cannot be written to, the disk is full, or `path` is a link, a folder or another user's
            file; it names `field`, and `path` is as it was.
    """
    with user_errors(field, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        removal.check_file(path, field)
        handle, staging = removal.new_staging_file(path)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~removal.umask()
            staging.chmod(mode)
            removal.replace_file(staging, path, field)
        except BaseException:
            removal.remove_file(staging)
            raise


@contextlib.contextmanager
def folder_atomic(path: Path, field: str = "output folder") -> Iterator[Path]:
    """Yield a temporary folder beside `path` that becomes `path` when the block ends without an error.

    A finished folder of ours with nothing else in it is replaced. On any error the temporary folder is removed and
    `path` is as it was.

    Raises:
        UserError: the parent folder cannot be written to, the disk is full, or `path` is not ours; it names `field`.
    """
    removal.remove_left(path.parent, only=path.name, ended_only=True)
    removal.check_folder(path, field)
    with user_errors(field, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = removal.new_staging_folder(path)
    try:
        with user_errors(field, path):
            yield staging
            removal.finish_folder(staging)
            try:
                removal.replace_folder(staging, path, field)
            except UserError as error:  # it was checked before: somebody has written there meanwhile
                beside = removal.keep_beside(staging, path)
                raise UserError(f"{error}; what was to be there is in '{beside}'") from error
    except BaseException:
        with contextlib.suppress(OSError, UserError):
            removal.remove_folder(staging, below=path.parent)
        raise


_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder ``mpi-tf-harness`` in $HARNESS_CACHE_DIR, else in $XDG_CACHE_HOME, else in ~/.cache.

    For a user without a home that can be written to, it is a folder of their own below the temporary one. That is
    logged, and kept in $HARNESS_CACHE_DIR for all that this process starts.

    Raises:
        UserError: there is no home, and no temporary folder either.
    """
    named = os.environ.get("HARNESS_CACHE_DIR")
    if named:
        return expanded(named) / _CACHE
    base = base_folder("XDG_CACHE_HOME", ".cache")
    if base is not None and (os.environ.get("XDG_CACHE_HOME") or can_be_written(base / _CACHE)):
        return base / _CACHE
    folder = temporary_folder()
    _log.warning("no home that can be written to: the cache is '%s'; HARNESS_CACHE_DIR names another", folder)
    os.environ["HARNESS_CACHE_DIR"] = str(folder)
    return folder / _CACHE


def make_cache() -> Path:
    """Make the cache where there is none, with the tag that says what it is (https://bford.info/cachedir), return it.

    Raises:
        UserError: it cannot be made, or a folder of its name has something else in it.
    """
    folder = cache_folder()
    tag = folder / _TAG
    with user_errors("cache folder", folder):
        if tag.exists():
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        removal.remove_left(folder, ended_only=True)
        others = sorted(entry.name for entry in folder.iterdir() if entry.name not in (*CACHE_PARTS, _TAG))
        if others:
            raise UserError(
                f"cache folder '{folder}' has '{others[0]}' in it, which the harness did not make: "
                "name another folder by HARNESS_CACHE_DIR"
            )
        with contextlib.suppress(PermissionError):  # somebody has prepared it for all, for reading
            tag.write_text(_TAG_TEXT, encoding="ascii")
    return folder


def discard(part: str) -> int:
    """Remove the cache's folder `part` and return its bytes, 0 without.

    Raises:
        UserError: it cannot be removed, or something in it is not ours.
    """
    folder = make_cache() / part
    if not folder.is_dir():
        return 0
    with user_errors("cache folder", folder):
        return removal.remove_contents(folder)


def make_folder(folder: Path, field: str = "cache folder", fix: str = "remove it") -> Path:
    """Create `folder`, the cache's or another `field`, and return it; raise a UserError if it cannot be created."""
    try:
        if folder.is_relative_to(cache_folder()):
            make_cache()
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
    removal.remove_left(parent, ended_only=True)
    with user_errors("cache folder", parent):
        staging = removal.new_staging_folder(folder)
    try:
        with user_errors("cache folder", folder):
            yield staging
            removal.finish_folder(staging)
            if not removal.publish_staging(staging, folder):
                _log.info("'%s' was prepared by another process meanwhile", folder)
    finally:
        with contextlib.suppress(OSError, UserError):
            removal.remove_folder(staging, below=parent)


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
