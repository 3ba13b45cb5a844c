"""CSV text of any size, chunk by chunk, through pyarrow: by a form that says how the file is written.

pyarrow parses, converts, unpacks and decodes. Ours are three things that it does not do: it gives no line of the file
with an error (`line_of_row`), it reads rows that a stray quote has swallowed as one cell (`check_quotes`), and it knows
no runs of blanks (`_SingleCommas`).
"""

import codecs
import contextlib
import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.datasets.dataset import Array, Chunk

POINT = "."
COMMA = ","
GZIP = ".gz"
CUT_ERRORS = (EOFError, OSError, zlib.error)
"""What reading a compressed file raises whose bytes are cut or damaged."""
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)  # a mark of UTF-32 starts with one of UTF-16
INNER_MARK = "\ufeff"
"""A byte order mark, which stands inside a file where files were put together."""
_CHUNK_BYTES = 1 << 20  # larger chunks leave the processor's cache and are slower
_NO_MARK = "_"  # a decimal mark with which no number is written

_MISSING_TEXTS = (
    "",
    "?",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-NaN",
    "-nan",
    "<NA>",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "n/a",
    "nan",
    "null",
)
_MISSING_NUMBERS = (
    *_MISSING_TEXTS,
    *("-", "--", ".", "na", "N.A.", "n.a.", "None", "none", "Null", "NIL", "nil", "missing", "Missing"),
    *("#VALUE!", "#DIV/0!", "#REF!", "#NUM!", "#NULL!", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)  # those of pandas and pyarrow, of spreadsheets and of C
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvForm:
    """How a CSV file is written.

    `decimal` is ``.``, ``,`` or empty: no number of the first rows has a mark, and either could follow. Blanks as
    `separator` separate in runs. `header_line` is the line of the header, 0 without one; `names` are its cells.
    `skip` lines stand before the first row.
    """

    path: Path
    encoding: str = "utf-8"
    separator: str = ","
    decimal: str = POINT
    header_line: int = 0
    skip: int = 0
    width: int = 0
    names: tuple[str, ...] = ()


def is_missing_text(cell: str) -> bool:
    """Return whether a cell of a column of texts stands for a missing value."""
    return cell.strip() in _MISSING_TEXTS


def is_missing_number(cell: str) -> bool:
    """Return whether a cell of a column of numbers stands for a missing value."""
    return cell.strip() in _MISSING_NUMBERS


def is_number(cell: str, decimal: str = POINT) -> bool:
    """Return whether pyarrow reads a cell as a number with this decimal mark, or with none: thousands have none."""
    text = cell.strip()
    if not decimal:
        return POINT not in text and _NUMBER.fullmatch(text) is not None
    if decimal == COMMA:
        text = text.translate({ord(COMMA): POINT, ord(POINT): COMMA})
    return _NUMBER.fullmatch(text) is not None


def find_encoding(path: Path) -> str:
    """Return the encoding that a file's byte order mark names, else UTF-8.

    Raises:
        UserError: the file cannot be read.
    """
    with _reading(path), open_bytes(path) as file:
        start = file.read(4)
    return next((name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark)), "utf-8")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, unpacked where its own name ends in .gz, whatever a link leads to."""
    if path.suffix.lower() == GZIP:
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeError as error:
        raise UserError(f"'{path}' is not CSV text ({error}): save it as UTF-8") from error
    except CUT_ERRORS as error:
        raise UserError(f"CSV file '{path}' is cut or cannot be read ({error}): check the file") from error


def read_cells(form: CsvForm, errors: str = "strict", quotes: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a file that are not empty, also the header, each with the line on which it ends: slowly.

    Raises:
        UserError: the file cannot be read or is not text, or, where `quotes` are to be checked, one is astray.
    """
    with (
        _reading(form.path),
        open_bytes(form.path) as file,
        io.TextIOWrapper(file, form.encoding, errors=errors, newline="") as text,
    ):
        blanks = form.separator == " "
        lines = (line.strip(" \r\n") + "\n" for line in text) if blanks else text
        rows = csv.reader(lines, delimiter=form.separator, skipinitialspace=blanks, strict=quotes)
        before = 0
        try:
            for row in rows:
                before = rows.line_num
                if row:
                    yield before, row
        except csv.Error as error:
            raise UserError(
                f"'{form.path}' line {before + 1:,} is not CSV text ({error}): correct its quotes"
            ) from error


