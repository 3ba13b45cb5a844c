"""The columns of a user's own CSV file as arrays.

The text is read once, chunk by chunk: a number as it is, a category as its place among those met so far, a missing
value as NaN. Where there are categories or missing values the rows so made are written a second time, as the network
takes them.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.removal import replace_file
from harness.datasets.csv_dialect import CsvSettings, read_sample
from harness.datasets.csv_header import LABEL_NAMES
from harness.datasets.csv_rows import is_missing, not_a_number, stream_csv
from harness.datasets.dataset import TRAIN, Array, Chunk
from harness.datasets.npy_files import NpyWriter, Vector, read_chunks
from harness.datasets.number_text import NumberForm, is_missing_number, read_number
from harness.datasets.own_columns import Columns, LabelChoice, LeftOut
from harness.datasets.own_labels import whole_numbers
from harness.schema.data_record import ColumnGaps, ColumnLeftOut, TableColumns, TextColumn, WrittenNumbers

_MOST_CATEGORIES = 1_000
_NAMES = 100  # so many texts of which most stand in one row alone are names
_CHOICE_WORDS = {
    LabelChoice.ASKED: "which LABEL= names",
    LabelChoice.BY_NAME: "by its name",
    LabelChoice.FIRST: f"as no column is named {', '.join(LABEL_NAMES)}: the first is the label, LABEL= names another",
}


class CsvTable:
    """The columns of the file `path`, which fill while it is read."""

    def __init__(self, path: Path, settings: CsvSettings) -> None:
        """Read the first rows and decide what each column is.

        Raises:
            UserError: the file can be read in two ways or in none, a column that is asked for is not there, no column
                can be the label, no feature is left, or a column is neither numbers nor categories.
        """
        self._path = path
        sample = read_sample(path, settings)
        self._dialect = sample.dialect
        self._columns = Columns(path, sample)
        self._left_out = self._columns.left_out()
        self._label, self._choice = self._pick_label(settings)
        self._left_out.pop(self._label, None)
        self._drop(settings.drop)
        self._features = [place for place in range(len(self._columns)) if place not in (self._label, *self._left_out)]
        if not self._features:
            raise UserError(f"DROP={settings.drop} leaves no column of '{path}' but the label: keep one")
        for place in self._features:
            self._columns.check_named(place)
            self._columns.check_feature(place)
        used = (self._label, *self._features)
        self._codes: dict[int, dict[str, int]] = {place: {} for place in used if self._columns[place].text}
        self._missing = dict.fromkeys(self._features, 0)
        self._rows = 0

    def _pick_label(self, settings: CsvSettings) -> tuple[int, LabelChoice]:
        if settings.label:
            return self._columns.find("LABEL", settings.label), LabelChoice.ASKED
        # A column that is to be left out is no label by being the first.
        dropped = {self._columns.find("DROP", name): LeftOut.ASKED for name in _names(settings.drop)}
        return self._columns.pick_label(self._left_out | dropped)

    def _drop(self, drop: str) -> None:
        """Leave out the columns that DROP= names."""
        for name in _names(drop):
            place = self._columns.find("DROP", name)
            if place == self._label:
                raise UserError(f"DROP={drop} leaves out '{self._name(place)}', which is the label: give LABEL= too")
            self._left_out[place] = LeftOut.ASKED

    def read(self, paths: Sequence[Path], part: str) -> Iterator[Chunk]:
        """Yield chunks of features, float32 [rows, columns], and labels, int64; all rows are to train on.

        Raises:
            UserError: a line has another column count, a number is missing or infinite or cannot be read, a label is
                missing or not whole, a column has too many categories.
        """
        if part != TRAIN:
            return
        names = [f"c{place}" for place in range(len(self._columns))]  # a user's own names may repeat
        types = {names[place]: self._type(place) for place in (self._label, *self._features)}
        line = 1 + self._dialect.skip
        for batch in stream_csv(self._path, names, self._dialect, types):
            label_values = self._values(batch.column(names[self._label]), self._label, line)
            missing = np.flatnonzero(np.isnan(label_values))
            if len(missing):
                raise UserError(f"'{self._path}' line {line + int(missing[0]):,} has no label: give it one")
            labels = whole_numbers(self._path, label_values, "line", line)
            values = np.empty((batch.num_rows, len(self._features)), np.float32)
            for number, place in enumerate(self._features):
                values[:, number] = self._feature(batch.column(names[place]), place, line)
            # One sum shows whether there is any infinity; only then is it worth looking where.
            if not np.isfinite(values.sum(dtype=np.float64)) and len(infinite := np.argwhere(np.isinf(values))):
                raise not_a_number(self._path, line + int(infinite[0][0]), self._features[infinite[0][1]])
            self._rows += len(values)
            line += len(values)
            yield values, labels

    def _type(self, place: int) -> str:
        """Return the type as which a column is read."""
        column = self._columns[place]
        if column.text or column.form:
            return "string"
        return "float64" if place == self._label else "float32"

    def _feature(self, cells: Any, place: int, line: int) -> Array:
        """Return the values of a feature in one batch, and count what is missing."""
        values = self._values(cells, place, line)
        missing = np.isnan(values)
        gaps = int(missing.sum())
        if gaps and place not in self._codes and not self._dialect.names:
            raise not_a_number(self._path, line + int(missing.argmax()), place)
        self._missing[place] += gaps
        return values

    def _values(self, cells: Any, place: int, line: int) -> Array:
        """Return the cells of one column in one batch, NaN where they are missing; `line` is that of the first.

        Of a text it is its number in order of first appearance, float32.
        """
        form = self._columns[place].form
        if place not in self._codes and form is None:
            # pyarrow's own to_numpy() would import pandas, a second of work
            values: Array = np.from_dlpack(cells.fill_null(np.nan) if cells.null_count else cells)
            return values
        encoded = cells.dictionary_encode()
        words = [word.strip() for word in encoded.dictionary.to_pylist()]
        places: Array = np.from_dlpack(encoded.indices)
        if form is not None:
            numbers: Array = self._formatted(words, place, form, line, places)[places]
            return numbers
        codes = self._codes[place]
        ranks = [np.nan if is_missing(word) else codes.setdefault(word, len(codes)) for word in words]
        if len(codes) > _MOST_CATEGORIES:
            if place == self._label:
                raise self.no_label()
            raise UserError(
                f"'{self._path}' column '{self._name(place)}' has more than {_MOST_CATEGORIES:,} different texts, too "
                f"many for categories: leave it out with DROP={self._word(place)}"
            )
        categories: Array = np.array(ranks, np.float32)[places]
        return categories

    def _formatted(self, words: list[str], place: int, form: NumberForm, line: int, places: Array) -> Array:
        """Return the numbers, float64, that a column's different texts are; `places` are those of its cells."""
        values = np.full(len(words), np.nan)
        for number, word in enumerate(words):
            if is_missing_number(word):
                continue
            read = read_number(word, form.decimal)
            needed = form.unit if form.unit == "%" else ""
            if read is None or read.unit not in (form.unit, needed):
                row = line + int(np.flatnonzero(places == number)[0])
                raise UserError(
                    f"'{self._path}' line {row:,} column '{self._name(place)}': '{word[:60]}' is not a number as the "
                    f"others are: correct it, or leave the column out with DROP={self._word(place)}"
                )
            values[number] = read.value
        return values

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's texts by their numbers, none where labels are numbers."""
        return tuple(self._codes.get(self._label, ()))

    def no_label(self) -> UserError:
        """Return the error that the label is different in nearly every row."""
        return self._columns.no_label(self._label)

    def encode(self, path: Path, train_rows: int) -> tuple[str, ...]:
        """Rewrite `path`, the .npy file of what `read` yielded, as the network takes it; return what was done.

        A category is a column of zeros and ones for each of its texts, in alphabetical order; where it is missing all
        are 0. A missing number is the mean of its column over the first `train_rows` rows.

        Raises:
            UserError: a column is missing in half of the rows or more, or its texts are different in nearly every row.
        """
        for place, count in self._missing.items():
            self._check_filled(place, count)
        if any(place in self._codes for place in self._features) or any(self._missing.values()):
            wide = path.with_suffix(".wide.npy")
            means = _means(path, train_rows, len(self._features))
            width = sum(len(self._codes.get(place, "x")) for place in self._features)
            with NpyWriter(wide, "float32", (width,)) as file:
                for chunk in read_chunks(path, self._rows):
                    file.append(self._wide(chunk, means, width))
            replace_file(wide, path, "prepared data")
        return self._notes()

    def _check_filled(self, place: int, missing: int) -> None:
        """Raise a UserError if a column is missing in half of the rows, or has a text of its own in most."""
        if 2 * missing >= self._rows:
            raise UserError(
                f"'{self._path}' column '{self._name(place)}' is missing in {missing:,} of {self._rows:,} rows, too "
                f"many to fill in: leave it out with DROP={self._word(place)}"
            )
        texts = len(self._codes.get(place, ()))
        if texts >= _NAMES and 2 * texts > self._rows:
            raise UserError(
                f"'{self._path}' column '{self._name(place)}' has {texts:,} different texts in {self._rows:,} rows, "
                f"which are no categories: leave it out with DROP={self._word(place)}"
            )

    def _wide(self, chunk: Array, means: Vector, width: int) -> Array:
        """Return rows of `read` [rows, columns] with a column for each category and no missing value."""
        rows = np.zeros((len(chunk), width), np.float32)
        begin = 0
        for number, place in enumerate(self._features):
            values = chunk[:, number]
            present = ~np.isnan(values)
            if place in self._codes:
                ranks = np.argsort(np.argsort(list(self._codes[place])))
                rows[np.flatnonzero(present), begin + ranks[values[present].astype(np.int64)]] = 1
                begin += len(ranks)
            else:
                rows[:, begin] = np.where(present, values, means[number])
                begin += 1
        return rows

    def _name(self, place: int) -> str:
        return self._columns[place].name

    def _word(self, place: int) -> str:
        """Return what DROP= and LABEL= take for a column."""
        return self._name(place) if self._columns[place].named else str(place + 1)

    def columns(self) -> TableColumns:
        """Return what was understood of the form and the columns; complete when all rows are read."""
        dialect = self._dialect
        texts = [place for place in self._features if place in self._codes]
        forms = [(place, form) for place in self._features if (form := self._columns[place].form)]
        return TableColumns(
            separator=dialect.separator,
            decimal=dialect.decimal or ".",
            encoding=dialect.encoding,
            header=bool(dialect.names),
            numbers=tuple(self._name(place) for place in self._features if place not in self._codes),
            texts=tuple(TextColumn(name=self._name(place), categories=len(self._codes[place])) for place in texts),
            label=self._name(self._label),
            label_choice=self._choice.value,
            left_out=tuple(
                ColumnLeftOut(name=self._name(place), reason=reason.value) for place, reason in self._left_out.items()
            ),
            written=tuple(WrittenNumbers(name=self._name(place), unit=form.unit) for place, form in forms),
            gaps=tuple(ColumnGaps(name=self._name(place), rows=rows) for place, rows in self._missing.items() if rows),
        )

    def _notes(self) -> tuple[str, ...]:
        """Return a sentence for each thing that was done to the columns."""
        file, name = self._path.name, self._name
        texts = [f"{name(place)} ({len(self._codes[place])})" for place in self._features if place in self._codes]
        gaps = [
            f"{name(place)} {count:,} ({'no category' if place in self._codes else 'the mean of training rows'})"
            for place, count in self._missing.items()
            if count
        ]
        reason = _CHOICE_WORDS[self._choice]
        names = [name(place).lower() for place in self._features]
        twice = sorted({word for word in names if names.count(word) > 1})
        sentences = (
            (f"label of {file}: {name(self._label)}, {reason}", True),
            (f"left out of {file}: {', '.join(map(name, self._left_out))}", self._left_out),
            (f"names of several columns of {file}, all of which are features: {', '.join(twice)}", twice),
            (f"one column for each category of {file}: {', '.join(texts)}", texts),
            (f"missing in {file}: {', '.join(gaps)}", gaps),
        )
        return tuple(sentence for sentence, applies in sentences if applies)


def _names(drop: str) -> list[str]:
    """Return the columns of DROP=, written as a line of CSV."""
    return next(csv.reader([drop]), [])


def _means(path: Path, rows: int, columns: int) -> Vector:
    """Return the mean of each column of a .npy file over the values that its first rows have."""
    total = np.zeros(columns)
    count = np.zeros(columns)
    for chunk in read_chunks(path, rows):
        total += np.nansum(chunk, axis=0, dtype=np.float64)
        count += (~np.isnan(chunk)).sum(axis=0)
    return (total / np.maximum(count, 1)).astype(np.float32)
