"""Rows in .npz, HDF5 and NetCDF files: arrays by name, read slice by slice."""

import contextlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.datasets.dataset import Array
from harness.readers.sources import TEST, TRAIN, VALIDATION, Pair, Source

_NAMES = {
    TRAIN: (("x_train", "y_train"), ("training_data", "training_labels"), ("x", "y"), ("data", "labels"),
            ("data", "label"), ("images", "labels")),
    VALIDATION: (("x_valid", "y_valid"), ("x_val", "y_val"), ("validation_data", "validation_labels")),
    TEST: (("x_test", "y_test"), ("testing_data", "testing_labels")),
}  # fmt: skip
_SEED = 0


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[dict[str, Source]]:
    """Yield the parts of an .npz file; members written without compression are not read as a whole.

    Raises:
        UserError: the file is damaged or names no features and labels.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            yield _parts(path, {name: _Member(archive, member) for name, member in names.items()})
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise _damaged(path, ".npz", error) from error


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[dict[str, Source]]:
    """Yield the parts of an HDF5 file: named arrays, or (MaTEx's form) one data set of rows for every class.

    Raises:
        UserError: as `open_npz`.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            arrays = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
            yield _parts(path, arrays, classes=True)
    except OSError as error:
        raise _damaged(path, "HDF5", error) from error


@contextlib.contextmanager
def open_netcdf(path: Path) -> Iterator[dict[str, Source]]:
    """Yield the parts of a NetCDF file (classic, 64-bit, CDF-5 and NetCDF-4).

    Arrays are named as in the other formats, or are two variables over the same first dimension, the labels one
    integer a row; bytes are unsigned, as in the field's PNetCDF files.

    Raises:
        UserError: as `open_npz`.
    """
    import netCDF4

    try:
        with netCDF4.Dataset(path) as file:
            file.set_auto_maskandscale(False)
            arrays = {name: _Variable(variable) for name, variable in file.variables.items() if variable.ndim}
            yield _parts(path, _two(arrays) or arrays)
    except (OSError, RuntimeError) as error:
        raise _damaged(path, "NetCDF", error) from error


def _parts(path: Path, arrays: Mapping[str, Any], *, classes: bool = False) -> dict[str, Source]:
    parts: dict[str, Source] = {}
    for part, pairs in _NAMES.items():
        found = [(arrays[x], arrays[y]) for x, y in pairs if x in arrays and y in arrays]
        if found:
            x, y = found[0]
            if len(x.shape) < 2 or x.dtype.kind not in "buif" or not y.shape or len(x) != len(y):
                raise UserError(
                    f"'{path}' has {part} arrays of shapes {tuple(x.shape)} and {tuple(y.shape)}: "
                    "give as many rows of numbers as labels"
                )
            parts[part] = Pair(x, y)
    if TRAIN not in parts and classes and _alike(list(arrays.values())):
        parts[TRAIN] = PerClass(list(arrays.values()))
    if TRAIN not in parts:
        shown = ", ".join(arrays) or "none"
        raise UserError(f"'{path}' has arrays {shown}: name features and labels x_train, y_train or x, y")
    return parts


def _alike(arrays: Sequence[Any]) -> bool:
    """Tell whether all hold rows of numbers of one shape."""
    shapes = {tuple(array.shape[1:]) for array in arrays}
    return len(arrays) > 1 and len(shapes) == 1 and shapes != {()} and all(a.dtype.kind in "buif" for a in arrays)


class PerClass:
    """One array of rows for every class: the label is the array's number. Rows come in random order."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = arrays

    @property
    def blocks(self) -> tuple[int, ...]:
        """The rows of every class: each rank gets some of all."""
        return tuple(len(array) for array in self._arrays)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Read the rows of every class and shuffle them."""
        x = np.concatenate(
            [array[rows.start : rows.stop] for array, rows in zip(self._arrays, ranges, strict=True)], axis=0
        )
        y = np.repeat(np.arange(len(ranges)), [len(rows) for rows in ranges])
        order = np.random.Generator(np.random.PCG64(_SEED)).permutation(len(y))
        return x[order], y[order]


class _Member:
    """One array of an .npz file."""

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._archive, self._name = archive, name
        with archive.open(name) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, fortran, self.dtype = read(file)
            self._data = file.tell()
        if fortran or self.dtype.hasobject:
            raise ValueError(f"array {name} is in column order or of objects")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Array:
        size = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        begin, end, _ = rows.indices(len(self))
        with self._archive.open(self._name) as file:
            file.seek(self._data + begin * size)
            content = file.read((end - begin) * size)
        return np.frombuffer(content, self.dtype).reshape(-1, *self.shape[1:])


class _Variable:
    """A NetCDF variable whose bytes are unsigned."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self.shape = variable.shape
        self.dtype = np.dtype(np.uint8) if variable.dtype == np.int8 else np.dtype(variable.dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Array:
        values = np.asarray(self._variable[rows])
        return values.view(np.uint8) if values.dtype == np.int8 else values


def _two(arrays: Mapping[str, _Variable]) -> dict[str, _Variable] | None:
    """Return the two variables of a file as x and y: the labels are one integer a row."""
    if len(arrays) != 2 or len({len(array) for array in arrays.values()}) != 1:
        return None
    flat = [name for name, array in arrays.items() if array.dtype.kind in "iu" and np.prod(array.shape[1:]) == 1]
    if len(flat) != 1:
        return None
    return {"y" if name == flat[0] else "x": array for name, array in arrays.items()}


def _damaged(path: Path, kind: str, error: BaseException) -> UserError:
    return UserError(f"'{path}' is no readable {kind} file ({error}): write it again")
