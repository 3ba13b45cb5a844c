"""Checkpoint files of a launch, without TensorFlow and MPI.

A checkpoint is one file, written whole or not at all, verified by a checksum when it is read, and holds numbers only.
"""

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.base.files import read_bytes, write_atomic
from harness.base.removal import remove_file
from harness.schema.point import Point
from harness.schema.record import EpochRecord, Segment, decode, encode
from harness.schema.sweep_folder import ATTEMPTS_FILE, CHECKPOINT_SUFFIX, checkpoint_files

_KEPT = 2  # the newest, and the one to fall back to should that be damaged
_HEADER = "header"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a checkpoint is of: `epoch` whole epochs, recorded in `epochs`, and `step` steps of the next one.

    `global_batch` is in rows over all ranks, `steps_per_epoch` without an epoch's partial batch.
    """

    point: Point
    epoch: int
    step: int
    global_batch: int
    steps_per_epoch: int
    epochs: tuple[EpochRecord, ...]
    written: datetime


def write_checkpoint(folder: Path, header: Header, arrays: Arrays) -> None:
    """Write a checkpoint and remove all but the newest two.

    The file is the SHA-256 of what follows (64 hexadecimal digits and a newline), and NumPy's .npz of `arrays` with
    the header as JSON.

    Raises:
        UserError: the folder cannot be written to or the disk is full; what was there is there still.
    """
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **{_HEADER: np.frombuffer(encode(header), np.uint8)}, **arrays)
    body = content.getbuffer()
    digest = hashlib.sha256(body).hexdigest()
    write_atomic(
        folder / f"{header.epoch:06d}-{header.step:09d}{CHECKPOINT_SUFFIX}", b"%s\n%s" % (digest.encode(), body)
    )
    for old in checkpoint_files(folder)[_KEPT:]:
        remove_file(old)


def read_checkpoint(path: Path) -> tuple[Header, Arrays]:
    """Return what a checkpoint holds; raise a UserError if it cannot be read, is damaged, or is not a checkpoint."""
    digest, _, body = read_bytes(path, "checkpoint").partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise UserError(f"checkpoint '{path}' is cut or damaged: its checksum does not match")
    try:
        with np.lib.npyio.NpzFile(io.BytesIO(body), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = decode(arrays.pop(_HEADER).tobytes(), Header, path)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"checkpoint '{path}' is not one of this harness's: {error}") from error
    return header, arrays


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> tuple[Header, Arrays] | None:
    """Return the newest checkpoint in `folder` that is whole, None without one; `say` gets a sentence on each other."""
    for path in checkpoint_files(folder):
        try:
            return read_checkpoint(path)
        except UserError as error:
            say(f"{error}; the previous one is used")
    return None


def read_attempts(folder: Path) -> tuple[Segment, ...]:
    """Return the attempts noted in `folder`; none where they cannot be read."""
    path = folder / ATTEMPTS_FILE
    try:
        return decode(path.read_bytes(), tuple[Segment, ...], path)
    except (OSError, UserError):
        return ()
