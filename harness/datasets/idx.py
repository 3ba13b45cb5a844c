"""The idx format of MNIST: a big-endian header, then unsigned bytes (LeCun's page, "file formats")."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.errors import UserError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with `dims` dimensions, gzip-compressed or not.

    Raises:
        UserError: the file is no such idx file, or is shorter or longer than its header says.
    """
    content = _content(path)
    magic = _UNSIGNED_BYTE << 8 | dims
    header = 4 + 4 * dims
    if len(content) < header:
        raise UserError(f"'{path}' is cut: {len(content)} bytes are less than an idx header; fetch it again")
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise UserError(f"'{path}' starts with 0x{found:08x}, not the idx magic number 0x{magic:08x}: fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dims, offset=4))
    expected = header + math.prod(shape)
    if len(content) != expected:
        state = "cut" if len(content) < expected else "too long"
        raise UserError(
            f"'{path}' is {state}: its header promises {expected:,} bytes, it has {len(content):,}; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"'{path}' is a cut or damaged gzip file ({error}): fetch it again") from error
