"""Whether the first line of a CSV file is a header or a row."""

import enum
import re
from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.datasets.number_text import is_missing_number, is_number_like

LABEL_NAMES = ("label", "target", "class")
Row = Sequence[str]


class FirstLine(enum.Enum):
    """What the first line is."""

    HEADER = "header"
    ROW = "row"
    EITHER = "either"


def has_header(path: Path, rows: Sequence[Row]) -> bool:
    """Return whether the first of `rows`, all of one width, is a header.

    Raises:
        UserError: it may be either.
    """
    kind = first_line(rows)
    if kind is FirstLine.EITHER:
        start = " ".join(", ".join(rows[0]).split())[:80]
        raise UserError(
            f"'{path}' line 1, '{start}', may be a header or the first row: say which with HEADER=yes or HEADER=no"
        )
    return kind is FirstLine.HEADER


def first_line(rows: Sequence[Row]) -> FirstLine:
    """Return what the first of `rows` is, as the rows below it show."""
    first = [cell.strip() for cell in rows[0]]
    rest = rows[1:]
    if any(cell.lower() in LABEL_NAMES for cell in first):
        return FirstLine.HEADER
    if all(is_number_like(cell) or is_missing_number(cell) for cell in first):
        return _numbers_alone(first, rest)
    if not rest:
        return FirstLine.HEADER
    columns = [list(map(str.strip, column)) for column in zip(*rest, strict=True)]
    numeric = [place for place, cells in enumerate(columns) if _mostly_numbers(cells)]
    if any(not is_number_like(first[place]) and not is_missing_number(first[place]) for place in numeric):
        return FirstLine.EITHER if any(_is_fraction(cell) for cell in first) else FirstLine.HEADER
    texts = [place for place, cell in enumerate(first) if not is_number_like(cell) and not is_missing_number(cell)]
    repeated = [place for place in texts if first[place] in columns[place]]
    if any(is_number_like(first[place]) for place in numeric):
        if repeated or any(map(_is_fraction, first)):
            return FirstLine.ROW
        numbers = [(place, cell) for place, cell in enumerate(first) if is_number_like(cell)]
        offsets = {int(cell) - place for place, cell in numbers}
        names_by_place = len(numbers) > 1 and len(offsets) == 1 and offsets <= {-1, 0, 1}
        return FirstLine.HEADER if names_by_place else FirstLine.EITHER
    if not repeated:
        return FirstLine.HEADER
    return FirstLine.ROW if 2 * len(repeated) >= len(texts) else FirstLine.EITHER


def _numbers_alone(first: Row, rest: Sequence[Row]) -> FirstLine:
    """Return what a line of numbers is: names that count 0, 1, 2, ... are those of an array's columns."""
    named = [cell for cell in first if cell]
    if not rest or not counts_up(named):
        return FirstLine.ROW
    columns = list(zip(*rest, strict=True))
    if not first[0] and len(named) == len(first) - 1:
        return FirstLine.HEADER if all(cell.strip() for cell in columns[0]) else FirstLine.EITHER
    if len(named) < len(first):
        return FirstLine.ROW
    fractions = any(all(map(_is_fraction, cells)) or not _mostly_numbers(cells) for cells in columns)
    if fractions:
        return FirstLine.HEADER
    return FirstLine.EITHER if len(first) > 2 else FirstLine.ROW


_LEAST_COUNTED = 5


def numbers_rows(cells: Row) -> bool:
    """Return whether a column's cells are 0, 1, 2, ... or 1, 2, 3, ..., over enough rows to be no chance."""
    return len(cells) >= _LEAST_COUNTED and counts_up([cell.strip() for cell in cells])


def counts_up(cells: Row) -> bool:
    """Return whether cells are 0, 1, 2, ... or 1, 2, 3, ..., at least two."""
    if len(cells) < 2 or not all(re.fullmatch(r"\d{1,9}", cell, re.ASCII) for cell in cells):
        return False
    return [int(cell) for cell in cells] in (list(range(len(cells))), list(range(1, len(cells) + 1)))


def _is_fraction(cell: str) -> bool:
    return is_number_like(cell) and not re.fullmatch(r"[+-]?\d+", cell.strip(), re.ASCII)


def _mostly_numbers(cells: Row) -> bool:
    present = [cell for cell in cells if not is_missing_number(cell)]
    return bool(present) and 2 * sum(map(is_number_like, present)) >= len(present)
