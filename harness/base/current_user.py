"""Who runs this, where their folders are, and paths as users write them."""

import logging
import os
import pwd
import stat
import tempfile
from pathlib import Path
from typing import Any

import click

from harness.base.errors import UserError

# Who runs this and where their folders are, also where nothing says so.
#
# In a container a process often has a number that is in no passwd file, and neither HOME nor USER. Everything that
# asks for the user's name or folders asks here.

_log = logging.getLogger(__name__)
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # in the order of Python's getpass


def user_name() -> str:
    """Return the user's name, else their number in decimal digits."""
    for variable in _NAMES:
        name = os.environ.get(variable)
        if name:
            return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def home_folder() -> Path | None:
    """Return the user's home, None where there is none: no $HOME and no entry in the passwd file, or no such folder."""
    try:
        home = Path.home()
    except RuntimeError:  # pathlib's, where nothing names one
        return None
    return home if home.is_absolute() and home.is_dir() else None


def settle_home() -> None:
    """Give this process, and all that it starts, a $HOME where nothing names one.

    Open MPI's mpirun ends without one, and other libraries make a folder called ``~``. It is logged.

    Raises:
        UserError: there is no temporary folder for it either.
    """
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = str(temporary_folder())
        _log.warning("no HOME, and no user of number %d: HOME is '%s'", os.getuid(), os.environ["HOME"])


def base_folder(variable: str, below_home: str) -> Path | None:
    """Return the folder that an XDG `variable` names, else `below_home`; None where there is no home either."""
    named = os.environ.get(variable)
    if named:
        return Path(named)
    home = home_folder()
    return None if home is None else home / below_home


def can_be_written(folder: Path) -> bool:
    """Return whether `folder` is there, or can be made: the nearest folder above it that is there can be written to."""
    if folder.is_dir():
        return True  # read-only too: somebody may have prepared it
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def temporary_folder() -> Path:
    """Return this user's own folder, which others cannot write to, below the temporary one; it is made here.

    Raises:
        UserError: there is no temporary folder, or something of another user's has that name.
    """
    fix = "set HARNESS_CACHE_DIR to a folder of your own"
    try:
        folder = Path(tempfile.gettempdir()) / f"mpi-tf-harness-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError as error:
        raise UserError(f"no folder for temporary files can be written ({error.strerror or error}): {fix}") from error
    is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022
    if not is_ours:
        raise UserError(f"'{folder}' is not a folder that only you can write to: {fix}")
    return folder


# Paths as users write them: ``~`` is their home also where no shell has seen it, as after ``DATA=`` of make.


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return `path` with the home that ``~`` or ``~name`` at its beginning stands for.

    What is there under the name as it is written stays, as does the home of a user whom nobody knows.
    """
    written = Path(path)
    if written.exists():
        return written
    try:
        return written.expanduser()
    except RuntimeError:
        return written


class UserPath(click.Path):
    """The type of options and arguments that are paths."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = super().convert(value, param, ctx)
        return expanded(path) if isinstance(path, Path) else path
