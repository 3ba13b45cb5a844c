"""A user's own data: a .csv, .npz or .h5 file with features and integer class labels."""

import csv
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.datasets.csv_text import stream, to_array
from harness.datasets.dataset import TEST, TRAIN, Array, Block, Dataset, DatasetInfo, Found, last_tenth

SUFFIXES = (".csv", ".npz", ".h5")
_LABEL_NAMES = ("label", "target", "class")
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
    """Yield blocks of features (uint8 stays uint8, all else becomes float32) and int64 labels.

    A .csv file has one label column, named label, target or class, else the last; a header is optional.
    .npz and .h5 files have arrays x_train, y_train and perhaps x_test, y_test, or x and y.

    Raises:
        UserError: the file is damaged, an array is missing or does not fit, a value is not a finite number.
    """
    for path in paths:
        suffix = path.suffix.lower()
        if suffix == ".csv":
            if part == TRAIN:
                yield from _read_csv(path)
        elif suffix == ".npz":
            yield from _read_npz(path, part)
        else:
            yield from _read_h5(path, part)


def _read_csv(path: Path) -> Iterator[Block]:
    names, header_lines = _columns(path)
    matches = [place for place, name in enumerate(names) if name.strip().lower() in _LABEL_NAMES]
    label = matches[0] if matches and header_lines else len(names) - 1
    features = [place for place in range(len(names)) if place != label]
    if not features:
        raise UserError(f"'{path}' has one column only: give features and a label, separated by commas")
    columns = [f"c{place}" for place in range(len(names))]  # a user's own names may repeat
    line = 1 + header_lines
    for batch in stream(path, columns, header_lines, exact=columns[label]):
        labels = to_array(path, batch, [label], line, "float64")[:, 0]
        yield to_array(path, batch, features, line), _classes(path, labels, "line", line)
        line += len(labels)


def _columns(path: Path) -> tuple[list[str], int]:
    """Return the cells of the first line, and 1 if it is a header: some cell is no number."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            cells = next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"'{path}' is no CSV text ({error}): save it as UTF-8 with commas") from error
    if not cells:
        raise UserError(f"'{path}' is empty: give at least two rows")
    return cells, int(not all(_is_number(cell) for cell in cells))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_npz(path: Path, part: str) -> Iterator[Block]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            yield from _read_arrays(path, arrays, part)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise UserError(f"'{path}' is no readable .npz file ({error}): save it again with numpy.savez") from error


def _read_h5(path: Path, part: str) -> Iterator[Block]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield from _read_arrays(path, file, part)
    except OSError as error:
        raise UserError(f"'{path}' is no readable HDF5 file ({error}): write it again") from error


def _read_arrays(path: Path, arrays: Mapping[str, Any], part: str) -> Iterator[Block]:
    """Yield the blocks of one part from named arrays; a part that is not there yields nothing."""
    names = ("x_test", "y_test") if part == TEST else ("x_train", "y_train")
    if part == TRAIN and not all(name in arrays for name in names):
        names = ("x", "y")
        if not all(name in arrays for name in names):
            raise UserError(f"'{path}' has arrays {', '.join(arrays) or 'none'}: name them x_train, y_train or x, y")
    if not all(name in arrays for name in names):
        return
    x, y = arrays[names[0]], arrays[names[1]]
    labels = np.asarray(y[()])
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "buif":
        raise UserError(f"'{path}' {names[1]} has shape {labels.shape}, {labels.dtype}: give one integer a row")
    if len(x.shape) < 2 or x.dtype.kind not in "buif" or len(x) != len(labels):
        raise UserError(
            f"'{path}' {names[0]} has shape {x.shape}, {x.dtype}: give {len(labels):,} rows of numbers as {names[1]}"
        )
    step = max(1, _BLOCK_VALUES // int(np.prod(x.shape[1:])))
    for start in range(0, len(labels), step):
        values = _finite(path, np.asarray(x[start : start + step]), names[0], start)
        yield values, _classes(path, labels[start : start + step], f"{names[1]} row", start)


def _finite(path: Path, values: Array, name: str, start: int) -> Array:
    if values.dtype == np.uint8:
        return values
    values = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise UserError(f"'{path}' {name} row {start + bad[0][0]:,} has NaN or infinity: give finite numbers")
    return values


def _classes(path: Path, labels: Array, where: str, start: int) -> Array:
    """Return the labels as int64; they may come as floating point numbers but must be whole."""
    whole = labels.astype(np.int64)
    wrong = np.flatnonzero(whole != labels)
    if len(wrong):
        place = f"{where} {start + wrong[0]:,}"
        raise UserError(f"'{path}' {place} has label {labels[wrong[0]]}: labels are whole numbers, one per class")
    return whole


DATASET = Dataset(info=INFO, find=lambda folder: Found(), read=read, hold_out=last_tenth)
