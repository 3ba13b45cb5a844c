"""The cache folder: where it is, a lock for the ranks of one node, and folders that appear once and whole."""

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from harness.base.errors import UserError
from harness.base.files import umask, user_errors

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return $HARNESS_CACHE_DIR, else $XDG_CACHE_HOME/mpi-tf-harness, else ~/.cache/mpi-tf-harness."""
    own = os.environ.get("HARNESS_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mpi-tf-harness"


def discard(part: str) -> int:
    """Remove the folder `part` of the cache and return how many bytes it had, 0 where it is not there.

    Raises:
        UserError: it cannot be removed.
    """
    folder = cache_folder() / part
    if not folder.is_dir():
        return 0
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    with user_errors("cache folder", folder):
        gone = folder.rename(folder.with_name(f".{part}.{os.getpid()}"))  # at once: nobody finds half of it
        shutil.rmtree(gone)
    return size


def make_folder(folder: Path) -> Path:
    """Create the cache's `folder` and return it.

    Raises:
        UserError: it cannot be created.
    """
    try:
        with user_errors("cache folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"cache folder '{folder}' cannot be made: a file is in its way; remove it") from error
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
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
def publish(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` at the end, unless another process was first.

    Renaming a folder onto one that has content fails, on any file system: the first stays as it is, so
    nobody who has it open loses it. On an error nothing is left behind.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    parent = make_folder(folder.parent)
    prefix = f".{folder.name}.{socket.gethostname()}."
    _sweep(parent, prefix)
    with user_errors("cache folder", parent):
        staging = Path(tempfile.mkdtemp(dir=parent, prefix=f"{prefix}{os.getpid()}."))
    try:
        with user_errors("cache folder", folder):
            yield staging
            staging.chmod(0o777 & ~umask())
            _rename(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _rename(staging: Path, folder: Path) -> None:
    try:
        staging.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        _log.info("'%s' was prepared by another process meanwhile", folder)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what killed processes of this machine left of the same folder."""
    for old in parent.glob(f"{prefix}*"):
        pid = old.name.removeprefix(prefix).partition(".")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
