"""A user's own data: a .npz or .h5 file with features and integer class labels, or a .csv file (`table`)."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.base.errors import UserError
from harness.datasets.containers import Arrays, is_rows, open_hdf5, open_npz
from harness.datasets.dataset import TEST, TRAIN, Array, Block, Dataset, DatasetInfo, Found, last_tenth

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


DATASET = Dataset(info=INFO, find=lambda folder: Found(), read=read, hold_out=last_tenth)
