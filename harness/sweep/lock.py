"""One command at a time works on a sweep; the operating system frees the lock of a process that died."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from harness.errors import UserError

LOCK_FILE = ".lock"
# `is_locked` of another terminal holds the lock for a moment: that must not look like a second sweep.
_PATIENCE_S = 0.3


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the sweep in `folder` for this process.

    Raises:
        UserError: another process holds it, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise UserError(f"RESULTS '{folder.parent}' cannot be used: {reason}; choose another folder") from error
    try:
        _take(handle, folder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Tell whether a process works on the sweep in `folder` now."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
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
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            raise UserError(f"RESULTS '{folder}' is on a file system without locks: choose another folder") from error
