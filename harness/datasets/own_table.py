"""The columns of a user's own table: what they are, and as arrays."""

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
from harness.base.setting_names import setting
from harness.datasets.csv_form import LABEL_NAMES, CsvSettings, numbers_rows
from harness.datasets.csv_rows import (
    INNER_MARK,
    POINT,
    header_again,
    is_missing_number,
    is_missing_text,
    is_number,
    number_values,
)
from harness.datasets.dataset import TRAIN, Array, Chunk
from harness.datasets.npy_files import NpyWriter, read_chunks
from harness.datasets.own_file import whole_numbers
from harness.datasets.single_precision import Centring, Doubles, centred_columns, find_centring, measure_columns
from harness.datasets.table_sources import TableSource, open_table
from harness.schema.data_record import CentredColumn, ColumnGaps, ColumnLeftOut, TableColumns, TextColumn

# What the columns of a table are: numbers or texts, the label, those left out; seen in its first rows.

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

    `text`: its values are categories.
    """

    place: int
    name: str
    named: bool
    text: bool


class Columns:
    """The columns of a file as its first rows show them."""

    def __init__(self, source: TableSource) -> None:
        self._path = source.path
        self._source = source
        self._sample = source.sample
        self._decimal = source.decimal or POINT
        self._all = [self._column(place) for place in range(source.width)]

    def __getitem__(self, place: int) -> Column:
        return self._all[place]

    def __len__(self) -> int:
        return len(self._all)

    def _column(self, place: int) -> Column:
        name = self._source.names[place] if self._source.names else ""
        named = bool(name) and re.fullmatch(r"Unnamed: \d+", name) is None  # pandas' word for none
        cells = self._present(place)
        return Column(
            place=place,
            name=name if named else f"column {place + 1}",
            named=named,
            text=2 * sum(map(self._is_number, cells)) < len(cells),
        )

    def _is_number(self, cell: str) -> bool:
        return is_number(cell, self._decimal)

    def _present(self, place: int) -> list[str]:
        """Return the cells of a column that are not missing."""
        return [cell for cell in self._sample.column(place) if not is_missing_number(cell)]

    def line_of(self, place: int, cell: str) -> str:
        """Return ``line N`` of the first row that has this cell in the column."""
        return self._source.position(self._sample.column(place).index(cell))

    def find(self, option: str, name: str) -> int:
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
                f"{setting(option, name)} is the name of {len(places)} columns of '{self._path}': give the number "
                "of one "
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
                f"{setting(option, name)} names a column, and '{self._path}' has no header: give its number, 1 to "
                f"{len(names)}"
            )
        raise unknown(option, name, [text for text in names if text])

    def left_out(self) -> dict[int, LeftOut]:
        """Return the columns that hold nothing to train on: nameless ones that number the rows, or that are empty.

        Raises:
            UserError: a column below a header has no name and other values.
        """
        reasons = {}
        header = bool(self._source.names)
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
        texts = not any(map(self._is_number, cells))
        return (different and (whole or texts)) or (runs and len(cells) >= _LEAST_ROWS)

    def check_named(self, place: int) -> None:
        """Raise a UserError if a feature below a header has no name: whether it is one is not known."""
        if self._source.names and not self._all[place].named:
            number = place + 1
            raise UserError(
                f"'{self._path}' column {number} has no name in the header and holds '{self._cell(place)}': leave it "
                f"out with {setting('drop', number)}, make it the label with {setting('label', number)}, or name it"
            )

    def _cell(self, place: int) -> str:
        return next(iter(self._present(place)), "")

    def check_texts(self, place: int) -> None:
        """Raise a UserError if a column of texts has what looks like numbers or dates that are not read as such."""
        column = self._all[place]
        cells = self._present(place)
        if not column.text or not cells:
            return
        for pattern, why in _NO_CATEGORIES:
            likes = [cell for cell in cells if pattern.fullmatch(cell)]
            if 10 * len(likes) > len(cells):
                raise self._refused(place, likes[0], why)
        if len(set(cells)) <= max(2, min(_FEW, len(cells) // 2)):
            return
        numbers = [cell for cell in cells if self._is_number(cell)]
        if 10 * len(numbers) > len(cells):
            numeric = set(numbers)
            texts = Counter(cell for cell in cells if cell not in numeric)
            most_frequent = texts.most_common(1)[0][0][:60]
            raise self._refused(place, numbers[0], f"numbers stand among texts such as '{most_frequent}'")
        likes = [cell for cell in cells if _NUMBER_IN_TEXT.fullmatch(cell)]
        if 2 * len(likes) > len(cells):
            raise self._refused(place, likes[0], "it looks like a number and cannot be read as one")

    def _refused(self, place: int, cell: str, why: str) -> UserError:
        name = self._all[place].name
        drop = name if self._all[place].named else str(place + 1)
        return UserError(
            f"'{self._path}' {self.line_of(place, cell)} column '{name}' has '{cell[:60]}': {why}; write plain "
            f"numbers or other texts, or leave it out with {setting('drop', drop)}"
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
            raise UserError(
                f"'{self._path}' has several columns that may be the label, {names}: say which with {setting('label')}"
            )
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
        fix = f"say which column is the label with {setting('label')}"
        if guesses:
            guess = self._all[guesses[0]]
            choice = setting("label", guess.name if guess.named else guess.place + 1)
            fix = f"the label is rather '{guess.name}': {choice}"
        return UserError(
            f"'{self._path}' column '{self._all[place].name}' cannot be the label, as its values are different in "
            f"nearly every row or no whole numbers ('{self._cell(place)[:60]}'): {fix}"
        )


_PLAIN = r"[+-]?[\d.]+(?:[eE][+-]?\d+)?\Z"  # a number among texts is judged by how many they are
_CURRENCIES = "$\u00a2\u00a3\u00a4\u00a5\u20a4\u20a9\u20aa\u20ab\u20ac\u20b4\u20b9\u20ba\u20bd\u20bf"
_BEFORE = rf"[(+\-\u2212]*\s*(?:(?:[A-Z]{{1,3}})?[{_CURRENCIES}]|[A-Z]{{3}}\s)?\s*[+\-\u2212]?"
_DIGITS = r"[.,]?\d[\d.,'\u2019\s]*(?:[eE][+-]?\d+)?"
_AFTER = rf"(?:\s*[{_CURRENCIES}%]|\s[^\W\d]{{1,12}}\.?)?\)?-?"
# Not 3rd-party, A12, <5, 5+ or 18-24, which are categories where they are few.
_NO_CATEGORIES = (
    (
        re.compile(r"\d{1,4}([-/.])(?:\d{1,2}|[A-Za-z]{3,9})\1\d{1,4}(?:[T ].*)?|\d{1,2}:\d\d(?::\d\d.*)?"),
        "dates are no categories",
    ),
    (re.compile(rf"(?!{_PLAIN})(?:{_BEFORE}{_DIGITS}{_AFTER})"), "it is a number with thousands marks or a unit"),
)
# A number with signs or words around it, such as 12 kg, <5, 1,23,456 or 5-.
_NUMBER_IN_TEXT = re.compile(r"\W*\d[\d.,'\u2019\s]*\D{0,12}")


# The columns of a table as arrays.
#
# The table is read once, chunk by chunk, as float64: a number as it is, a category as its place among those met so far,
# a missing value as NaN. The rows so made are written a second time, as the network takes them, in float32.

_MOST_CATEGORIES = 1_000
_WIDE_ROWS = 1 << 14  # a row may have a thousand times as many columns as were read
_NAMES = 100  # so many texts of which most stand in one row alone are names
_CHOICE_WORDS = {
    LabelChoice.ASKED: "which --label names",
    LabelChoice.BY_NAME: "by its name",
    LabelChoice.FIRST: f"as no column is named {', '.join(LABEL_NAMES)}: the first is the label, --label names another",
}


class OwnTable:
    """The columns of the table in the file `path`, which fill while it is read."""

    def __init__(self, path: Path, settings: CsvSettings) -> None:
        """Read the first rows and decide what each column is.

        Raises:
            UserError: the file can be read in two ways or in none, a column that is asked for is not there, no column
                can be the label, no feature is left, or a column is neither numbers nor categories.
        """
        self._path = path
        self._source = open_table(path, settings)
        self._columns = Columns(self._source)
        self._left_out = self._columns.left_out()
        self._label, self._choice = self._pick_label(settings)
        self._left_out.pop(self._label, None)
        self._drop(settings.drop)
        self._features = [place for place in range(len(self._columns)) if place not in (self._label, *self._left_out)]
        if not self._features:
            raise UserError(f"{setting('drop', settings.drop)} leaves no column of '{path}' but the label: keep one")
        self._columns.check_texts(self._label)
        for place in self._features:
            self._columns.check_named(place)
            self._columns.check_texts(place)
        used = (self._label, *self._features)
        self._codes: dict[int, dict[str, int]] = {place: {} for place in used if self._columns[place].text}
        self._spellings: dict[int, dict[str, str]] = {place: {} for place in self._codes}
        self._missing = dict.fromkeys(self._features, 0)
        self._rows = 0
        self._centred: tuple[CentredColumn, ...] = ()

    def _pick_label(self, settings: CsvSettings) -> tuple[int, LabelChoice]:
        if settings.label:
            return self._columns.find("label", settings.label), LabelChoice.ASKED
        # A column that is to be left out is no label by being the first.
        dropped = {self._columns.find("drop", name): LeftOut.ASKED for name in _names(settings.drop)}
        return self._columns.pick_label(self._left_out | dropped)

    def _drop(self, drop: str) -> None:
        """Leave out the columns that DROP= names."""
        for name in _names(drop):
            place = self._columns.find("drop", name)
            if place == self._label:
                raise UserError(
                    f"{setting('drop', drop)} leaves out '{self._name(place)}', which is the label: give "
                    f"{setting('label')} too"
                )
            self._left_out[place] = LeftOut.ASKED

    def read(self, paths: Sequence[Path], part: str) -> Iterator[Chunk]:
        """Yield chunks of features, float64 [rows, columns], and labels, int64; all rows are to train on.

        Raises:
            UserError: a line has another column count, a number is missing or infinite or cannot be read, a label is
                missing or not whole, a column has too many categories or the same text in two spellings, or the header
                comes again.
        """
        if part != TRAIN:
            return
        used = (self._label, *self._features)
        types = {place: "string" if place in self._codes else "float64" for place in used}
        for batch in self._source.stream(types):
            columns = dict(zip(types, batch.columns, strict=True))
            self._check_header(columns)
            labels = self._labels(self._values(columns[self._label], self._label))
            values = np.empty((batch.num_rows, len(self._features)))
            for number, place in enumerate(self._features):
                values[:, number] = self._feature(columns[place], place)
            # One sum shows whether there is any infinity; only then is it worth looking where.
            if not np.isfinite(values.sum()) and len(infinite := np.argwhere(np.isinf(values))):
                raise self._no_number(int(infinite[0][0]), self._features[infinite[0][1]])
            self._rows += len(values)
            yield values, labels

    def _position(self, row: int) -> str:
        """Return where a row of the batch that is being read stands."""
        return self._source.position(self._rows + row)

    def _no_number(self, row: int, place: int) -> UserError:
        return UserError(
            f"'{self._path}' {self._position(row)} column {place + 1} is missing, NaN or infinite: give a number"
        )

    def _check_header(self, columns: dict[int, Any]) -> None:
        """Raise a UserError if a row of a batch has the names of all columns, as texts or as numbers."""
        from pyarrow import compute

        if not self._source.names:
            return
        again = np.ones(len(columns[self._label]), np.bool_)
        for place, column in columns.items():
            name = self._source.names[place]
            if place in self._codes:
                same = compute.equal(compute.utf8_trim_whitespace(column), name)
                again &= same.to_numpy(zero_copy_only=False)
            elif is_number(name, self._source.decimal or POINT):
                again &= number_values(column) == float(name.replace(self._source.decimal or POINT, POINT))
            else:
                return  # a name that is no number cannot be read as one
            if not again.any():
                return
        raise header_again(self._path, self._position(int(again.argmax())))

    def _labels(self, values: Array) -> Array:
        """Return the labels of a batch as int64; raise a UserError if one is missing or not whole."""
        missing = np.flatnonzero(np.isnan(values))
        if len(missing):
            raise UserError(f"'{self._path}' {self._position(int(missing[0]))} has no label: give it one")
        with np.errstate(invalid="ignore"):
            wrong = np.flatnonzero(values != np.floor(values))
        if len(wrong):
            raise UserError(
                f"'{self._path}' {self._position(int(wrong[0]))} has label {values[wrong[0]]}: labels are whole "
                "numbers, one per class"
            )
        return whole_numbers(self._path, values, "row", self._rows)

    def _feature(self, cells: Any, place: int) -> Array:
        """Return the values of a feature in one batch, and count what is missing."""
        values = self._values(cells, place)
        missing = np.isnan(values)
        gaps = int(missing.sum())
        if gaps and place not in self._codes and not self._source.names:
            raise self._no_number(int(missing.argmax()), place)
        self._missing[place] += gaps
        return values

    def _values(self, cells: Any, place: int) -> Array:
        """Return the cells of one column in one batch, NaN where they are missing.

        Of a text it is its number in order of first appearance.
        """
        if place not in self._codes:
            return number_values(cells)
        encoded = cells.dictionary_encode()
        places: Array = np.from_dlpack(encoded.indices)
        numbers = np.empty(len(encoded.dictionary))
        for number, text in enumerate(encoded.dictionary.to_pylist()):
            word = text.strip()
            if is_missing_text(word):
                numbers[number] = np.nan
                continue
            if word not in self._codes[place]:
                self._check_spelling(place, word, int(np.flatnonzero(places == number)[0]))
            numbers[number] = self._codes[place].setdefault(word, len(self._codes[place]))
        if len(self._codes[place]) > _MOST_CATEGORIES:
            if place == self._label:
                raise self.no_label()
            raise UserError(
                f"'{self._path}' column '{self._name(place)}' has more than {_MOST_CATEGORIES:,} different texts, too "
                f"many for categories: leave it out with {setting('drop', self._word(place))}"
            )
        categories: Array = numbers[places]
        return categories

    def _check_spelling(self, place: int, word: str, row: int) -> None:
        """Raise a UserError if a new text has a byte order mark, or differs from another by case or blanks only."""
        where = f"'{self._path}' {{}} column '{self._name(place)}' has '{word[:60].replace(INNER_MARK, '<U+FEFF>')}'"
        if INNER_MARK in word or "\0" in word:
            raise UserError(
                f"{where.format(self._position(row))}, with a byte order mark or NUL inside the file, as where files "
                "were put together: take it out"
            )
        same = self._spellings[place].setdefault("".join(word.split()).casefold(), word)
        if same != word:
            left_out = (
                "" if place == self._label else f", or leave the column out with {setting('drop', self._word(place))}"
            )
            raise UserError(
                f"{where.format(self._position(row))}, which differs from '{same[:60]}' by case or blanks only: write "
                f"both in one way{left_out}"
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's texts by their numbers, none where labels are numbers."""
        return tuple(self._codes.get(self._label, ()))

    def no_label(self) -> UserError:
        """Return the error that the label is different in nearly every row."""
        return self._columns.no_label(self._label)

    def encode(self, path: Path, train_rows: int) -> tuple[str, ...]:
        """Rewrite `path`, the .npy file of what `read` yielded, as float32 for the network; return what was done.

        A category is a column of zeros and ones for each of its texts, in alphabetical order; where it is missing all
        are 0. A missing number is the mean of its column over the first `train_rows` rows. Numbers that float32
        does not hold are centred and scaled, as `single_precision` says.

        Raises:
            UserError: a column is missing in half of the rows or more, its texts are different in nearly every row, or
                float64 does not tell its numbers apart.
        """
        for place, count in self._missing.items():
            self._check_filled(place, count)
        count = len(self._features)
        measured = measure_columns(read_chunks(path, self._rows), (count,))
        means = measured.mean
        if any(self._missing.values()):
            means = measure_columns(read_chunks(path, train_rows), (count,)).mean
        numbers = np.array([place not in self._codes for place in self._features])
        names = [self._name(place) for place in self._features]
        centring = find_centring(self._path, measured, names, numbers)
        self._centred = centred_columns(centring, names)
        width = sum(len(self._codes.get(place, "x")) for place in self._features)
        encoded = path.with_suffix(".encoded.npy")
        with NpyWriter(encoded, "float32", (width,)) as file:
            for chunk in read_chunks(path, self._rows):
                for start in range(0, len(chunk), _WIDE_ROWS):
                    file.append(self._wide(chunk[start : start + _WIDE_ROWS], means, centring, width))
        replace_file(encoded, path, "prepared data")
        return self._notes()

    def _check_filled(self, place: int, missing: int) -> None:
        """Raise a UserError if a column is missing in half of the rows, or has a text of its own in most."""
        if 2 * missing >= self._rows:
            raise UserError(
                f"'{self._path}' column '{self._name(place)}' is missing in {missing:,} of {self._rows:,} rows, too "
                f"many to fill in: leave it out with {setting('drop', self._word(place))}"
            )
        texts = len(self._codes.get(place, ()))
        if texts >= _NAMES and 2 * texts > self._rows:
            raise UserError(
                f"'{self._path}' column '{self._name(place)}' has {texts:,} different texts in {self._rows:,} rows, "
                f"which are no categories: leave it out with {setting('drop', self._word(place))}"
            )

    def _wide(self, chunk: Array, means: Doubles, centring: Centring, width: int) -> Array:
        """Return rows of `read` [rows, columns] with a column for each category and no missing value."""
        rows = np.zeros((len(chunk), width), np.float32)
        begin = 0
        filled = centring.apply(np.where(np.isnan(chunk), means, chunk))
        for number, place in enumerate(self._features):
            if place in self._codes:
                present = ~np.isnan(chunk[:, number])
                ranks = np.argsort(np.argsort(list(self._codes[place])))
                rows[np.flatnonzero(present), begin + ranks[chunk[present, number].astype(np.int64)]] = 1
                begin += len(ranks)
            else:
                rows[:, begin] = filled[:, number]
                begin += 1
        return rows

    def _name(self, place: int) -> str:
        return self._columns[place].name

    def _word(self, place: int) -> str:
        """Return what DROP= and LABEL= take for a column."""
        return self._name(place) if self._columns[place].named else str(place + 1)

    def columns(self) -> TableColumns:
        """Return what was understood of the form and the columns; complete when all rows are read."""
        texts = [place for place in self._features if place in self._codes]
        return TableColumns(
            separator=self._source.separator,
            decimal=self._source.decimal or POINT,
            encoding=self._source.encoding,
            header=bool(self._source.names),
            numbers=tuple(self._name(place) for place in self._features if place not in self._codes),
            texts=tuple(TextColumn(name=self._name(place), categories=len(self._codes[place])) for place in texts),
            label=self._name(self._label),
            label_choice=self._choice.value,
            left_out=tuple(
                ColumnLeftOut(name=self._name(place), reason=reason.value) for place, reason in self._left_out.items()
            ),
            gaps=tuple(ColumnGaps(name=self._name(place), rows=rows) for place, rows in self._missing.items() if rows),
        )

    @property
    def centred(self) -> tuple[CentredColumn, ...]:
        """The columns of numbers that were centred and scaled before float32; known when `encode` is done."""
        return self._centred

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
