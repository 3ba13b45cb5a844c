"""Rows in .npz, HDF5 and NetCDF files: arrays by name, read slice by slice."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.datasets.dataset import Array
from harness.datasets.userfile import Arrays, is_rows, open_hdf5, open_npz, readable
from harness.readers.sources import TEST, TRAIN, VALIDATION, ArrayPair, RowSource

_NAMES = {
    TRAIN: (("x_train", "y_train"), ("training_data", "training_labels"), ("x", "y"), ("data", "labels"),
            ("data", "label"), ("images", "labels")),
    VALIDATION: (("x_valid", "y_valid"), ("x_val", "y_val"), ("validation_data", "validation_labels")),
    TEST: (("x_test", "y_test"), ("testing_data", "testing_labels")),
}  # fmt: skip
_SEED = 0


@contextlib.contextmanager
def open_parts(path: Path, kind: str) -> Iterator[dict[str, RowSource]]:
    """Yield the parts of a file of `kind` ``npz``, ``hdf5`` or ``netcdf``.

    They are named arrays, or in HDF5 (MaTEx's form) one data set of rows for every class.

    Raises:
        UserError: the file is damaged or names no features and labels.
    """
    openers = {"npz": open_npz, "hdf5": open_hdf5}
    with openers.get(kind, _open_netcdf)(path) as arrays:
        yield _parts(path, arrays, classes=kind == "hdf5")


@contextlib.contextmanager
def _open_netcdf(path: Path) -> Iterator[Arrays]:
    """Yield the arrays of a NetCDF file (classic, 64-bit, CDF-5 and NetCDF-4).

    Two variables over the same first dimension, the labels one integer a row, are called x and y; bytes are
    unsigned, as in the field's PNetCDF files.
    """
    import netCDF4

    with readable(path, "NetCDF"), netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        arrays = {name: _Variable(variable) for name, variable in file.variables.items() if variable.ndim}
        yield _two(arrays) or arrays


def _parts(path: Path, arrays: Arrays, *, classes: bool) -> dict[str, RowSource]:
    parts: dict[str, RowSource] = {}
    for part, pairs in _NAMES.items():
        found = [(arrays[x], arrays[y]) for x, y in pairs if x in arrays and y in arrays]
        if found:
            x, y = found[0]
            if not is_rows(x) or len(x) != len(y):
                raise UserError(
                    f"'{path}' has {part} arrays of shapes {tuple(x.shape)} and {tuple(y.shape)}: "
                    "give as many rows of numbers as labels"
                )
            parts[part] = ArrayPair(x, y)
    if TRAIN not in parts and classes and _alike(list(arrays.values())):
        parts[TRAIN] = PerClass(list(arrays.values()))
    if TRAIN not in parts:
        shown = ", ".join(arrays) or "none"
        raise UserError(f"'{path}' has arrays {shown}: name features and labels x_train, y_train or x, y")
    return parts


def _alike(arrays: Sequence[Any]) -> bool:
    """Tell whether all hold rows of numbers of one shape."""
    return len(arrays) > 1 and len({tuple(array.shape[1:]) for array in arrays}) == 1 and all(map(is_rows, arrays))


class PerClass:
    """One array of rows for every class: the label is the array's number. Rows come in random order."""

    classes: int | None = None

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
