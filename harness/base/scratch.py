"""A folder of a launch's own, for what its libraries would leave on this host when they are killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

SCRATCH = "HARNESS_SCRATCH"  # names the folder to the ranks
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"  # to Open MPI: 16 MB a rank
_PLACE = Path("/dev/shm")  # where Open MPI has its segments by itself
_PREFIX = "harness-launch-"


class Scratch:
    """The folder, made at once, where this host has a place for it.

    A lock of the kernel says that the launch lives: `handles` is the open file that a child keeps it by. Folders that
    nobody holds are of launches that were killed with their command; the next launch removes them.
    """

    def __init__(self) -> None:
        _remove_dead()
        self._made: tuple[Path, int] | None = None
        with contextlib.suppress(OSError):  # no such place, or a full one: files are left where they always are
            self._made = _make()

    @property
    def handles(self) -> tuple[int, ...]:
        """The open file that a child keeps the folder by."""
        return (self._made[1],) if self._made else ()

    @property
    def variables(self) -> dict[str, str]:
        """What the ranks must find in their environment."""
        return {SCRATCH: str(self._made[0]), SEGMENTS: str(self._made[0])} if self._made else {}

    def close(self) -> None:
        """Remove the folder."""
        if self._made is not None:
            folder, handle = self._made
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)
            self._made = None


def _make() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PLACE))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():  # else another command took it for a dead one before it was locked
                return folder, handle
            os.close(handle)


def _remove_dead() -> None:
    for folder in _PLACE.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is held, another user's, or gone meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(handle)
