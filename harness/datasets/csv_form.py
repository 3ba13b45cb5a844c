"""How a CSV file is written: separator, decimal mark and header, by its first rows and what the user says of it.

What the first rows do not prove is refused, with the setting that says it. The sniffers of DuckDB and of Python's csv
module always answer: of 11 files whose header is not plain they took 6 and 4 header lines for rows or rows for header
lines, and read each of 10 files that can be read in two ways, in silence.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.datasets.csv_rows import (
    COMMA,
    GZIP,
    POINT,
    CsvForm,
    find_encoding,
    is_missing_number,
    is_number,
    read_cells,
)

LABEL_NAMES = ("label", "target", "class")
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "blank": " "}
"""The values of SEPARATOR= and the characters that they stand for; blanks separate in runs."""
DECIMALS = {"point": POINT, "comma": COMMA}
TSV = ".tsv"
_SAMPLE_ROWS = 1_000
_SAMPLE_CELLS = 100_000
_LEAST_COUNTED = 5

Row = Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvSettings:
    """What the user says of a CSV file: values of LABEL=, DROP=, SEPARATOR=, DECIMAL= and HEADER=, empty if unset."""

    label: str = ""
    drop: str = ""
    separator: str = ""
    decimal: str = ""
    header: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The first rows of a file, without its header: their cells, all of one width, without blanks around them."""

    rows: tuple[tuple[str, ...], ...]

    def column(self, place: int) -> list[str]:
        """Return the cells of a column."""
        return [row[place] for row in self.rows]


def find_form(path: Path, settings: CsvSettings) -> tuple[CsvForm, Sample]:
    """Return how a CSV file is written, and its first rows.

    Raises:
        UserError: the file cannot be read, is empty or not text, has one column only, its rows have different numbers
            of cells, or it can be read in two ways.
    """
    encoding = find_encoding(path)
    asked = SEPARATORS.get(settings.separator, "")
    if not asked and path.name.lower().removesuffix(GZIP).endswith(TSV):
        asked = "\t"
    candidates = [asked] if asked else list(SEPARATORS.values())
    forms = [CsvForm(path=path, encoding=encoding, separator=separator) for separator in candidates]
    form, first_rows = _choose([(form, _first_rows(form)) for form in forms])
    header_line, first = first_rows[0]
    cells = tuple(_stripped(row) for _, row in first_rows)
    if settings.header == "yes" or (not settings.header and is_header(path, cells)):
        form = replace(form, header_line=header_line, skip=header_line, names=cells[0])
        cells = cells[1:]
    form = replace(form, width=len(first), decimal=_find_decimal(form, cells, settings.decimal))
    return form, Sample(rows=cells)


def _stripped(row: Row) -> tuple[str, ...]:
    return tuple(map(str.strip, row))


NumberedRows = list[tuple[int, list[str]]]


def _first_rows(form: CsvForm) -> NumberedRows:
    """Return the first rows with their lines.

    Raises:
        UserError: the file is empty, or not text.
    """
    rows: NumberedRows = []
    for line, row in read_cells(form):
        rows.append((line, row))
        if len(rows) > _SAMPLE_ROWS or len(rows) * len(row) > _SAMPLE_CELLS:
            break
    cells = list(itertools.chain.from_iterable(row for _, row in rows))
    if not any(cell.strip() for cell in cells):
        raise UserError(f"'{form.path}' is empty: give at least two rows")
    if any("\0" in cell for cell in cells):
        raise UserError(f"'{form.path}' is not CSV text (it has NUL characters): save it as UTF-8")
    return rows


def _choose(readings: list[tuple[CsvForm, NumberedRows]]) -> tuple[CsvForm, NumberedRows]:
    """Return the one reading whose rows have the same number of cells, with no cell that another would divide.

    Raises:
        UserError: there is none, or there are several.
    """
    path = readings[0][0].path
    tables = [(form, rows) for form, rows in readings if len(rows[0][1]) > 1 and not _fault(rows)]
    if not tables:
        raise _no_table(path, readings)
    if len(readings) == 1:
        return tables[0]
    separators = {form.separator for form, _ in tables} | {";", "\t", "|"}
    whole = [(form, rows) for form, rows in tables if not _divided(rows, separators - {form.separator})]
    if len(whole) == 1:
        return whole[0]
    seen = " or ".join(f"{separator_name(form.separator)} ({len(rows[0][1])})" for form, rows in whole or tables)
    start = " ".join(" | ".join(tables[0][1][0][1]).split())[:80]
    raise UserError(
        f"'{path}' may be columns separated by {seen}, and some cells have other separators in them; its first row is "
        f"'{start}': say which it is with {setting('separator')}"
    )


def _fault(rows: NumberedRows) -> str:
    """Return why rows are no table, empty if they are."""
    width = len(rows[0][1])
    wrong = next(((line, row) for line, row in rows if len(row) != width), None)
    return f"line {wrong[0]:,}: expected {width} columns, got {len(wrong[1])}" if wrong else ""


