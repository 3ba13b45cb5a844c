"""The SHA-256 of data files, kept in the cache while size and time stamp stay the same."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from harness.base.errors import UserError
from harness.base.files import cache_folder, hold_lock_file, make_folder, write_atomic


def file_sha256(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal, from the cache while its size and time stamp are the same.

    Raises:
        UserError: the file cannot be read, or the cache folder cannot be written.
    """
    with _readable(path):
        state = path.stat()
    name = str(path.resolve())
    file_state: dict[str, str | int] = {"path": name, "bytes": state.st_size, "mtime_ns": state.st_mtime_ns}
    cached = cache_folder() / "sha256" / hashlib.sha256(name.encode()).hexdigest()[:24]
    sha256 = _cached_hash(cached, file_state)
    if sha256 is not None:  # before any lock: a cache that somebody else prepared may be read-only
        return sha256
    make_folder(cached.parent)
    with hold_lock_file(cached.with_suffix(".lock")):  # ranks that start together: one reads, the others wait
        sha256 = _cached_hash(cached, file_state)
        if sha256 is None:
            with _readable(path), path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            write_atomic(cached, msgspec.json.encode({**file_state, "sha256": sha256}))
    return sha256


def _cached_hash(cached: Path, file_state: Mapping[str, str | int]) -> str | None:
    """Return the hash that is kept of a file in this state, None if there is none or the file has changed since."""
    try:
        content = msgspec.json.decode(cached.read_bytes(), type=dict[str, str | int])
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    sha256 = content.pop("sha256", None)
    return str(sha256) if sha256 and content == file_state else None


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"data file '{path}' cannot be read: {os.strerror(error.errno or 0).lower()}") from error
