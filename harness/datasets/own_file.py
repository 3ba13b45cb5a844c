"""A user's own data: arrays of an .npz or .h5 file, or the columns of a .csv file.

CSV text is read once, block by block: a number as it is, a category as its place among those met so far, a missing
value as NaN. Where there are categories or missing values the rows so made are written a second time, as the network
takes them.
"""

import contextlib
import csv
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError, unknown
from harness.datasets.binary_formats import Arrays, named_pair, open_hdf5, open_npz
from harness.datasets.dataset import TEST, TRAIN, Array, Block, Dataset, NpyWriter, Vector, read_blocks
from harness.datasets.text_formats import (
    LABEL_NAMES,
    CsvHeader,
    is_missing,
    is_number,
    not_a_number,
    read_head,
    stream_csv,
)

FILE = "file"
"""The name of a user's own file among the data sets."""
CSV = ".csv"
SUFFIXES = (CSV, ".npz", ".h5")
_BLOCK_VALUES = 8 << 20
_SAMPLE = 1_000  # rows that decide which columns are texts
_MOST_CATEGORIES = 1_000


def read_arrays(paths: tuple[Path, ...], part: str) -> Iterator[Block]:
    """Yield blocks of features (uint8 where all are, else float32) and int64 labels of .npz and .h5 files.

    They have arrays x_train, y_train and perhaps x_test, y_test, or x and y, or what else `named_pair` knows.

    Raises:
        UserError: the file is damaged, an array is missing or does not fit, a value is not a finite number.
    """
    for path in paths:
        with (open_npz if path.suffix.lower() == ".npz" else open_hdf5)(path) as arrays:
            training = named_pair(path, arrays, "training", required=True)
            testing = named_pair(path, arrays, "testing")
            names = testing if part == TEST else training
            if names is not None:
                # Pixels stay bytes, but only where both parts are: 0.7 is not a byte.
                pixels = all(arrays[pair[0]].dtype == np.uint8 for pair in (training, testing) if pair)
                yield from _pair(path, arrays, names, pixels)


def _pair(path: Path, arrays: Arrays, names: tuple[str, str], pixels: bool) -> Iterator[Block]:
    """Yield the blocks of features and labels called `names`."""
    x, labels = arrays[names[0]], arrays[names[1]][:]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "buif":
        raise UserError(f"'{path}' {names[1]} has shape {labels.shape}, {labels.dtype}: give one integer a row")
    step = max(1, _BLOCK_VALUES // math.prod(x.shape[1:]))
    for start in range(0, len(labels), step):
        values = x[start : start + step]
        if not pixels:
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                place = f"{names[0]} row {start + bad[0][0]:,}"
                raise UserError(f"'{path}' {place} has NaN or infinity: give finite numbers")
        yield values, whole_numbers(path, labels[start : start + step], f"{names[1]} row", start)


def whole_numbers(path: Path, labels: Array, where: str, start: int) -> Array:
    """Return the labels as int64; they may come as floating point numbers but must be whole."""
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    wrong = np.flatnonzero(whole != labels)
    if len(wrong):
        place = f"{where} {start + wrong[0]:,}"
        raise UserError(f"'{path}' {place} has label {labels[wrong[0]]}: labels are whole numbers, one per class")
    return whole


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
    read=read_arrays,
    separate_test=False,
)


