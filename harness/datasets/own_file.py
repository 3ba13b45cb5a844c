"""A user's own data: arrays of an .npz or .h5 file, or the columns of a .csv, .tsv or .parquet file."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.datasets.array_files import Arrays, named_pair, open_hdf5, open_npz
from harness.datasets.csv_form import TSV, separator_name
from harness.datasets.csv_rows import GZIP
from harness.datasets.dataset import TEST, Array, Chunk, Dataset
from harness.datasets.table_sources import PARQUET
from harness.schema.data_record import DataRecord, OwnFile, TableColumns

# Labels of a user's own file, whole numbers or texts, as classes 0 to k-1.

_LEAST_ROWS = 10  # fewer show nothing


def whole_numbers(path: Path, labels: Array, where: str, start: int) -> Array:
    """Return the labels as int64; they may come as floating point numbers but must be whole.

    Raises:
        UserError: one is not whole, or so large that its type leaves out whole numbers beside it, which would be one
            class with it; `where` and its number, counted from `start`, are named.
    """
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    wrong = np.flatnonzero(whole != labels)
    if len(wrong):
        place = f"{where} {start + wrong[0]:,}"
        raise UserError(f"'{path}' {place} has label {labels[wrong[0]]}: labels are whole numbers, one per class")
    if labels.dtype.kind == "f":
        blurred = np.flatnonzero(np.spacing(np.abs(labels)) > 1)
        if len(blurred):
            raise UserError(
                f"'{path}' {where} {start + blurred[0]:,} has label {whole[blurred[0]]}, which {labels.dtype} does not "
                "tell from the whole numbers beside it: give classes small numbers"
            )
    return whole


def are_different(classes: int, rows: int) -> bool:
    """Return whether labels are different in nearly every row, so that they are no classes."""
    return rows >= _LEAST_ROWS and 2 * classes > rows


class LabelTexts:
    """The texts of labels by their numbers, which are those of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def encode(self, labels: Array) -> npt.NDArray[np.int64]:
        """Return the numbers of `labels`, texts or bytes of UTF-8."""
        words = [label.decode() if isinstance(label, bytes) else str(label) for label in labels.tolist()]
        return np.array([self._numbers.setdefault(word, len(self._numbers)) for word in words], np.int64)

    @property
    def classes(self) -> tuple[str, ...]:
        """The texts by their numbers."""
        return tuple(self._numbers)


# The arrays of a user's own .npz or .h5 file as rows and classes.

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
        """Yield chunks of features and int64 labels of .npz and .h5 files.

        Features are uint8 where all are, float64 where float32 may not hold them, else float32.

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
                types = [arrays[names[0]].dtype for names in (training, testing) if names]
                self.names += pair
                yield from self._chunks(path, arrays, pair, _stored_type(types))

    def _chunks(self, path: Path, arrays: Arrays, pair: tuple[str, str], stored: str) -> Iterator[Chunk]:
        """Yield the chunks of features, as the type `stored`, and labels called as in `pair`."""
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
            if stored != "uint8":
                values = _finite(path, values, pair[0], start, stored)
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


def _stored_type(types: Sequence[np.dtype[Any]]) -> str:
    """Return the type in which the features of all parts are stored first."""
    if all(kind == np.uint8 for kind in types):
        return "uint8"
    return "float32" if all(np.can_cast(kind, np.float32) for kind in types) else "float64"


def _finite(path: Path, values: Array, name: str, start: int, stored: str) -> Array:
    """Return values as `stored`; raise a UserError with the row, counted from `start`, of one that is not finite."""
    with np.errstate(over="ignore"):
        numbers = values.astype(stored)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        place = f"{name} row {start + bad[0][0]:,}"
        raise UserError(f"'{path}' {place} has NaN or infinity: give finite numbers")
    return numbers


FILE = "file"
"""The name of a user's own file among the data sets."""
CSV = ".csv"
TEXT_SUFFIXES = (CSV, CSV + GZIP, TSV, TSV + GZIP)
SUFFIXES = (*TEXT_SUFFIXES, PARQUET, ".npz", ".h5")


