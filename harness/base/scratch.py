"""The folder of a launch on its host: it outlives no process that holds it."""

import atexit
import contextlib
import errno
import fcntl
import functools
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from harness.base import mounts

SCRATCH = "HARNESS_SCRATCH"  # names the folder to the ranks
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"  # to Open MPI: 16 MB a rank
# To mpirun: elsewhere, what a killed one has left makes the next one with its process id fail ("The PMIx server's
# listener thread failed to start").
SESSIONS = "PRTE_MCA_prte_local_tmpdir_base"
_PLACE = Path("/dev/shm")  # where Open MPI has its segments by itself
_PREFIX = "harness-launch-"


class HeldFolder:
    """A new folder that lives as long as the processes that hold it, by a lock of the kernel on the open `handle`.

    One that nobody holds is of a process that was killed: whoever makes another of that prefix there removes it, on
    the same host since its last start.
    """

    def __init__(self, place: Path, prefix: str) -> None:
        """Make it in `place`, named from `prefix` on; raise an OSError if there is no such place, or no room in it."""
        remove_dead(place, prefix)
        self._namespace = _mount_namespace()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix + _host_mark(), dir=place))
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
                remove_tree(self.path.name, place)
        os.close(self.handle)


def _host_mark() -> str:
    """Return what the names of folders on this host, since its last start, have: other hosts may share the place."""
    host = os.uname().nodename[:24].replace("/", "-")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return f"{host}-{boot}-"


def _mount_namespace() -> str:
    return str(Path("/proc/self/ns/mnt").readlink())


class Scratch:
    """The folder of a launch, made at once, where this host has a place for it; `handles` a child keeps it by."""

    def __init__(self) -> None:
        self._folder: HeldFolder | None = None
        with contextlib.suppress(OSError):  # no such place, or a full one: files are left where they always are
            self._folder = HeldFolder(_PLACE, _PREFIX)

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


def remove_dead(place: Path = _PLACE, prefix: str = _PREFIX) -> None:
    """Remove the folders of this host that nobody holds any more; in a tree of a rank's own, nothing."""
    if mounts.is_private():  # a rank's own folder is there, and what is mounted in it
        return
    for folder in place.glob(f"{prefix}{_host_mark()}*"):
        with contextlib.suppress(OSError):  # it is held, another user's, or gone meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with opened_folder(place) as place_handle:
                    remove_tree(folder.name, place_handle)
            finally:
                os.close(handle)


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Yield a descriptor of `folder`; raise an OSError where that is none."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def remove_tree(name: str, place: int) -> None:
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
        _empty(handle)
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=place)


def _empty(folder: int) -> None:
    """Remove what is in the open `folder`, whose file system and mount nothing of it may leave."""
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # whoever made it has removed it meanwhile
            _remove_entry(name, folder)


def _remove_entry(name: str, folder: int) -> None:
    """Remove a file, a link or a folder in the open `folder`."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    inner = _open_inner(name, folder)
    try:
        _empty(inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _open_inner(name: str, folder: int) -> int:
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