class CsvTable:
    """The columns of the file `path`, which fill while it is read.

    `label` is the name of the label's column, empty for that of `CsvHeader`; `drop` those of columns to leave out,
    as in a line of CSV.
    """

    def __init__(self, path: Path, label: str = "", drop: str = "") -> None:
        """Read the first rows; raise a UserError if a column is not there or has no name, or no feature is left."""
        self._path, self._head = path, read_head(path)
        self._label = self._place("LABEL", label) if label else self._head.label
        self._dropped = [self._place("DROP", name) for name in next(csv.reader([drop]), [])]
        self._named = bool(label)
        if self._label in self._dropped:
            raise UserError(f"DROP={drop} leaves out '{self._name(self._label)}', which is the label: give LABEL= too")
        texts = _text_columns(path, self._head)
        places = range(len(self._head.cells))
        self._features = [place for place in places if place not in (self._label, *self._dropped)]
        if not self._features:
            raise UserError(f"DROP={drop} leaves no column of '{path}' but the label: keep one")
        self._codes: dict[int, dict[str, int]] = {place: {} for place in texts if place not in self._dropped}
        self._missing = dict.fromkeys(self._features, 0)
        self._rows = 0

    def read(self, paths: Sequence[Path], part: str) -> Iterator[Block]:
        """Yield blocks of features, float32 [rows, columns], and labels, int64; all rows are to train on.

        Raises:
            UserError: a line has another column count, a number is missing or infinite, a label is missing or not
                whole, a column has too many categories.
        """
        if part != TRAIN:
            return
        columns = [f"c{place}" for place in range(len(self._head.cells))]  # a user's own names may repeat
        types = {columns[self._label]: "float64"} | {columns[place]: "float32" for place in self._features}
        types |= {columns[place]: "string" for place in self._codes}
        lines = int(self._head.header > 0)
        line = 1 + lines
        for batch in stream_csv(self._path, columns, lines, types):
            found = self._values(batch.column(columns[self._label]), self._label)
            missing = np.flatnonzero(np.isnan(found))
            if len(missing):
                raise UserError(f"'{self._path}' line {line + int(missing[0]):,} has no label: give it one")
            labels = whole_numbers(self._path, found, "line", line)
            values = np.empty((batch.num_rows, len(self._features)), np.float32)
            for number, place in enumerate(self._features):
                column = batch.column(columns[place])
                if column.null_count and place not in self._codes and not self._head.header:
                    raise not_a_number(self._path, line + column.is_valid().to_pylist().index(False), place)
                values[:, number] = self._values(column, place)
                if column.null_count or place in self._codes:
                    self._missing[place] += int(np.isnan(values[:, number]).sum())
            # One sum shows whether there is any infinity; only then is it worth looking where.
            if not np.isfinite(values.sum(dtype=np.float64)) and len(infinite := np.argwhere(np.isinf(values))):
                raise not_a_number(self._path, line + int(infinite[0][0]), self._features[infinite[0][1]])
            self._rows += len(values)
            line += len(values)
            yield values, labels

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's texts by their numbers, none where labels are numbers."""
        return tuple(self._codes.get(self._label, ()))

    def encode(self, path: Path, train_rows: int) -> tuple[str, ...]:
        """Rewrite `path`, the .npy file of what `read` yielded, as the network takes it; return what was done.

        A category is a column of zeros and ones for each of its texts, in alphabetical order; where it is missing all
        are 0. A missing number is the mean of its column over the first `train_rows` rows.

        Raises:
            UserError: a column is missing in half of the rows or more.
        """
        for place, count in self._missing.items():
            if 2 * count >= self._rows:
                name = self._name(place)
                raise UserError(
                    f"'{self._path}' column '{name}' is missing in {count:,} of {self._rows:,} rows, too many to fill "
                    f"in: leave it out with DROP={name}"
                )
        if any(place in self._codes for place in self._features) or any(self._missing.values()):
            wide = path.with_suffix(".wide.npy")
            means = _means(path, train_rows, len(self._features))
            width = sum(len(self._codes.get(place, "x")) for place in self._features)
            with NpyWriter(wide, "float32", (width,)) as file:
                for block in read_blocks(path, self._rows):
                    file.append(self._wide(block, means, width))
            wide.replace(path)
        return self._notes()

    def _place(self, setting: str, name: str) -> int:
        """Return the place of the column called `name`."""
        names = self._head.names
        if not names:
            raise UserError(
                f"{setting}={name} names a column, and '{self._path}' has no header: write one above its rows"
            )
        found = [place for place, other in enumerate(names) if other == name.strip().lower()]
        if not found:
            raise unknown(setting, name, names)
        if len(found) > 1:
            raise UserError(f"{setting}={name} is the name of {len(found)} columns of '{self._path}': rename them")
        return found[0]

    def _name(self, place: int) -> str:
        return self._head.cells[place].strip() if self._head.header else f"column {place + 1}"

    def _values(self, column: Any, place: int) -> Array:
        """Return the cells of one column in one batch, NaN where they are missing.

        Of a text it is its number in order of first appearance, float32.
        """
        values: Array
        if place not in self._codes:
            # pyarrow's own to_numpy() would import pandas, a second of work
            values = np.from_dlpack(column.fill_null(np.nan) if column.null_count else column)
            return values
        found, encoded = self._codes[place], column.dictionary_encode()
        words = (word.strip() for word in encoded.dictionary.to_pylist())
        numbers = [np.nan if is_missing(word) else found.setdefault(word, len(found)) for word in words]
        if len(found) > _MOST_CATEGORIES:
            name = self._name(place)
            raise UserError(
                f"'{self._path}' column '{name}' has more than {_MOST_CATEGORIES:,} different texts, too many for "
                f"categories: leave it out with DROP={name}"
            )
        values = np.array(numbers, np.float32)[np.from_dlpack(encoded.indices)]
        return values

    def _wide(self, block: Array, means: Vector, width: int) -> Array:
        """Return rows of `read` [rows, columns] with a column for each category and no missing value."""
        rows = np.zeros((len(block), width), np.float32)
        begin = 0
        for number, place in enumerate(self._features):
            values = block[:, number]
            present = ~np.isnan(values)
            if place in self._codes:
                ranks = np.argsort(np.argsort(list(self._codes[place])))
                rows[np.flatnonzero(present), begin + ranks[values[present].astype(np.int64)]] = 1
                begin += len(ranks)
            else:
                rows[:, begin] = np.where(present, values, means[number])
                begin += 1
        return rows

    def _notes(self) -> tuple[str, ...]:
        """Return a sentence for each thing that was done to the columns."""
        file, name = self._path.name, self._name
        texts = [f"{name(place)} ({len(self._codes[place])})" for place in self._features if place in self._codes]
        gaps = [
            f"{name(place)} {count:,} ({'no category' if place in self._codes else 'the mean of training rows'})"
            for place, count in self._missing.items()
            if count
        ]
        first = f"as no column is named {', '.join(LABEL_NAMES)}: the first is the label, LABEL= names another"
        known = set(self._head.names) & set(LABEL_NAMES)
        found = "which LABEL= names" if self._named else "by its name" if known else first
        sentences = (
            (f"label of {file}: {name(self._label)}, {found}", True),
            (f"left out of {file}: {', '.join(map(name, self._dropped))}", self._dropped),
            (f"one column for each category of {file}: {', '.join(texts)}", texts),
            (f"missing in {file}: {', '.join(gaps)}", gaps),
        )
        return tuple(sentence for sentence, applies in sentences if applies)


def _text_columns(path: Path, head: CsvHeader) -> list[int]:
    """Return the columns more than half of whose values in the first rows are texts."""
    texts, values = [0] * len(head.cells), [0] * len(head.cells)
    # What is not CSV is refused by `stream_csv`, with its line.
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file, contextlib.suppress(csv.Error):
        rows = csv.reader(file, skipinitialspace=True)
        for row in itertools.islice(rows, int(head.header > 0), _SAMPLE):
            for place, cell in enumerate(row[: len(texts)]):
                values[place] += not is_missing(cell)
                texts[place] += not is_missing(cell) and not is_number(cell)
    return [place for place in range(len(texts)) if 2 * texts[place] > values[place]]


def _means(path: Path, rows: int, columns: int) -> Vector:
    """Return the mean of each column of a .npy file over the values that its first rows have."""
    total, count = np.zeros(columns), np.zeros(columns)
    for block in read_blocks(path, rows):
        total += np.nansum(block, axis=0, dtype=np.float64)
        count += (~np.isnan(block)).sum(axis=0)
    return (total / np.maximum(count, 1)).astype(np.float32)
