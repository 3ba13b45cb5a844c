"""The columns of a user's own CSV file: what they are, and as arrays."""

import csv
import enum
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError, unknown
from harness.base.removal import replace_file
from harness.datasets.csv_dialect import LABEL_NAMES, CsvSample, CsvSettings, numbers_rows, read_sample
from harness.datasets.csv_rows import is_missing, not_a_number, stream_csv
from harness.datasets.dataset import TRAIN, Array, Chunk
from harness.datasets.npy_files import NpyWriter, Vector, read_chunks
from harness.datasets.number_text import (
    POINT,
    NumberForm,
    is_date,
    is_missing_number,
    is_number_like,
    is_plain_number,
    read_number,
)
from harness.datasets.own_file import whole_numbers
from harness.schema.data_record import ColumnGaps, ColumnLeftOut, TableColumns, TextColumn, WrittenNumbers

# What the columns of a CSV file are: numbers or texts, the label, those left out; seen in its first rows.

_FEW = 20  # different texts that are categories whatever they look like
_LEAST_ROWS = 10  # fewer show nothing
_MOST_CLASSES = 100


class LabelChoice(enum.Enum):
    """How the label's column was chosen."""

    ASKED = "asked"
    BY_NAME = "by name"
    FIRST = "first"


class LeftOut(enum.Enum):
    """Why a column is left out."""

    ASKED = "asked"
    INDEX = "index"
    EMPTY = "empty"


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of the file. `name` is what messages call it; `named` says that it has a name of its own.

    `text`: its values are categories. `form` is that of numbers which a CSV parser does not read by itself.
    """

    place: int
    name: str
    named: bool
    text: bool
    form: NumberForm | None = None


class Columns:
    """The columns of a file as its first rows show them."""

    def __init__(self, path: Path, sample: CsvSample) -> None:
        self._path, self._sample = path, sample
        self._all = [self._column(place) for place in range(sample.dialect.width)]

    def __getitem__(self, place: int) -> Column:
        return self._all[place]

    def __len__(self) -> int:
        return len(self._all)

    def _column(self, place: int) -> Column:
        dialect = self._sample.dialect
        name = dialect.names[place] if dialect.names else ""
        named = bool(name) and re.fullmatch(r"Unnamed: \d+", name) is None  # pandas' word for none
        cells = self._present(place)
        decimal = dialect.decimal or POINT
        plain = [cell for cell in cells if is_plain_number(cell, decimal)]
        formatted = [cell for cell in cells if not is_plain_number(cell, decimal) and read_number(cell, decimal)]
        text = 2 * (len(plain) + len(formatted)) < len(cells)
        unit = ""
        if formatted and not text:
            unit = self._unit(place, plain, formatted, decimal)
        return Column(
            place=place,
            name=name if named else f"column {place + 1}",
            named=named,
            text=text,
            form=NumberForm(decimal=decimal, unit=unit) if formatted and not text else None,
        )

    def _present(self, place: int) -> list[str]:
        """Return the stripped cells of a column that are not missing."""
        return [cell.strip() for cell in self._sample.column(place) if not is_missing_number(cell)]

    def _unit(self, place: int, plain: list[str], formatted: list[str], decimal: str) -> str:
        """Return the unit of a column's numbers; raise a UserError if they have several."""
        cells: dict[str, str] = {}
        for cell in formatted:
            number = read_number(cell, decimal)
            if number is not None:
                cells.setdefault(number.unit, cell)
        units = [unit for unit in cells if unit]
        bare = cells.get("", plain[0] if plain else "")
        if len(units) > 1 or (units == ["%"] and bare):
            seen = [cells[unit] for unit in units] + ([bare] if bare else [])
            first, second = seen[:2]
            raise UserError(
                f"'{self._path}' column {place + 1} has '{first}' in {self.line_of(place, first)} and '{second}' in "
                f"{self.line_of(place, second)}: write its numbers in one unit, or leave it out with DROP={place + 1}"
            )
        return units[0] if units else ""

    def line_of(self, place: int, cell: str) -> str:
        """Return ``line N`` of the first row that has this cell in the column."""
        cells = self._sample.column(place)
        row = next(number for number, text in enumerate(cells) if text.strip() == cell)
        return f"line {self._sample.lines[row]:,}"

    def find(self, setting: str, name: str) -> int:
        """Return the place of the column that `name` names, or counts from 1.

        Raises:
            UserError: there is none, or several.
        """
        names = [column.name.lower() if column.named else "" for column in self._all]
        wanted = name.strip().lower()
        places = [place for place, text in enumerate(names) if text and text == wanted]
        if len(places) > 1:
            numbers = ", ".join(str(place + 1) for place in places)
            raise UserError(
                f"{setting}={name} is the name of {len(places)} columns of '{self._path}': give the number of one "
                f"({numbers}), or rename them"
            )
        if places:
            return places[0]
        numbered = any(text.isdigit() for text in names)  # then a number alone may be meant for a name
        counted = re.fullmatch(r"(?:column ?)?(\d{1,6})" if not numbered else r"column ?(\d{1,6})", wanted, re.ASCII)
        if counted and 1 <= int(counted[1]) <= len(names):
            return int(counted[1]) - 1
        if not any(names):
            raise UserError(
                f"{setting}={name} names a column, and '{self._path}' has no header: give its number, 1 to {len(names)}"
            )
        raise unknown(setting, name, [text for text in names if text])

    def left_out(self) -> dict[int, LeftOut]:
        """Return the columns that hold nothing to train on: nameless ones that number the rows, or that are empty.

        Raises:
            UserError: a column below a header has no name and other values.
        """
        reasons = {}
        header = bool(self._sample.dialect.names)
        for column in self._all:
            if column.named:
                continue
            cells = self._present(column.place)
            last = column.place == len(self._all) - 1
            if not cells and last and self._sample.rows:
                reasons[column.place] = LeftOut.EMPTY
            elif column.place == 0 and self._is_index(cells, header):
                reasons[column.place] = LeftOut.INDEX
        return reasons

    def _is_index(self, cells: list[str], header: bool) -> bool:
        """Return whether the nameless first column numbers the rows, or below a header names each."""
        if not header:
            return len(cells) >= _LEAST_ROWS and numbers_rows(cells)
        whole = all(re.fullmatch(r"\d{1,18}", cell, re.ASCII) for cell in cells)
        different = len(set(cells)) == len(cells) == len(self._sample.rows)
        runs = whole and all(int(b) == int(a) + 1 or int(b) == 0 for a, b in itertools.pairwise(cells))
        texts = not any(map(is_number_like, cells))
        return (different and (whole or texts)) or (runs and len(cells) >= _LEAST_ROWS)

    def check_named(self, place: int) -> None:
        """Raise a UserError if a feature below a header has no name: whether it is one is not known."""
        if self._sample.dialect.names and not self._all[place].named:
            number = place + 1
            raise UserError(
                f"'{self._path}' column {number} has no name in the header and holds '{self._cell(place)}': leave it "
                f"out with DROP={number}, make it the label with LABEL={number}, or name it"
            )

    def _cell(self, place: int) -> str:
        return next(iter(self._present(place)), "")

    def check_feature(self, place: int) -> None:
        """Raise a UserError if a column of texts has what looks like other things than categories."""
        column = self._all[place]
        cells = self._present(place)
        if not column.text or not cells:
            return
        dates = [cell for cell in cells if is_date(cell)]
        if 2 * len(dates) > len(cells):
            raise self._refused(place, dates[0], "dates are neither numbers nor categories")
        if len(set(cells)) <= max(2, min(_FEW, len(cells) // 2)):
            return
        numbers = [cell for cell in cells if is_number_like(cell)]
        if 10 * len(numbers) > len(cells):
            raise self._refused(place, numbers[0], f"numbers stand among texts such as '{_other(cells, numbers)}'")
        likes = [cell for cell in cells if _NUMBER_IN_TEXT.fullmatch(cell)]
        if 2 * len(likes) > len(cells):
            raise self._refused(place, likes[0], "it looks like a number and cannot be read as one")

    def _refused(self, place: int, cell: str, why: str) -> UserError:
        name = self._all[place].name
        drop = name if self._all[place].named else str(place + 1)
        return UserError(
            f"'{self._path}' {self.line_of(place, cell)} column '{name}' has '{cell[:60]}': {why}; write plain "
            f"numbers, or leave it out with DROP={drop}"
        )

    def pick_label(self, out: dict[int, LeftOut]) -> tuple[int, LabelChoice]:
        """Return the label's place where nobody named it: a column called so, else the first that is not left `out`.

        Raises:
            UserError: several are called so, or the first cannot be a label.
        """
        called = [column.place for column in self._all if column.name.lower() in LABEL_NAMES]
        called = [place for place in called if place not in out]
        if len(called) > 1:
            names = ", ".join(self._all[place].name for place in called)
            raise UserError(f"'{self._path}' has several columns that may be the label, {names}: say which with LABEL=")
        if called:
            return called[0], LabelChoice.BY_NAME
        remaining = [column.place for column in self._all if column.place not in out]
        if not remaining:
            raise UserError(f"'{self._path}' has no column that is not left out: give a label and features")
        first = remaining[0]
        if not self._may_be_label(first):
            raise self.no_label(first)
        return first, LabelChoice.FIRST

    def _may_be_label(self, place: int) -> bool:
        cells = self._present(place)
        if not self._all[place].text and any(re.fullmatch(r"[+-]?\d+(?:[.,]0*)?", cell) is None for cell in cells):
            return False
        return len(cells) < _LEAST_ROWS or 2 * len(set(cells)) <= len(cells)

    def no_label(self, place: int) -> UserError:
        """Return the error that a column is no label, with the name of the one that may be it."""
        likely = [
            column.place
            for column in self._all
            if column.place != place
            and self._may_be_label(column.place)
            and 2 <= len(set(self._present(column.place))) <= _MOST_CLASSES
        ]
        texts = [other for other in likely if self._all[other].text]
        at_end = [other for other in likely if other == len(self._all) - 1]
        guesses = [*(other for other in texts if other in at_end), *at_end, *reversed(texts), *reversed(likely)]
        fix = "say which column is the label with LABEL="
        if guesses:
            guess = self._all[guesses[0]]
            fix = f"the label is rather '{guess.name}': LABEL={guess.name if guess.named else guess.place + 1}"
        return UserError(
            f"'{self._path}' column '{self._all[place].name}' cannot be the label, as its values are different in "
            f"nearly every row or no whole numbers ('{self._cell(place)[:60]}'): {fix}"
        )


# A number with signs or words around it, such as 12 kg, <5, 1,23,456 or 5-; not 3rd-party or A12.
_NUMBER_IN_TEXT = re.compile(r"\W*\d[\d.,'\u2019\u00a0\u202f ]*\D{0,12}")


def _other(cells: list[str], numbers: list[str]) -> str:
    """Return the most frequent cell that is no number."""
    numeric = set(numbers)
    return Counter(cell for cell in cells if cell not in numeric).most_common(1)[0][0][:60]


# The columns of a user's own CSV file as arrays.
#
# The text is read once, chunk by chunk: a number as it is, a category as its place among those met so far, a missing
# value as NaN. Where there are categories or missing values the rows so made are written a second time, as the network
# takes them.

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