def line_of_row(form: CsvForm, number: int) -> int:
    """Return the line of a row, which is counted from 0 without the header and empty lines."""
    rows = (line for line, _ in read_cells(form, errors="replace") if line > form.skip)
    return next(itertools.islice(rows, number, None))


def stream_csv(form: CsvForm, types: Mapping[int, str], *, text: memoryview | None = None) -> Iterator[Any]:
    """Yield the pyarrow record batches of the columns whose places `types` has, called c0, c1, ...

    A missing number is null; a text is as it stands. `text` are some of the file's lines instead of all.

    Raises:
        UserError: the text cannot be parsed, or a cell is no number; the line is named.
    """
    import pyarrow as pa
    import pyarrow.csv

    columns = [f"c{place}" for place in range(form.width)]
    written = form
    source: Any = None
    if text is not None:
        source = pa.BufferReader(pa.py_buffer(text))
        written = replace(form, skip=0)
    elif form.separator == " ":
        source = pa.PythonFile(_SingleCommas(form), mode="r")
        written = replace(form, skip=0, encoding="utf-8", separator=",")
    options = {
        "read_options": pa.csv.ReadOptions(
            use_threads=False,
            column_names=columns,
            skip_rows=written.skip,
            block_size=_CHUNK_BYTES,
            encoding="utf8" if written.encoding in ("utf-8", "utf-8-sig") else written.encoding,
        ),
        "parse_options": pa.csv.ParseOptions(delimiter=written.separator, newlines_in_values=True),
        "convert_options": pa.csv.ConvertOptions(
            column_types={columns[place]: pa.type_for_alias(kind) for place, kind in types.items()},
            include_columns=[columns[place] for place in types],
            null_values=[*_MISSING_NUMBERS, *(f" {word}" for word in _MISSING_NUMBERS)],
            decimal_point=form.decimal or _NO_MARK,
        ),
    }
    try:
        if source is None:
            packing = "gzip" if form.path.suffix.lower() == GZIP else None
            source = pa.input_stream(str(form.path), compression=packing)
        with source, pa.csv.open_csv(source, **options) as batches:
            yield from batches
    except pa.ArrowInvalid as error:
        raise _fault(form, types, str(error)) from error
    except (*CUT_ERRORS, UnicodeError, csv.Error) as error:
        raise UserError(f"CSV file '{form.path}' is cut or cannot be read ({error}): check the file") from error


def _fault(form: CsvForm, types: Mapping[int, str], reason: str) -> UserError:
    """Return the error of a file that pyarrow cannot read: the first line with other columns, or with no number."""
    numbers = [place for place, kind in types.items() if kind != "string"]

    def wrong_cell(row: list[str]) -> int | None:
        cells = [place for place in numbers if not is_missing_number(row[place])]
        return next((place for place in cells if not is_number(row[place], form.decimal)), None)

    with contextlib.suppress(UserError):
        for line, row in read_cells(form, errors="replace"):
            if line <= form.skip:
                continue
            if len(row) != form.width:
                return UserError(
                    f"'{form.path}' line {line:,}: expected {form.width} columns, got {len(row)}; give every row the "
                    "same number"
                )
            if tuple(map(str.strip, row)) == form.names:
                return header_again(form.path, f"line {line:,}")
            place = wrong_cell(row)
            if place is not None:
                return _no_number(form, line, place, row[place])
    sentence = " ".join(reason.split())[:160]  # by pyarrow, as where a file has no bytes
    return UserError(f"'{form.path}' is not {form.width} columns of CSV text: {sentence[:1].lower()}{sentence[1:]}")


def header_again(path: Path, position: str) -> UserError:
    """Return the error that a header stands below other rows."""
    return UserError(f"'{path}' {position} is the header again, as where files were put together: take it out")


