"""What the columns of a CSV file are: numbers or texts, the label, those left out; seen in its first rows."""

import enum
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError, unknown
from harness.datasets.csv_dialect import CsvSample
from harness.datasets.csv_header import LABEL_NAMES, numbers_rows
from harness.datasets.number_text import (
    POINT,
    NumberForm,
    is_date,
    is_missing_number,
    is_number_like,
    is_plain_number,
    read_number,
)

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
