"""The arrays of a user's own .npz or .h5 file as rows and classes."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.base.errors import UserError
from harness.datasets.array_files import Arrays, named_pair, open_hdf5, open_npz
from harness.datasets.dataset import TEST, Array, Chunk
from harness.datasets.own_labels import LabelTexts, whole_numbers

_CHUNK_VALUES = 8 << 20


class ArrayFile:
    """The arrays of one file; `classes` and `names` fill while they are read."""

    def __init__(self) -> None:
        self._texts = LabelTexts()
        self.names: tuple[str, ...] = ()
        """The arrays that were read: features and labels of the training part, then of the test part."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's texts by their numbers, none where labels are numbers."""
        return self._texts.classes

    def read(self, paths: tuple[Path, ...], part: str) -> Iterator[Chunk]:
        """Yield chunks of features (uint8 where all are, else float32) and int64 labels of .npz and .h5 files.

        They have arrays x_train, y_train and perhaps x_test, y_test, or x and y, or what else `named_pair` knows.
        Labels are whole numbers, or texts, of which the number in order of appearance is given.

        Raises:
            UserError: the file is damaged, an array is missing or does not fit, a value is not a finite number.
        """
        for path in paths:
            opened = open_npz(path) if path.suffix.lower() == ".npz" else open_hdf5(path)
            with opened as arrays:
                training = named_pair(path, arrays, "training", required=True)
                testing = named_pair(path, arrays, "testing")
                pair = testing if part == TEST else training
                if pair is None:
                    continue
                # Pixels stay bytes, but only where both parts are: 0.7 is not a byte.
                pixels = all(arrays[names[0]].dtype == np.uint8 for names in (training, testing) if names)
                self.names += pair
                yield from self._chunks(path, arrays, pair, pixels)

    def _chunks(self, path: Path, arrays: Arrays, pair: tuple[str, str], pixels: bool) -> Iterator[Chunk]:
        """Yield the chunks of features and labels called as in `pair`."""
        x = arrays[pair[0]]
        labels = arrays[pair[1]][:]
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        texts = _are_texts(labels)
        if labels.ndim != 1 or not (texts or labels.dtype.kind in "buif"):
            raise UserError(f"'{path}' {pair[1]} has shape {labels.shape}, {labels.dtype}: give one integer a row")
        if bool(self.classes) != texts and len(self.names) > 2:
            raise UserError(f"'{path}' {pair[1]} is {labels.dtype}, other labels are not: give all as numbers or texts")
        step = max(1, _CHUNK_VALUES // math.prod(x.shape[1:]))
        for start in range(0, len(labels), step):
            values = x[start : start + step]
            if not pixels:
                values = _finite(path, values, pair[0], start)
            part = labels[start : start + step]
            if texts:
                yield values, self._texts.encode(part)
            else:
                yield values, whole_numbers(path, part, f"{pair[1]} row", start)


def _are_texts(labels: Array) -> bool:
    """Return whether labels are texts: fixed-width ones, or HDF5's of any length."""
    if labels.dtype.kind == "O":
        return all(isinstance(label, str | bytes) for label in labels.ravel().tolist())
    return labels.dtype.kind in "US"


def _finite(path: Path, values: Array, name: str, start: int) -> Array:
    """Return values as float32; raise a UserError with the row, counted from `start`, of one that is not finite."""
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        place = f"{name} row {start + bad[0][0]:,}"
        raise UserError(f"'{path}' {place} has NaN or infinity: give finite numbers")
    return numbers