def own_suffix(path: Path) -> str:
    """Return which of `SUFFIXES` a file's own name has, whatever a link leads to; empty if it has none."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def own_path(path: Path) -> Path:
    """Return the absolute path of a user's file: a link keeps its own name, unless only its target's has a suffix."""
    named = path.parent.resolve() / path.name
    return named if own_suffix(named) else path.resolve()


def _read(paths: tuple[Path, ...], part: str) -> Iterator[Chunk]:
    yield from ArrayFile().read(paths, part)


OWN_FILE = Dataset(
    name=FILE,
    title="a file of your own",
    features=(),
    classes=0,
    dtype="float32",
    default_model="dnn",
    train_rows=0,
    test_rows=0,
    source="the user",
    read=_read,
    separate_test=False,
)


# What was understood of a user's own file, in five lines.

_SHOWN = 8
_CHOICES = {
    "asked": "which --label names",
    "by name": "by its name",
    "first": "the first, as none is called label, target or class; --label names another",
}
_REASONS = {"asked": "--drop", "index": "it numbers or names the rows", "empty": "it is empty"}


def own_file_lines(record: DataRecord) -> tuple[str, ...]:
    """Return five lines of the rows, columns, label, what is left out and the test rows; none of other data."""
    own_file = record.own_file
    if own_file is None:
        return ()
    return (
        f"rows: {own_file.rows:,} in {own_file.file}{_form(own_file.table)}",
        f"columns: {_columns(own_file, record)}",
        f"label: {_label(own_file)}",
        f"left out: {_left_out(own_file.table)}",
        f"test rows: {_test_rows(record)}",
    )


def _form(table: TableColumns | None) -> str:
    if table is None:
        return ""
    if not table.separator:
        return ", a Parquet file"
    decimal = "comma" if table.decimal == "," else "point"
    header = "a header" if table.header else "no header"
    encoding = "" if table.encoding.startswith("utf-8") else f", {table.encoding.upper()}"
    return f", columns separated by {separator_name(table.separator)}, decimal {decimal}, {header}{encoding}"


def _columns(own_file: OwnFile, record: DataRecord) -> str:
    centred = f"centred and scaled before float32: {_listed([column.name for column in own_file.centred])}"
    if own_file.table is None:
        shape = " x ".join(map(str, record.features))
        arrays = f"arrays {_listed(own_file.arrays)}, {shape} numbers a row"
        return f"{arrays}; {centred}" if own_file.centred else arrays
    texts = [f"{column.name} ({column.categories} different)" for column in own_file.table.texts]
    gaps = [f"{column.name} {column.rows:,}" for column in own_file.table.gaps]
    parts = (
        (f"{len(own_file.table.numbers)} of numbers: {_listed(own_file.table.numbers)}", own_file.table.numbers),
        (f"{len(texts)} of texts: {_listed(texts)}", texts),
        (f"missing cells filled in: {_listed(gaps)}", gaps),
        (centred, own_file.centred),
    )
    return "; ".join(part for part, names in parts if names)


def _label(own_file: OwnFile) -> str:
    counts = [f"{name} {rows:,}" for name, rows in zip(own_file.class_names, own_file.class_rows, strict=True)]
    classes = f"{len(counts)} classes: {_listed(counts)}"
    if own_file.table is None:
        return f"array '{own_file.arrays[1]}', {classes}"
    name = own_file.table.label if own_file.table.label.startswith("column ") else f"column '{own_file.table.label}'"
    return f"{name}, {classes} ({_CHOICES[own_file.table.label_choice]})"


def _left_out(table: TableColumns | None) -> str:
    if table is None or not table.left_out:
        return "nothing"
    return _listed([f"{column.name} ({_REASONS[column.reason]})" for column in table.left_out])


def _test_rows(record: DataRecord) -> str:
    if record.held_out_seed is None:
        return f"{record.test_rows:,}, the file's own"
    drawn = f"{record.test_rows:,} held out, of every class its share, drawn by seed {record.held_out_seed}"
    shuffled = record.own_file is not None and record.own_file.shuffled
    return drawn + ("; the others in random order, as the file is sorted by class" if shuffled else "")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
