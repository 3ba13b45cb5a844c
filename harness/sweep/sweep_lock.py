"""The lock under which one command at a time works on a sweep's folder."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from harness.base.errors import UserError
from harness.base.removal import MARK, make_place, remove_empty_folder, remove_file
from harness.schema.sweep_folder import SweepFolder, make_results

# `is_locked` of another terminal holds the lock for a moment: that must not look like a second sweep.
_PATIENCE_S = 0.3
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # a file system without locks


@contextlib.contextmanager
def hold_sweep(files: SweepFolder) -> Iterator[None]:
    """Hold the sweep of `files` for this process; raise a UserError if another has it, or it cannot be written to."""
    new = not files.path.exists()
    results_are_new = not files.path.parent.exists()
    lock = files.lock
    with contextlib.ExitStack() as stack:
        try:
            _make_places(files)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, handle)
            _take(handle, files.path)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        except OSError as error:
            if new:
                _remove_new(files, results_too=results_are_new)
            reason = os.strerror(error.errno or 0).lower()
            raise UserError(f"RESULTS '{files.path.parent}' cannot be used: {reason}; choose another folder") from error
        try:
            yield
        except UserError:
            if new:  # what was refused leaves nothing
                _remove_new(files, results_too=results_are_new)
            raise


def _make_places(files: SweepFolder) -> None:
    """Make the folders of results and of the sweep, which must be new, empty or ours."""
    make_results(files.path.parent)
    make_place(files.path, "the sweep's folder", is_ours=files.study.exists())


def _remove_new(files: SweepFolder, *, results_too: bool) -> None:
    """Remove a sweep's folder in which there is nothing but its lock, and that of the results if it is as new."""
    names = {path.name for path in files.path.iterdir()} if files.path.is_dir() else set()
    if names <= {files.lock.name, MARK}:
        remove_file(files.lock)
        remove_empty_folder(files.path)
    if results_too:
        remove_empty_folder(files.path.parent)


def is_locked(files: SweepFolder) -> bool:
    """Return whether a process works on the sweep of `files` now."""
    try:
        with files.lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # else there is no lock, or a file system without: nor can a command hold one there
        return isinstance(error, BlockingIOError)
    return False


def _take(handle: int, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(handle, 200, 0).decode(errors="replace")
                raise UserError(
                    f"sweep '{folder.name}' is already being run by {holder}: wait for it or end it"
                ) from None
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise UserError(f"RESULTS '{folder}' is on a file system without locks: choose another folder") from error
