"""The lock under which one command at a time works on a sweep's folder."""

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from harness.base.errors import UserError
from harness.base.host import boot_id
from harness.base.removal import MARK, make_place, remove_empty_folder, remove_file
from harness.base.setting_names import setting
from harness.schema.sweep_folder import SweepFolder, make_results

# `is_locked` of another terminal holds the lock for a moment: that must not look like a second sweep.
_PATIENCE_S = 0.3
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # a file system without locks
MOUNTS = Path("/proc/self/mountinfo")
# Of mounts whose locks other hosts do not see.
_ONE_HOST_OPTIONS = frozenset(("localflock", "local_lock=flock", "local_lock=all", "nolock"))
_ONE_HOST_KINDS = re.compile(r"beegfs|fuse\..*")
_MOST_BYTES = 200  # of what a holder has written


@contextlib.contextmanager
def hold_sweep(files: SweepFolder) -> Iterator[None]:
    """Hold the sweep of `files` for this process; raise a UserError if another has it, or it cannot be written to.

    The lock file names the holder, and is empty after an orderly end.
    """
    new = not files.path.exists()
    results_are_new = not files.path.parent.exists()
    handle = -1
    try:
        handle = _open_held(files)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()} (boot {boot_id()})".encode(), 0)
    except OSError as error:
        if new:
            _remove_new(files, holds_lock=handle >= 0, results_too=results_are_new)
        if handle >= 0:
            os.close(handle)
        reason = os.strerror(error.errno or 0).lower()
        raise UserError(
            f"{setting('results', files.path.parent)} cannot be used: {reason}; choose another folder"
        ) from error
    try:
        yield
    except UserError:
        if new:  # what was refused leaves nothing
            _remove_new(files, holds_lock=True, results_too=results_are_new)
        raise
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)


def _make_places(files: SweepFolder) -> None:
    """Make the folders of results and of the sweep, which must be new, empty or ours."""
    make_results(files.path.parent)
    make_place(files.path, "the sweep's folder", is_ours=files.study.exists())


def _remove_new(files: SweepFolder, *, holds_lock: bool, results_too: bool) -> None:
    """Remove a sweep's folder in which there is nothing but this process's lock, and that of the results if as new."""
    names = {path.name for path in files.path.iterdir()} if files.path.is_dir() else set()
    if holds_lock and names <= {files.lock.name, MARK}:
        remove_file(files.lock)
    remove_empty_folder(files.path)
    if results_too:
        remove_empty_folder(files.path.parent)


def is_locked(files: SweepFolder) -> bool:
    """Return whether a process works on the sweep of `files` now."""
    try:
        with files.lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return bool(_holder_elsewhere(file.fileno(), files.path))
    except OSError as error:  # else there is no lock, or a file system without: nor can a command hold one there
        return isinstance(error, BlockingIOError)


def _open_held(files: SweepFolder) -> int:
    """Make the sweep's folder, and return its lock file, open and locked by this process."""
    while True:
        _make_places(files)
        handle = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            _take(handle, files.path)
            if os.fstat(handle).st_nlink:  # else a command that was refused has removed it meanwhile
                _refuse_elsewhere(handle, files)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _refuse_elsewhere(handle: int, files: SweepFolder) -> None:
    holder = _holder_elsewhere(handle, files.path)
    if holder:
        raise UserError(
            f"sweep '{files.path.name}' is being run by {holder}, or was when that was killed, and locks of this file "
            f"system do not reach other hosts: end it there, or where nothing of it runs any more delete '{files.lock}'"
        )


def _holder_elsewhere(handle: int, folder: Path) -> str:
    """Return who may still be at work on another host, from which locks do not reach this one; nothing otherwise."""
    text = _written(handle)
    holder, _, boot = text.partition(" (boot ")
    return holder if text and boot.rstrip(")") != boot_id() and _locks_end_at_host(folder) else ""


def _locks_end_at_host(folder: Path) -> bool:
    """Return whether another host that sees `folder` would not see the locks of this one."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in filter(None, MOUNTS.read_text(errors="replace").split("\n")):
        fields, _, file_system = line.partition(" - ")
        if fields.split()[2] != number:
            continue
        kind, _, options = file_system.split(" ", 2)
        words = {*fields.split()[5].split(","), *options.split(",")}
        return bool(words & _ONE_HOST_OPTIONS) or _ONE_HOST_KINDS.fullmatch(kind) is not None
    return False


def _written(handle: int) -> str:
    text = os.pread(handle, _MOST_BYTES, 0).decode(errors="replace")
    return "".join(letter for letter in text if letter.isprintable())


def _take(handle: int, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = _written(handle).partition(" (boot ")[0]
                raise UserError(
                    f"sweep '{folder.name}' is already being run by {holder}: wait for it or end it"
                ) from None
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise UserError(
                f"{setting('results', folder)} is on a file system without locks: choose another folder"
            ) from error
