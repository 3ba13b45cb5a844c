"""The form of a CSV file: encoding, separator, quotes, decimal mark and header, found from its first rows.

What can be read in two ways is refused, with the setting that says which.
"""

import codecs
import csv
import enum
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.datasets.number_text import COMMA, POINT, find_marks, is_missing_number, is_number_like

# Whether the first line of a CSV file is a header or a row.

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


SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "blank": " "}
"""The values of SEPARATOR= and the characters that they stand for; blanks separate in runs."""
DECIMALS = {"point": POINT, "comma": COMMA}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)  # a BOM of UTF-32 starts with one of UTF-16
_SAMPLE_ROWS = 1_000
_SAMPLE_CELLS = 100_000
_SAMPLE_CHARACTERS = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvSettings:
    """What the user says of a CSV file: values of LABEL=, DROP=, SEPARATOR=, DECIMAL= and HEADER=, empty if unset."""

    label: str = ""
    drop: str = ""
    separator: str = ""
    decimal: str = ""
    header: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """The form of a file.

    `decimal` is ``.``, ``,`` or empty: no number of the first rows has a mark, and either could follow. `skip` lines
    stand before the first row. `names` are the header's cells, one for every column of the rows, none without a header.
    `multiline` says that quoted cells go over several lines. `rewritten`: a parser of single separators cannot read it,
    as blanks separate in runs or stand before quotes.
    """

    encoding: str
    separator: str
    quote: str
    decimal: str
    skip: int
    width: int
    names: tuple[str, ...] = ()
    multiline: bool = False
    rewritten: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvSample:
    """The first rows of a file, without its header: their cells, all of the dialect's width, and their lines."""

    dialect: Dialect
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def column(self, place: int) -> list[str]:
        """Return the cells of a column."""
        return [row[place] for row in self.rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """The first rows as one separator reads them. `fault` says why they are no table, empty where they are one.

    `padded`: rows begin with a name that the header has no cell for, as R writes them.
    """

    separator: str
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    fault: str = ""
    padded: bool = False

    @property
    def width(self) -> int:
        return Counter(map(len, self.rows)).most_common(1)[0][0] if self.rows else 0


def read_sample(path: Path, settings: CsvSettings) -> CsvSample:
    """Find the dialect of a CSV file and return its first rows.

    Raises:
        UserError: the file cannot be read, is empty or not text, has one column only, its rows have different numbers
            of cells, or it can be read in two ways.
    """
    encoding, text = _read_text(path)
    separator = SEPARATORS[settings.separator] if settings.separator else ""
    body = text
    before = 0
    announced = re.match(r'"?sep=(.)"?[ \t]*\n', text, re.IGNORECASE)
    if announced:  # Excel's way to name the separator
        separator = separator or announced[1]
        body = text[announced.end() :]
        before = 1
    commented = body.startswith("#")  # numpy.savetxt's header
    body = body.lstrip("# ") if commented else body
    quote = "'" if _single_quotes(body) else '"'
    candidates = [separator] if separator else SEPARATORS.values()
    reading = _choose(path, [_read_rows(body, candidate, quote, before) for candidate in candidates])
    header = commented or settings.header == "yes"
    if not commented and not settings.header:
        header = has_header(path, reading.rows)
    rows = reading.rows
    lines = reading.lines
    skip = before
    names: tuple[str, ...] = ()
    if header:
        skip = lines[0]
        names = tuple(map(str.strip, rows[0]))
        rows = rows[1:]
        lines = lines[1:]
    dialect = Dialect(
        encoding=encoding,
        separator=reading.separator,
        quote=quote,
        decimal=_decimal(path, reading.separator, rows, settings.decimal),
        skip=skip,
        width=reading.width,
        names=names,
        multiline=any("\n" in cell for row in rows for cell in row),
        rewritten=reading.separator == " " or bool(re.search(rf"{re.escape(reading.separator)} +{quote}", body)),
    )
    return CsvSample(dialect=dialect, rows=rows, lines=lines)


def _read_text(path: Path) -> tuple[str, str]:
    """Return the encoding and whole lines from the beginning of a file, each ended by a newline alone."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
            encoding = next((name for bom, name in _BOMS if start.startswith(bom)), "utf-8")
            file.seek(0)
            with io.TextIOWrapper(file, encoding, newline=None) as stream:
                text = stream.read(_SAMPLE_CHARACTERS)
                whole = not stream.read(1)
    except OSError as error:
        raise UserError(f"CSV file '{path}' cannot be read: {error.strerror}; check the path") from error
    except UnicodeError as error:
        raise UserError(f"'{path}' is not CSV text ({error}): save it as UTF-8 with commas") from error
    if "\0" in text:
        raise UserError(
            f"'{path}' is not CSV text (it has NUL characters, as UTF-16 without its mark): save it as UTF-8"
        )
    if not text.strip():
        raise UserError(f"'{path}' is empty: give at least two rows")
    if not whole:
        text = text[: text.rfind("\n") + 1] or text
    return encoding, text


def _single_quotes(text: str) -> bool:
    """Return whether cells stand in single quotes, most lines having some."""
    quoted = re.findall(r"(?:^|[,;\t| ])'[^'\n]*'(?=[,;\t| ]|$)", text[:100_000], re.MULTILINE)
    return '"' not in text and 2 * len(quoted) > text[:100_000].count("\n")


def split_rows(lines: Iterable[str], separator: str, quote: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of CSV lines that are not empty, each with the line on which it ends; blanks separate in runs.

    Raises:
        csv.Error: a cell is longer than a parser takes.
    """
    if separator == " ":
        lines = (line.replace("\t", " ").strip(" \r\n") + "\n" for line in lines)
    reader = csv.reader(lines, delimiter=separator, quotechar=quote, skipinitialspace=True)
    for row in reader:
        if row and (len(row) > 1 or row[0].strip()):
            yield reader.line_num, row


def _read_rows(text: str, separator: str, quote: str, before: int) -> _Reading:
    """Return the first rows as `separator` reads them; `before` lines stand above `text`."""
    rows: list[tuple[str, ...]] = []
    lines = []
    try:
        for line, row in split_rows(io.StringIO(text), separator, quote):
            rows.append(tuple(row))
            lines.append(before + line)
            if len(rows) > _SAMPLE_ROWS or len(rows) * len(row) > _SAMPLE_CELLS:
                break
    except csv.Error as error:
        return _Reading(separator=separator, rows=(), lines=(), fault=f"is not CSV text ({error})")
    widths = Counter(map(len, rows[1:])) or Counter(map(len, rows))
    width = widths.most_common(1)[0][0] if widths else 0
    padded = False
    if rows:
        fitted = _fitted(rows[0], width, rows[1:])
        padded = len(fitted) > len(rows[0]) and fitted[1:] == rows[0]
        rows[0] = fitted
    if width > 1 and len(widths) > 1 and len(rows) == 2:
        width = len(rows[0])
    wrong = next((place for place, row in enumerate(rows) if len(row) != width), None)
    fault = ""
    if wrong is not None:
        expected = width
        if wrong == 0 and len(rows) > 1:  # the first row says how many there are
            expected = len(rows[0])
            wrong = 1
        fault = f"line {lines[wrong]:,}: expected {expected} columns, got {len(rows[wrong])}"
    return _Reading(separator=separator, rows=tuple(rows), lines=tuple(lines), fault=fault, padded=padded)


def _fitted(first: tuple[str, ...], width: int, rows: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return a header with a cell for each column: rows may end in a separator, or begin with names as R's do."""
    names = not all(is_number_like(cell) or is_missing_number(cell) for cell in first)
    if not names or not rows:
        return first
    if len(first) == width + 1 and not first[-1].strip():
        return first[:-1]
    if len(first) != width - 1 or len(first) < 2:
        return first
    trailing = all(len(row) == width and not row[-1].strip() for row in rows)
    if trailing:
        return (*first, "")
    return ("", *first) if numbers_rows(leading := [row[0] for row in rows]) or _all_texts(leading) else first


def _all_texts(cells: Sequence[str]) -> bool:
    """Return whether cells are different texts, as R's row names are."""
    return len(cells) > 1 and len(set(cells)) == len(cells) and not any(map(is_number_like, cells))


def _choose(path: Path, readings: Sequence[_Reading]) -> _Reading:
    """Return the one reading that makes a table, and whose cells are numbers or texts without other separators.

    Raises:
        UserError: there is none, or there are two.
    """
    tables = [reading for reading in readings if not reading.fault and reading.width > 1]
    if not tables:
        raise _no_table(path, readings)
    scores = [(not reading.padded, _clean(reading), _numbers(reading)) for reading in tables]
    best = max(scores)
    first, *others = [reading for reading, score in zip(tables, scores, strict=True) if score == best]
    if any(_stripped(reading) != _stripped(first) for reading in others):  # tabs are blanks too
        seen = " or ".join(f"{separator_name(reading.separator)} ({reading.width})" for reading in (first, *others))
        raise UserError(
            f"'{path}' can be read as columns separated by {seen}, its first row "
            f"{_shown(first.rows[0])}: say which with SEPARATOR="
        )
    return first


def _stripped(reading: _Reading) -> list[list[str]]:
    return [list(map(str.strip, row)) for row in reading.rows]


def separator_name(separator: str) -> str:
    """Return the word of SEPARATOR= for a character, the character itself if it has none."""
    return next((name for name, character in SEPARATORS.items() if character == separator), repr(separator))


def _shown(cells: Sequence[str]) -> str:
    return "'" + " ".join(" | ".join(cells).split())[:80] + "'"


def _no_table(path: Path, readings: Sequence[_Reading]) -> UserError:
    """Return the error of a file that no separator makes a table of."""
    faults = [reading for reading in readings if reading.fault]
    several = [reading for reading in faults if reading.width > 1]
    if not several:
        text = next((reading.fault for reading in faults if not reading.rows), "")
        if text:
            return UserError(f"'{path}' {text}: save it as UTF-8 with commas")
        return UserError(
            f"'{path}' has one column only: give a label and features, separated by commas, or name the separator "
            "with SEPARATOR="
        )
    likely = max(several, key=lambda reading: Counter(map(len, reading.rows)).most_common(1)[0][1])
    return UserError(
        f"'{path}' is not a table of columns separated by {separator_name(likely.separator)}: {likely.fault}; give "
        "every row the same number, or name another separator with SEPARATOR="
    )


_INNER = re.compile(r"[,;\t|]|\d \d")


def _cells(reading: _Reading) -> list[str]:
    rows = reading.rows[1:] or reading.rows
    return [cell for row in rows for cell in row]


def _clean(reading: _Reading) -> float:
    """Return the share of cells that are numbers, or texts in which no other separator stands."""
    cells = _cells(reading)
    counts = Counter(cells)
    return sum(n for cell, n in counts.items() if not _INNER.search(cell) or is_number_like(cell)) / len(cells)


def _numbers(reading: _Reading) -> float:
    cells = _cells(reading)
    return sum(n for cell, n in Counter(cells).items() if is_number_like(cell)) / len(cells)


def _decimal(path: Path, separator: str, rows: Sequence[tuple[str, ...]], asked: str) -> str:
    """Return the decimal mark of a file: the one `asked` for, else the one that its cells prove.

    Raises:
        UserError: cells prove both, or have a mark that may be either.
    """
    if asked:
        return DECIMALS[asked]
    evidence = find_marks(zip(*rows, strict=True) if rows else ())
    proofs = evidence.proofs
    if len(proofs) == 2:
        seen = [f"{_position(rows, proofs[mark])} has '{proofs[mark]}'" for mark in (POINT, COMMA)]
        raise UserError(
            f"'{path}' has numbers with decimal points and with decimal commas: {seen[0]}, {seen[1]}; write them in "
            "one way, or say with DECIMAL= which it is"
        )
    if proofs:
        return next(iter(proofs))
    # Three digits follow every mark, or there is no mark.
    unsure = dict(evidence.open_marks)
    if set(evidence.grouped_marks) == set(unsure) == {COMMA}:
        return POINT
    if separator == ";" and set(evidence.grouped_marks) == set(unsure) == {POINT}:
        return COMMA
    if separator != ";" and POINT not in evidence.mixed_marks and set(unsure) <= {POINT}:
        return POINT
    if not unsure:
        return ""
    cell = next(iter(unsure.values()))
    mark = next(iter(unsure))
    digits = cell.replace(mark, "")
    raise UserError(
        f"'{path}' {_position(rows, cell)} has '{cell}', which may be {digits} or {cell.replace(mark, '.')}: "
        "say with DECIMAL=point or DECIMAL=comma which mark stands before decimals"
    )


def _position(rows: Sequence[tuple[str, ...]], cell: str) -> str:
    """Return row and column of a cell's first appearance, from 1."""
    for number, row in enumerate(rows, start=1):
        for place, text in enumerate(row, start=1):
            if text.strip() == cell:
                return f"row {number:,} column {place}"
    raise AssertionError(f"{cell!r} is in no row")