def _divided(rows: NumberedRows, separators: set[str]) -> bool:
    """Return whether a cell below the first row, which is no number, has one of these separators in it."""
    cells: set[str] = set()
    for _, row in rows[1:] or rows:
        cells.update(_stripped(row))
    inner = re.compile("[" + re.escape("".join(sorted(separators))) + "]")
    return any(inner.search(cell) and not is_number(cell, COMMA) for cell in cells)


def _no_table(path: Path, readings: list[tuple[CsvForm, NumberedRows]]) -> UserError:
    """Return the error of a file that no separator makes a table of."""
    several = [(form, rows) for form, rows in readings if len(rows[0][1]) > 1 or _fault(rows)]
    if not several:
        return UserError(
            f"'{path}' has one column only: give a label and features, separated by commas, or name the separator "
            f"with {setting('separator')}"
        )

    def agreeing(reading: tuple[CsvForm, NumberedRows]) -> int:
        widths = [len(row) for _, row in reading[1] if len(row) > 1]
        return max(map(widths.count, set(widths)))

    form, rows = max(several, key=agreeing)
    return UserError(
        f"'{path}' is not a table of columns separated by {separator_name(form.separator)}: {_fault(rows)}; give every "
        f"row the same number, the header too, or name another separator with {setting('separator')}"
    )


def separator_name(separator: str) -> str:
    """Return the word of SEPARATOR= for a character."""
    return next((name for name, character in SEPARATORS.items() if character == separator), repr(separator))


def is_header(path: Path, rows: Sequence[Row]) -> bool:
    """Return whether the first of `rows`, all of one width, is a header.

    It is one if a column is called label, target or class, or if texts stand above numbers and no cell is a fraction.
    It is a row if all its cells are numbers that do not count up, or if a number is a fraction or a text comes again.

    Raises:
        UserError: it may be either.
    """
    first = rows[0]
    below = [row for row in rows[1:] if row != first]
    columns = list(zip(*below, strict=True)) or [()] * len(first)
    if any(cell.lower() in LABEL_NAMES for cell in first):
        return True
    values = [cell for cell in first if _is_value(cell)]
    texts = [place for place, cell in enumerate(first) if not _is_value(cell)]
    numbers_below = [place for place in texts if _are_numbers(columns[place])]
    fractions = any(re.fullmatch(r"[+-]?\d*[.,]\d+(?:[eE][+-]?\d+)?", cell) for cell in values)
    if numbers_below and not fractions:
        return True
    if not numbers_below:
        again = any(first[place] in columns[place] for place in texts)
        if fractions or (texts and again and len(texts) < len(first)) or (not texts and not _count_up(first)):
            return False
    start = " ".join(", ".join(first).split())[:80]
    raise UserError(
        f"'{path}' line 1, '{start}', may be a header or the first row: say which with {setting('header', 'yes')} or "
        f"{setting('header', 'no')}"
    )


def _is_value(cell: str) -> bool:
    return is_missing_number(cell) or is_number(cell) or is_number(cell, COMMA)


def _are_numbers(cells: Row) -> bool:
    """Return whether at least half of the cells that are not missing are numbers."""
    present = [cell for cell in cells if not is_missing_number(cell)]
    return bool(present) and 2 * sum(map(_is_value, present)) >= len(present)


def _count_up(cells: Row) -> bool:
    """Return whether the whole numbers of a line count up by one, as the names of an array's columns do."""
    named = [cell for cell in cells if cell]
    if len(named) < 2 or not all(re.fullmatch(r"\d{1,9}", cell, re.ASCII) for cell in named):
        return False
    return all(int(after) == int(before) + 1 for before, after in itertools.pairwise(named))


def numbers_rows(cells: Row) -> bool:
    """Return whether a column's cells count up from 0 or 1, over enough rows to be no chance."""
    return len(cells) >= _LEAST_COUNTED and _count_up(cells) and cells[0] in ("0", "1")


_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}(?:\1\d{3})*", re.ASCII)


def _find_decimal(form: CsvForm, rows: Sequence[Row], asked: str) -> str:
    """Return the decimal mark: the one `asked` for, else the one that numbers prove, empty where none has a mark.

    A number with three digits behind each of its marks, as in ``1,234``, proves nothing.

    Raises:
        UserError: numbers prove both marks, or have a mark that may be either.
    """
    if asked:
        return DECIMALS[asked]
    proofs: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for cells in zip(*rows, strict=True):
        if not _are_numbers(cells):
            continue
        for cell in dict.fromkeys(cells):
            for mark in (POINT, COMMA):
                if mark in cell and is_number(cell, mark):
                    (unsure if _GROUPED.fullmatch(cell) else proofs).setdefault(mark, cell)
    if len(proofs) == 2:
        raise UserError(
            f"'{form.path}' has numbers with decimal points and with decimal commas, '{proofs[POINT]}' and "
            f"'{proofs[COMMA]}': write them in one way, or say with {setting('decimal')} which it is"
        )
    if unsure and not proofs:
        mark, cell = next(iter(unsure.items()))
        raise UserError(
            f"'{form.path}' has '{cell}', which may be {cell.replace(mark, '')} or {cell.replace(mark, '.')}: write it "
            f"without thousands marks, and say with {setting('decimal', 'point')} or {setting('decimal', 'comma')} "
            "which "
            "mark stands before decimals"
        )
    return next(iter(proofs), "")
