"""What a launch holds of its host: the lock under which it is timed, and a folder that outlives no process."""

import atexit
import contextlib
import fcntl
import functools
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

_log = logging.getLogger(__name__)
_NAMES = ("harness-timed.lock", "harness-next.lock")
_PAUSE_S = 0.2


class HostLock:
    """The right to time something on this host. `handles` are its open files: a child that inherits them keeps it.

    There are two locks of the kernel (flock): who has the first one times, who has the second one is next. So two who
    launch again and again take turns. Both end with the last process that holds them open, however it ends.

    While a command holds the lock (`held`), its own launches have it too.
    """

    _command: "ClassVar[HostLock | None]" = None

    def __init__(self) -> None:
        # Not TMPDIR, which may be a user's own. HARNESS_LOCK_DIR is for containers that share cores and not /tmp.
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
        """Write down what holds the lock, for those who wait: a text and ``(process PID)``."""
        if self._timed is not None:
            with contextlib.suppress(OSError):  # another user's file that is not ours to write: the lock holds
                os.ftruncate(self._timed, 0)
                os.pwrite(self._timed, f"{holder} (process {os.getpid()})".encode(errors="replace"), 0)

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
    try:
        text = path.read_text(errors="replace")[:300] or "another command"
    except OSError:
        text = "another command"
    number = text.rpartition("(process ")[2].rstrip(")")
    if number.isdigit() and not Path(f"/proc/{number}").exists():
        return (
            f"{text}, whose command was killed, still runs on this host: wait, or end it (a sweep's next command does)"
        )
    return f"{text} is being measured on this host"


SCRATCH = "HARNESS_SCRATCH"  # names the folder to the ranks
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"  # to Open MPI: 16 MB a rank
# To mpirun: elsewhere, what a killed one has left makes the next one with its process id fail ("The PMIx server's
# listener thread failed to start").
SESSIONS = "PRTE_MCA_prte_local_tmpdir_base"
_PLACE = Path("/dev/shm")  # where Open MPI has its segments by itself
_PREFIX = "harness-launch-"


class HeldFolder:
    """A new folder that lives as long as the processes that hold it, by a lock of the kernel on the open `handle`.

    One that nobody holds is of a process that was killed: whoever makes another of that prefix there removes it.
    """

    def __init__(self, place: Path, prefix: str) -> None:
        """Make it in `place`, named from `prefix` on; raise an OSError if there is no such place, or no room in it."""
        remove_dead(place, prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            with contextlib.suppress(FileNotFoundError):
                self.handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                with contextlib.suppress(OSError):  # a network's file system: what is left there stays
                    fcntl.flock(self.handle, fcntl.LOCK_EX)
                if self.path.exists():  # else another command took it for a dead one before it was locked
                    return
                os.close(self.handle)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.handle)


class Scratch:
    """The folder of a launch, made at once, where this host has a place for it; `handles` a child keeps it by."""

    def __init__(self) -> None:
        self._made: HeldFolder | None = None
        with contextlib.suppress(OSError):  # no such place, or a full one: files are left where they always are
            self._made = HeldFolder(_PLACE, _PREFIX)

    @property
    def handles(self) -> tuple[int, ...]:
        """The open file that a child keeps the folder by."""
        return (self._made.handle,) if self._made else ()

    @property
    def variables(self) -> dict[str, str]:
        """What mpirun and its ranks must find in their environment."""
        return dict.fromkeys((SCRATCH, SEGMENTS, SESSIONS), str(self._made.path)) if self._made else {}

    def close(self) -> None:
        """Remove the folder."""
        if self._made is not None:
            self._made.close()
            self._made = None


@functools.cache
def of_process() -> Scratch:
    """Return this process's own folder, removed at its end; to be closed before an end without exit handlers."""
    own = Scratch()
    atexit.register(own.close)
    return own


def keep_generated_files() -> None:
    """Let TensorFlow write the code that it generates into the launch's own folder, or else this process's.

    It removes such files when a process ends by itself; a rank that is killed would leave them for ever.
    """
    if SCRATCH not in os.environ:
        os.environ.update({name: path for name, path in of_process().variables.items() if name == SCRATCH})
    folder = os.environ.get(SCRATCH)
    if folder:
        from tensorflow.python.autograph.pyct import loader  # who calls this has imported TensorFlow

        loader.tempfile = SimpleNamespace(NamedTemporaryFile=functools.partial(tempfile.NamedTemporaryFile, dir=folder))


def remove_dead(place: Path = _PLACE, prefix: str = _PREFIX) -> None:
    """Remove the folders that nobody holds any more."""
    for folder in place.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is held, another user's, or gone meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(handle)