def _no_number(form: CsvForm, line: int, place: int, cell: str) -> UserError:
    name = form.names[place] if form.names and form.names[place] else f"column {place + 1}"
    fix = "write a plain number"
    marked = any(is_number(cell, mark) for mark in (POINT, COMMA))
    if not form.decimal and marked:
        fix = (
            f"say with {setting('decimal', 'point')} or {setting('decimal', 'comma')} which mark stands before decimals"
        )
    visible_cell = cell.strip()[:40].replace(INNER_MARK, "<U+FEFF>")
    return UserError(f"'{form.path}' line {line:,}: invalid value '{visible_cell}' in column '{name}': {fix}")


def check_quotes(form: CsvForm) -> None:
    """Check the quotes, and that every row is one line: a quote astray makes one cell of many rows, in silence.

    Raises:
        UserError: a quote is astray, or a cell goes over several lines; the line is named.
    """
    with _reading(form.path), open_bytes(form.path) as file:
        has_quotes = any(b'"' in block for block in iter(lambda: file.read(_CHUNK_BYTES), b""))
    if not has_quotes:
        return
    before = 0
    for line, row in read_cells(form, quotes=True):
        if any("\n" in cell or "\r" in cell for cell in row):
            raise UserError(
                f"'{form.path}' has a quoted cell over several lines below line {before:,}: write every row in one line"
            )
        before = line


class _SingleCommas(io.RawIOBase):
    """The rows of a file as UTF-8 with single commas, for a parser that knows no runs of blanks."""

    def __init__(self, form: CsvForm) -> None:
        self._rows = (row for line, row in read_cells(form) if line > form.skip)
        self._rest = b""

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with what comes next; return the bytes, 0 at the end."""
        while len(self._rest) < len(buffer):
            rows = list(itertools.islice(self._rows, 1_000))
            if not rows:
                break
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            self._rest += text.getvalue().encode()
        part = self._rest[: len(buffer)]
        self._rest = self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def to_array(form: CsvForm, batch: Any, row: int, dtype: str = "float32") -> Array:
    """Return a record batch of numbers as [rows, columns]; `row` is the number of its first row.

    Raises:
        UserError: a value is missing, NaN or infinite; line and column are named.
    """
    values = np.empty((batch.num_rows, batch.num_columns), dtype)
    for place, column in enumerate(batch.columns):
        values[:, place] = number_values(column)
    # One sum shows whether there is any NaN or infinity; only then is it worth looking where.
    if not np.isfinite(values.sum(dtype=np.float64)) and len(wrong := np.argwhere(~np.isfinite(values))):
        place = int(batch.schema.names[wrong[0][1]].removeprefix("c"))
        raise not_a_number(form, row + int(wrong[0][0]), place)
    return values


def number_values(column: Any) -> Array:
    """Return a pyarrow column of numbers, NaN where they are missing."""
    # pyarrow's own to_numpy() would import pandas, a second of work
    values: Array = np.from_dlpack(column.fill_null(np.nan) if column.null_count else column)
    return values


def not_a_number(form: CsvForm, row: int, place: int) -> UserError:
    """Return the error for the cell in a row and a column, both counted from 0."""
    line = line_of_row(form, row)
    return UserError(f"'{form.path}' line {line:,} column {place + 1} is missing, NaN or infinite: give a number")


def read_number_rows(paths: tuple[Path, ...], part: str, *, features: int, classes: int) -> Iterator[Chunk]:
    """Yield chunks of CSV files without header, label first: float32 [rows, features] and labels.

    The files may be gzip-compressed. One thread: the other cores belong to other ranks.

    Raises:
        UserError: a line has another column count, is not a number, is NaN or has a label outside 0..classes-1.
    """
    width = 1 + features
    for path in paths:
        form = CsvForm(path=path, width=width)
        row = 0
        for batch in stream_csv(form, dict.fromkeys(range(width), "float32")):
            values = to_array(form, batch, row)
            labels = values[:, 0]
            wrong = np.flatnonzero((labels != np.floor(labels)) | (labels < 0) | (labels >= classes))
            if len(wrong):
                line = line_of_row(form, row + int(wrong[0]))
                raise UserError(f"'{path}' line {line:,} has label {labels[wrong[0]]}: labels are 0 to {classes - 1}")
            yield values[:, 1:], labels
            row += len(values)
