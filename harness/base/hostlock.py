"""The lock of a host under which a launch is timed."""

import contextlib
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from harness.base.current_user import user_name
from harness.base.record_words import printable_line

_log = logging.getLogger(__name__)
_NAMES = ("harness-timed.lock", "harness-next.lock")
_PAUSE_S = 0.2
_MOST_BYTES = 120  # of what a holder has written


class HostLock:
    """The right to time something on this host. `handles` are its open files: a child that inherits them keeps it.

    There are two locks of the kernel (flock): who has the first one times, who has the second one is next. So two who
    launch again and again take turns. Both end with the last process that holds them open, however it ends.

    While a command holds the lock (`held`), its own launches have it too.
    """

    _command: "ClassVar[HostLock | None]" = None

    def __init__(self) -> None:
        # Not TMPDIR, which may be a user's own. HARNESS_LOCK_DIR is for containers that share cores and not /tmp, and
        # for who does not want to wait for a lock that is held without end.
        folder = Path(os.environ.get("HARNESS_LOCK_DIR") or "/tmp")
        self._paths = tuple(folder / name for name in _NAMES)
        self._timed: int | None = None
        self._next: int | None = None

    @property
    def handles(self) -> tuple[int, ...]:
        """The open file that a child keeps the lock by."""
        holder = self._command or self
        return () if holder._timed is None else (holder._timed,)

    def take(self) -> str | None:
        """Take the lock and return None, or return who has it, in one sentence. Taking it again is not an error."""
        if self._timed is not None or self._command is not None:
            return None
        try:
            if self._next is None:
                self._next = _locked(self._paths[1])
            if self._next is None:
                return f"waiting: others wait for this host too; {_holder(self._paths[0])}"
            self._timed = _locked(self._paths[0])
        except OSError as error:
            _log.warning("no lock on this host (%s): other sweeps may disturb what is timed", error)
            return None
        if self._timed is None:
            return f"waiting: {_holder(self._paths[0])}"
        os.close(self._next)
        self._next = None
        return None

    def wait(self) -> None:
        """Take the lock, however long that takes."""
        while self.take() is not None:
            time.sleep(_PAUSE_S)

    @contextlib.contextmanager
    def held(self, holder: str, say: Callable[[str], None]) -> Iterator[tuple[int, ...]]:
        """Hold the lock during the block, and say once whom it has to wait for; yield the files for children."""
        try:
            waits = self.take()
            if waits is not None:
                say(waits)
            self.wait()
            self.note_holder(holder)
            HostLock._command = self
            yield self.handles
        finally:
            HostLock._command = None
            self.release()

    def note_holder(self, holder: str) -> None:
        """Write down for those who wait, other users too: `holder`, a word for what it is, the user and the process."""
        if self._timed is not None:
            with contextlib.suppress(OSError):  # another user's file that is not ours to write: the lock holds
                os.ftruncate(self._timed, 0)
                os.pwrite(self._timed, f"{holder} of {user_name()} (process {os.getpid()})".encode(errors="replace"), 0)

    def release(self) -> None:
        """Give the lock and the place in the queue back."""
        if self._timed is not None:
            with contextlib.suppress(OSError):  # as in `note_holder`; else who waits next would be shown what has ended
                os.ftruncate(self._timed, 0)
        for handle in (self._timed, self._next):
            if handle is not None:
                os.close(handle)
        self._timed = self._next = None


def _locked(path: Path) -> int | None:
    """Open the file at `path` and lock it; return None where another has it."""
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return handle


def _open(path: Path) -> int:
    """Open a file that all users lock, without following a link that somebody has laid there.

    First without O_CREAT: Linux refuses that for another user's file in a folder that all can write to
    (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        try:
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask
        except FileExistsError:
            handle = os.open(path, flags)
    except PermissionError:
        handle = os.open(path, flags & ~os.O_RDWR)  # enough to lock
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"'{path}' is not a file")
    return handle


def _holder(path: Path) -> str:
    """Return who has the lock at `path`, by what he has written there: anybody may write that, and anything."""
    text = ""
    with contextlib.suppress(OSError):
        handle = _open(path)
        text = os.pread(handle, _MOST_BYTES, 0).decode(errors="replace")
        os.close(handle)
    holder = printable_line(text, _MOST_BYTES) or "another command"
    way_out = f"HARNESS_LOCK_DIR=FOLDER measures beside whoever holds '{path}'"
    number = holder.rpartition("(process ")[2].rstrip(")")
    if number.isascii() and number.isdecimal() and not Path(f"/proc/{number}").exists():
        return f"{holder}, whose command was killed, still runs on this host: wait, or end it; {way_out}"
    return f"{holder} is being measured on this host; {way_out}"
