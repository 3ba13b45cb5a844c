"""Named arrays in .npz, HDF5 and NetCDF files, opened and read by slices."""

import contextlib
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from harness.base.errors import UserError
from harness.datasets.dataset import Array
from harness.datasets.safe_reading import ArrayUnpickler, readable


class Slices(Protocol):
    """An array of at least one dimension whose rows are read when they are asked for."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: slice) -> Array: ...


Arrays = Mapping[str, Slices]


_NAMES = {
    "training": (
        ("x_train", "y_train"),
        ("training_data", "training_labels"),
        ("x", "y"),
        ("data", "labels"),
        ("data", "label"),
        ("images", "labels"),
    ),
    "validation": (("x_valid", "y_valid"), ("x_val", "y_val"), ("validation_data", "validation_labels")),
    "testing": (("x_test", "y_test"), ("testing_data", "testing_labels")),
}


def is_rows(array: Slices) -> bool:
    """Return whether `array` is [rows, *features] of numbers, with features."""
    return len(array.shape) > 1 and 0 not in array.shape[1:] and array.dtype.kind in "buif"


def named_pair(path: Path, arrays: Arrays, part: str, *, required: bool = False) -> tuple[str, str] | None:
    """Return the names of the features and labels of part ``training``, ``validation`` or ``testing``.

    Raises:
        UserError: the features are not rows of numbers, not as many as the labels, or not there but required.
    """
    names = next((pair for pair in _NAMES[part] if set(pair) <= set(arrays)), None)
    if names is not None:
        x = arrays[names[0]]
        y = arrays[names[1]]
        if not is_rows(x) or x.shape[0] != y.shape[0]:
            raise UserError(
                f"'{path}' {names[0]} has shape {tuple(x.shape)}, {x.dtype}, and {names[1]} has shape "
                f"{tuple(y.shape)}: give as many rows of numbers as labels"
            )
    elif required:
        present = ", ".join(arrays) or "none"
        raise UserError(f"'{path}' has arrays {present}: name features and labels x_train, y_train or x, y")
    return names


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """Yield the arrays of an .npz file; raise a UserError if it is damaged, or has one of other objects than texts."""
    with readable(path, ".npz file"), zipfile.ZipFile(path) as archive, contextlib.ExitStack() as stack:
        yield {name.removesuffix(".npy"): _Member(name, archive, stack) for name in archive.namelist()}


class _Member:
    """One array of an .npz file, which stays open: rows in ascending order are decompressed once.

    An array in column order is read as a whole when its first rows are asked for; one of Python's texts or numbers as
    objects at once.
    """

    def __init__(self, name: str, archive: zipfile.ZipFile, stack: contextlib.ExitStack) -> None:
        self._file = stack.enter_context(archive.open(name))
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, self._by_columns, self.dtype = read(self._file)
        self._begin = self._file.tell()
        self._whole: Array | None = None
        if self.dtype.hasobject:
            self._whole = _plain_array(name, ArrayUnpickler(self._file).load())
            self.shape = self._whole.shape
            self.dtype = self._whole.dtype

    def __getitem__(self, rows: slice) -> Array:
        if self._whole is None and self._by_columns and len(self.shape) > 1:
            self._whole = self._read(0, self.shape[0]).reshape(self.shape[::-1]).T
        if self._whole is not None:
            return self._whole[rows]
        begin, end, _ = rows.indices(self.shape[0])
        return self._read(begin, end).reshape(end - begin, *self.shape[1:])

    def _read(self, begin: int, end: int) -> Array:
        """Return the values of rows `begin` to `end` of an array in row order, of all rows of another."""
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._file.seek(self._begin + begin * size)
        return np.frombuffer(self._file.read((end - begin) * size), self.dtype)


def _plain_array(name: str, objects: Any) -> Array:
    """Return an array of objects, as pandas has its texts, as one of texts or numbers; raise a ValueError of others."""
    values = objects.ravel().tolist() if isinstance(objects, np.ndarray) else [None]
    if not all(isinstance(value, str) for value in values) and not all(isinstance(value, int) for value in values):
        raise ValueError(f"array {name} is of objects that are not all texts or all whole numbers")
    return np.array(values).reshape(objects.shape)


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Arrays]:
    """Yield the data sets at the top of an HDF5 file that have rows.

    Raises:
        UserError: the file is damaged, or a link leads to another file or to nothing.
    """
    import h5py

    with readable(path, "HDF5 file"), h5py.File(path, "r") as file:
        arrays = {}
        for name in file:
            item = None if isinstance(file.get(name, getlink=True), h5py.ExternalLink) else file.get(name)
            if item is None or getattr(item, "is_virtual", False) or getattr(item, "external", None):
                raise UserError(f"'{path}' {name} is a link to another file or to nothing: copy its rows into the file")
            if isinstance(item, h5py.Dataset) and item.shape:
                arrays[name] = item
        yield arrays


@contextlib.contextmanager
def open_netcdf(path: Path) -> Iterator[Arrays]:
    """Yield the arrays of a NetCDF file (classic, 64-bit, CDF-5 and NetCDF-4).

    Two variables over the same first dimension, the labels one integer a row, are called x and y; bytes are
    unsigned, as in the field's PNetCDF files.

    Raises:
        UserError: the file is damaged.
    """
    import netCDF4

    with readable(path, "NetCDF file"), netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        arrays = {name: _Variable(variable) for name, variable in file.variables.items() if variable.ndim}
        integers = {name: array for name, array in arrays.items() if array.dtype.kind in "iu"}
        labels = [name for name, array in integers.items() if math.prod(array.shape[1:]) == 1]
        row_counts = {array.shape[0] for array in arrays.values()}
        if len(arrays) == 2 and len(labels) == 1 and len(row_counts) == 1:
            arrays = {"y" if name == labels[0] else "x": array for name, array in arrays.items()}
        yield arrays


class _Variable:
    """A NetCDF variable whose bytes are unsigned."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self.shape = variable.shape
        self.dtype = np.dtype(np.uint8) if variable.dtype == np.int8 else np.dtype(variable.dtype)

    def __getitem__(self, rows: slice) -> Array:
        values = np.asarray(self._variable[rows])
        return values.view(np.uint8) if values.dtype == np.int8 else values
