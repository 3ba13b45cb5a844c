"""Arrays by name in .npz and HDF5 files, read slice by slice."""

import contextlib
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from harness.base.errors import UserError
from harness.datasets.dataset import Array


class Slices(Protocol):
    """An array of at least one dimension whose rows are read when they are asked for."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> Array: ...


Arrays = Mapping[str, Slices]

# All that damaged bytes have been seen to raise in the libraries that read them.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError, KeyError, TypeError,
    RuntimeError, OverflowError, MemoryError,
)  # fmt: skip


@contextlib.contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Turn what damaged bytes raise inside into a UserError: `path` is no readable file of this `kind`."""
    try:
        yield
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"'{path}' is no readable {kind} file ({reason}): write it again") from error


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """Yield the arrays of an .npz file.

    Raises:
        UserError: the file is damaged, or has an array of Python objects or in column order.
    """
    with readable(path, ".npz"), zipfile.ZipFile(path) as archive, contextlib.ExitStack() as stack:
        yield {name.removesuffix(".npy"): _Member(name, archive, stack) for name in archive.namelist()}


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Arrays]:
    """Yield the data sets at the top of an HDF5 file that have rows.

    Raises:
        UserError: the file is damaged, or a link leads to another file or to nothing.
    """
    import h5py

    with readable(path, "HDF5"), h5py.File(path, "r") as file:
        arrays = {}
        for name in file:
            item = None if isinstance(file.get(name, getlink=True), h5py.ExternalLink) else file.get(name)
            if item is None or getattr(item, "is_virtual", False) or getattr(item, "external", None):
                raise UserError(f"'{path}' {name} is a link to another file or to nothing: copy its rows into the file")
            if isinstance(item, h5py.Dataset) and item.shape:
                arrays[name] = item
        yield arrays


def is_rows(array: Slices) -> bool:
    """Tell whether `array` is [rows, *features] of numbers, with features."""
    return len(array.shape) > 1 and 0 not in array.shape[1:] and array.dtype.kind in "buif"


class _Member:
    """One array of an .npz file, which stays open: rows in ascending order are decompressed once."""

    def __init__(self, name: str, archive: zipfile.ZipFile, stack: contextlib.ExitStack) -> None:
        self._file = stack.enter_context(archive.open(name))
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, fortran, self.dtype = read(self._file)
        self._begin = self._file.tell()
        if (fortran and len(self.shape) > 1) or self.dtype.hasobject:
            raise ValueError(f"array {name} is in column order or of objects")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Array:
        size = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        begin, end, _ = rows.indices(len(self))
        self._file.seek(self._begin + begin * size)
        content = self._file.read((end - begin) * size)
        return np.frombuffer(content, self.dtype).reshape(end - begin, *self.shape[1:])
