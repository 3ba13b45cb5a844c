"""Files that appear whole or not at all, and the ones that travel with the package."""

import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from harness.base.errors import UserError

_ASKED = threading.Lock()
_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EFBIG}


def resource(name: str) -> Path:
    """Return the path of a file shipped with the harness, such as ``jobs/templates/local.sh.j2``.

    An installed wheel carries them in ``harness/_resources``; a checkout has them at its top level.
    """
    package = Path(__file__).parent.parent
    installed = package / "_resources" / name
    return installed if installed.exists() else package.parent / name


@contextlib.contextmanager
def user_errors(field: str, path: Path) -> Iterator[None]:
    """Turn the operating system's refusal (full disk, no permission) into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        reason = os.strerror(error.errno).lower()
        raise UserError(f"{field} '{path}' cannot be written: {reason}; choose another folder") from error


def umask() -> int:
    """Return what the user withholds from others; asking sets it, so that threads ask one after the other."""
    with _ASKED:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write `content` to `path` by way of a temporary name, so that no reader ever sees half a file.

    Raises:
        UserError: the folder cannot be written to or the disk is full; `path` is as it was before.
    """
    with file_atomic(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def file_atomic(path: Path, field: str = "output file") -> Iterator[BinaryIO]:
    """Yield an open file of a temporary name that becomes `path` when the block ends without an error.

    Raises:
        UserError: the folder cannot be written to or the disk is full; it names `field`, and `path` is as it was.
    """
    with user_errors(field, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            Path(name).chmod(0o666 & ~umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def folder_atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that becomes `path` when the block ends without an error.

    An existing `path` is replaced. On any error the temporary folder is removed and `path` is untouched.

    Raises:
        UserError: the parent folder cannot be written to or the disk is full.
    """
    with user_errors("output folder", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        staging.chmod(0o777 & ~umask())
    try:
        with user_errors("output folder", path):
            yield staging
            if path.exists():
                shutil.rmtree(path)
            staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
