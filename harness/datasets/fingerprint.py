"""SHA-256 of source files, remembered so that an 8 GB file is not read at every start."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.datasets.cache import cache_folder, locked, make_folder
from harness.errors import UserError
from harness.files import write_atomic


@dataclass(frozen=True, kw_only=True, slots=True)
class _Memo:
    path: str
    bytes: int
    mtime_ns: int
    sha256: str


def file_sha256(path: Path, cache: Path | None = None) -> str:
    """Return the file's SHA-256 in hexadecimal, from the cache while its size and time stamp are the same.

    Raises:
        UserError: the file cannot be read, or the cache folder cannot be written.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise UserError(f"data file '{path}' cannot be read: {os.strerror(error.errno or 0).lower()}") from error
    place = str(path.resolve())
    memo_file = (cache or cache_folder()) / "sha256" / hashlib.sha256(place.encode()).hexdigest()[:24]
    memo = _read(memo_file, place, state)
    if memo is not None:  # before any lock: a cache that somebody else prepared may be read-only
        return memo.sha256
    make_folder(memo_file.parent)
    with locked(memo_file.with_suffix(".lock")):  # ranks that start together: one reads, the others wait
        memo = _read(memo_file, place, state)
        if memo is None:
            memo = _Memo(path=place, bytes=state.st_size, mtime_ns=state.st_mtime_ns, sha256=_hash(path))
            write_atomic(memo_file, msgspec.json.encode(memo))
    return memo.sha256


def _read(memo_file: Path, place: str, state: os.stat_result) -> _Memo | None:
    """Return what is remembered of the file, None if that is nothing or the file has changed since."""
    try:
        memo = msgspec.json.decode(memo_file.read_bytes(), type=_Memo)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    same = (memo.path, memo.bytes, memo.mtime_ns) == (place, state.st_size, state.st_mtime_ns)
    return memo if same else None


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"data file '{path}' cannot be read: {os.strerror(error.errno or 0).lower()}") from error
