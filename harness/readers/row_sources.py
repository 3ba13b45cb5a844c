"""What rows can be read from by their numbers: arrays, files of arrays, a file with an array for each class, images."""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.base.cores import memory_limit, usable_cores
from harness.base.errors import UserError
from harness.datasets.array_files import is_rows, named_pair, open_hdf5, open_netcdf, open_npz
from harness.datasets.dataset import Array

TRAIN = "training"
VALIDATION = "validation"
TEST = "testing"
_SEED = 0


class RowSource(Protocol):
    """Rows with labels, in one or more blocks that are each divided over the ranks.

    `classes` is how many there are, None where the labels of all ranks decide; `blocks` the rows of every block.
    """

    classes: int | None
    blocks: tuple[int, ...]

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Return features and labels of the rows in `ranges`, one range for every block."""


class ArrayPair:
    """Features and labels that can be sliced: arrays, HDF5 data sets, NetCDF variables, members of an .npz."""

    def __init__(self, x: Any, y: Any, classes: int | None = None) -> None:
        self._features = x
        self._labels = y
        self.classes = classes
        self.blocks: tuple[int, ...] = (x.shape[0],)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Slice both."""
        (rows,) = ranges
        chosen = slice(rows.start, rows.stop)
        return np.asarray(self._features[chosen]), np.asarray(self._labels[chosen])


class PerClass:
    """One array of rows for every class: the label is the array's number. Rows come in random order."""

    classes: int | None = None

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = arrays
        self.blocks: tuple[int, ...] = tuple(array.shape[0] for array in arrays)  # each rank gets some of all

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Read the rows of every class and shuffle them."""
        x = np.concatenate(
            [array[rows.start : rows.stop] for array, rows in zip(self._arrays, ranges, strict=True)], axis=0
        )
        y = np.repeat(np.arange(len(ranges)), [len(rows) for rows in ranges])
        order = np.random.Generator(np.random.PCG64(_SEED)).permutation(len(y))
        return x[order], y[order]


@contextlib.contextmanager
def open_parts(path: Path, kind: str) -> Iterator[dict[str, RowSource]]:
    """Yield the parts of a file of `kind` ``npz``, ``hdf5``, ``netcdf`` or ``pnetcdf``.

    They are named arrays, or in HDF5 (MaTEx's form) one data set of rows for every class.

    Raises:
        UserError: the file is damaged or names no features and labels.
    """
    openers = {"npz": open_npz, "hdf5": open_hdf5}
    with openers.get(kind, open_netcdf)(path) as arrays:
        rows = list(arrays.values())
        same_shape = len(rows) > 1 and len({tuple(array.shape[1:]) for array in rows}) == 1
        per_class = kind == "hdf5" and same_shape and all(map(is_rows, rows))
        parts: dict[str, RowSource] = {}
        for part in (TRAIN, VALIDATION, TEST):
            names = named_pair(path, arrays, part, required=part == TRAIN and not per_class)
            if names is not None:
                parts[part] = ArrayPair(arrays[names[0]], arrays[names[1]])
        if TRAIN not in parts:
            parts[TRAIN] = PerClass(rows)
        yield parts


_EDGE = 1 / 16  # left out on every side: the middle 224 of 256 pixels


class ImageRows:
    """Images by their places in containers (`datasets.Prepared`): uint8 [rows, size, size, 3], their middle squares."""

    def __init__(
        self, files: npt.NDArray[np.bytes_], places: Array, labels: npt.NDArray[np.int32], size: int, classes: int
    ) -> None:
        self._files = files
        self._places = places
        self._labels = labels
        self._size = size
        self.classes: int | None = classes
        self.blocks: tuple[int, ...] = (len(places),)  # one: their order mixes the classes

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Decode the images of the one range, a thread for each of the rank's cores.

        Raises:
            UserError: they do not fit into memory, where a script has them as float32.
        """
        (rows,) = ranges
        shape = (len(rows), self._size, self._size, 3)
        needed = 4 * int(np.prod(shape, dtype=np.int64))
        free = memory_limit()
        if needed > free:
            raise UserError(
                f"{len(rows):,} images of {self._size} pixels a side take {needed / 2**30:.1f} GiB on this rank, "
                f"{free / 2**30:.1f} GiB are free: use more nodes or a smaller image_size"
            )
        x = np.empty(shape, np.uint8)
        with ThreadPoolExecutor(usable_cores()) as threads:
            images = threads.map(self._image, self._places[rows.start : rows.stop])
            for number, image in enumerate(images):
                x[number] = image
        return x, np.asarray(self._labels[rows.start : rows.stop])

    def _image(self, place: npt.NDArray[np.int64]) -> Array:
        from PIL import Image, ImageOps

        number, offset, size = map(int, place)
        with Path(bytes(self._files[number]).decode()).open("rb") as file:
            content = os.pread(file.fileno(), size, offset)
        with Image.open(io.BytesIO(content)) as picture:
            square = ImageOps.fit(picture.convert("RGB"), (self._size, self._size), Image.Resampling.BILINEAR, _EDGE)
        return np.asarray(square)
