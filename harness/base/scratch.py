"""Folders that outlive no process: for what a launch, a rank or its libraries would leave here when they are killed."""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

SCRATCH = "HARNESS_SCRATCH"  # names the folder to the ranks
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"  # to Open MPI: 16 MB a rank
_PLACE = Path("/dev/shm")  # where Open MPI has its segments by itself
_PREFIX = "harness-launch-"


class HeldFolder:
    """A new folder that lives as long as the processes that hold it, by a lock of the kernel on the open `handle`.

    One that nobody holds is of a process that was killed: whoever makes another of that prefix there removes it.
    """

    def __init__(self, place: Path, prefix: str) -> None:
        """Make it in `place`; its name begins with `prefix`.

        Raises:
            OSError: there is no such place, or no room in it.
        """
        remove_dead(place, prefix)
        self.path, self.handle = _make(place, prefix)

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
        """What the ranks must find in their environment."""
        return dict.fromkeys((SCRATCH, SEGMENTS), str(self._made.path)) if self._made else {}

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


def _make(place: Path, prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # a network's file system: what is left there stays
                fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():  # else another command took it for a dead one before it was locked
                return folder, handle
            os.close(handle)


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
