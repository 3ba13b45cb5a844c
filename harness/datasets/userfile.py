"""A user's own data: a .npz or .h5 file with features and integer labels, read by slices, or a .csv file (`table`)."""

import contextlib
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from harness.base.errors import UserError
from harness.datasets.dataset import TEST, TRAIN, Array, Block, Dataset, DatasetInfo, FoundFiles, last_tenth


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


CSV = ".csv"
SUFFIXES = (CSV, ".npz", ".h5")
_BLOCK_VALUES = 8 << 20

INFO = DatasetInfo(
    name="file",
    title="a file of your own",
    features=(),
    classes=0,
    dtype="float32",
    default_model="dnn",
    train_rows=0,
    test_rows=0,
    source="the user",
    separate_test=False,
)


def read(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield blocks of features (uint8 where all are, else float32) and int64 labels of .npz and .h5 files.

    They have arrays x_train, y_train and perhaps x_test, y_test, or x and y.

    Raises:
        UserError: the file is damaged, an array is missing or does not fit, a value is not a finite number.
    """
    for path in paths:
        with (open_npz if path.suffix.lower() == ".npz" else open_hdf5)(path) as arrays:
            yield from _read_arrays(path, arrays, part)


def _read_arrays(path: Path, arrays: Arrays, part: str) -> Iterator[Block]:
    """Yield the blocks of one part from named arrays; a part that is not there yields nothing."""
    training = ("x_train", "y_train") if {"x_train", "y_train"} <= set(arrays) else ("x", "y")
    names = ("x_test", "y_test") if part == TEST else training
    if not set(names) <= set(arrays):
        if part == TRAIN:
            raise UserError(f"'{path}' has arrays {', '.join(arrays) or 'none'}: name them x_train, y_train or x, y")
        return
    x, labels = arrays[names[0]], arrays[names[1]][:]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "buif":
        raise UserError(f"'{path}' {names[1]} has shape {labels.shape}, {labels.dtype}: give one integer a row")
    if not is_rows(x) or len(x) != len(labels):
        raise UserError(
            f"'{path}' {names[0]} has shape {x.shape}, {x.dtype}: give {len(labels):,} rows of numbers as {names[1]}"
        )
    # Pixels stay bytes, but only where both parts are: 0.7 is no byte.
    exact = all(arrays[name].dtype == np.uint8 for name in {training[0], "x_test"} & set(arrays))
    step = max(1, _BLOCK_VALUES // math.prod(x.shape[1:]))
    for start in range(0, len(labels), step):
        values = x[start : start + step]
        values = values if exact else _finite(path, values, names[0], start)
        yield values, whole_numbers(path, labels[start : start + step], f"{names[1]} row", start)


def _finite(path: Path, values: Array, name: str, start: int) -> Array:
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise UserError(f"'{path}' {name} row {start + bad[0][0]:,} has NaN or infinity: give finite numbers")
    return values


def whole_numbers(path: Path, labels: Array, where: str, start: int) -> Array:
    """Return the labels as int64; they may come as floating point numbers but must be whole."""
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    wrong = np.flatnonzero(whole != labels)
    if len(wrong):
        place = f"{where} {start + wrong[0]:,}"
        raise UserError(f"'{path}' {place} has label {labels[wrong[0]]}: labels are whole numbers, one per class")
    return whole


DATASET = Dataset(info=INFO, find=lambda folder: FoundFiles(), read=read, hold_out=last_tenth)
