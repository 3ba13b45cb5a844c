"""The folder of a launch on its host: it outlives no process that holds it."""

import atexit
import contextlib
import fcntl
import functools
import os
import re
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil

from harness.base import mounts
from harness.base.errors import UserError
from harness.base.host import boot_id, host_name
from harness.base.removal import opened_folder, remove_file, remove_scratch

SCRATCH = "HARNESS_SCRATCH"  # names the folder to the ranks
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"  # to Open MPI: 16 MB a rank
# To mpirun: elsewhere, what a killed one has left makes the next one with its process id fail ("The PMIx server's
# listener thread failed to start").
SESSIONS = "PRTE_MCA_prte_local_tmpdir_base"
SHARED_MEMORY = Path("/dev/shm")  # where Open MPI has its segments by itself
_PREFIX = "harness-launch-"
RANK_PREFIX = "harness-rank-"
"""Of the name of a rank's own folder, in the temporary folder."""
_SEGMENT = re.compile(r"harness-(\d+)-0x[0-9a-f]+")  # of `Group::MapMemory`: the process id of who made it
_YOUNG_S = 60.0  # its ranks may still be opening it, in a container with process ids of its own


class HeldFolder:
    """A new folder that lives as long as the processes that hold it, by a lock of the kernel on the open `handle`.

    One that nobody holds is of a process that was killed: whoever makes another of that prefix there removes it, on
    the same host since its last start. Locks in a folder that several hosts see need not reach the others.
    """

    def __init__(self, place: Path, prefix: str) -> None:
        """Make it in `place`, named from `prefix` on; raise an OSError if there is no such place, or no room in it."""
        remove_dead(place, prefix)
        self._namespace = _mount_namespace()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{host_mark()}", dir=place))
            with contextlib.suppress(FileNotFoundError):
                self.handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                with contextlib.suppress(OSError):  # a network's file system: what is left there stays
                    fcntl.flock(self.handle, fcntl.LOCK_EX)
                if self.path.exists():  # else another command took it for a dead one before it was locked
                    return
                os.close(self.handle)

    def close(self) -> None:
        """Remove the folder, if this process sees the mounts with which it was made."""
        if _mount_namespace() == self._namespace:
            with contextlib.suppress(OSError), opened_folder(self.path.parent) as place:
                remove_scratch(self.path.name, place)
        os.close(self.handle)


def host_mark() -> str:
    """Return what the names of folders on this host, since its last start, have: other hosts may share the place."""
    return f"{host_name()[:24].replace('/', '-')}-{boot_id()[:8]}-"


def _mount_namespace() -> str:
    return str(Path("/proc/self/ns/mnt").readlink())


class Scratch:
    """The folder of a launch, made at once in `place`, where this host has that; `handles` a child keeps it by."""

    def __init__(self, place: Path = SHARED_MEMORY) -> None:
        self._folder: HeldFolder | None = None
        remove_dead_segments(place)
        with contextlib.suppress(OSError):  # no such place, or a full one: files are left where they always are
            self._folder = HeldFolder(place, _PREFIX)

    @property
    def handles(self) -> tuple[int, ...]:
        """The open file that a child keeps the folder by."""
        return (self._folder.handle,) if self._folder else ()

    @property
    def variables(self) -> dict[str, str]:
        """What mpirun and its ranks must find in their environment."""
        return dict.fromkeys((SCRATCH, SEGMENTS, SESSIONS), str(self._folder.path)) if self._folder else {}

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None


@functools.cache
def of_process() -> Scratch:
    """Return this process's own folder, removed at its end; to be closed before an end without exit handlers."""
    scratch = Scratch()
    atexit.register(scratch.close)
    return scratch


def keep_generated_files() -> None:
    """Let TensorFlow write the code that it generates into the launch's own folder, or else this process's.

    It removes such files when a process ends by itself; a rank that is killed would leave them.
    """
    if SCRATCH not in os.environ:
        os.environ.update({name: path for name, path in of_process().variables.items() if name == SCRATCH})
    folder = os.environ.get(SCRATCH)
    if folder:
        from tensorflow.python.autograph.pyct import loader  # who calls this has imported TensorFlow

        loader.tempfile = SimpleNamespace(NamedTemporaryFile=functools.partial(tempfile.NamedTemporaryFile, dir=folder))


def remove_dead(place: Path = SHARED_MEMORY, prefix: str = _PREFIX) -> None:
    """Remove the folders of this host that nobody holds any more; in a tree of a rank's own, nothing."""
    if mounts.is_private():  # a rank's own folder is there, and what is mounted in it
        return
    for folder in place.glob(f"{prefix}{host_mark()}*"):
        with contextlib.suppress(OSError):  # it is held, another user's, or gone meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with opened_folder(place) as place_handle:
                    remove_scratch(folder.name, place_handle)
            finally:
                os.close(handle)


def remove_launch_files() -> None:
    """Remove what killed launches and their ranks have left on this host, in folders of their own."""
    remove_dead()
    remove_dead(Path(tempfile.gettempdir()).resolve(), RANK_PREFIX)


def remove_segments(pids: Collection[int], place: Path = SHARED_MEMORY) -> None:
    """Remove the shared memory that the processes `pids`, which are dead, were opening in `place`."""
    for path, pid in _segments(place):
        if pid in pids:
            with contextlib.suppress(OSError, UserError):
                remove_file(path)


def remove_dead_segments(place: Path = SHARED_MEMORY) -> None:
    """Remove the shared memory that ranks of this user were opening in `place` when they were killed."""
    for path, pid in _segments(place):
        with contextlib.suppress(OSError, UserError):
            created_s = path.lstat().st_ctime
            if created_s < time.time() - _YOUNG_S and not _lived(pid, created_s):
                remove_file(path)


def _segments(place: Path) -> Iterator[tuple[Path, int]]:
    """Yield this user's segments in `place`, each with the process id of who made it."""
    with contextlib.suppress(OSError):
        for path in sorted(place.glob("harness-*")):
            name = _SEGMENT.fullmatch(path.name)
            status = path.lstat() if name else None
            if name and status and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                yield path, int(name[1])


def _lived(pid: int, moment: float) -> bool:
    """Return whether the process of today's `pid` was there at a `moment` (time.time): numbers are used again."""
    try:
        started: float = psutil.Process(pid).create_time()
        return started <= moment
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
