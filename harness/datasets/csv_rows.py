"""Numbers from CSV text of any size, chunk by chunk, through pyarrow."""

import csv
import functools
import io
import itertools
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.datasets.csv_dialect import LABEL_NAMES, Dialect, FirstLine, first_line, split_rows
from harness.datasets.dataset import Array, Chunk
from harness.datasets.number_text import missing_spellings

_CUT = (EOFError, OSError, zlib.error)  # what compressed files raise
_BELOW_HEAD = 50  # rows that show whether numbers above them are names
_CHUNK_BYTES = 1 << 20  # larger chunks leave the processor's cache and are slower


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvHeader:
    """The first line of CSV text: its cells, and its bytes if it is a header, 0 if it is the first row."""

    cells: tuple[str, ...]
    header: int

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names in lower case, none without a header."""
        return tuple(cell.strip().lower() for cell in self.cells) if self.header else ()

    @property
    def label(self) -> int:
        """The place of the label: the column that a header calls label, target or class, else the first."""
        return next((place for place, name in enumerate(self.names) if name in LABEL_NAMES), 0)


def read_head(path: Path) -> CsvHeader:
    """Read the first line of a CSV file.

    It is a header if a cell is neither a number nor a missing value, or if its numbers name an array's columns.

    Raises:
        UserError: the file cannot be read, is empty or not text, or has one column only.
    """
    try:
        with path.open("rb") as file:
            line = file.readline()
            below = list(itertools.islice(file, _BELOW_HEAD))
        cells = next(csv.reader([line.decode("utf-8-sig")]), [])
        texts = [text.decode() for text in below]
        rows = [row for row in csv.reader(texts) if len(row) == len(cells)]
    except OSError as error:
        raise UserError(f"CSV file '{path}' cannot be read: {error.strerror}; check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"'{path}' is not CSV text ({error}): save it as UTF-8 with commas") from error
    if not cells:
        raise UserError(f"'{path}' is empty: give at least two rows")
    if len(cells) < 2:
        raise UserError(f"'{path}' has one column only: give a label and features, separated by commas")
    numbers = all(is_number(cell) or is_missing(cell) for cell in cells)
    named = not numbers or first_line([cells, *rows]) is FirstLine.HEADER
    return CsvHeader(cells=tuple(cells), header=len(line) if named else 0)


def is_number(cell: str) -> bool:
    """Return whether a cell is a number other than NaN."""
    try:
        return not math.isnan(float(cell))
    except ValueError:
        return False


def is_missing(cell: str) -> bool:
    """Return whether a cell stands for a missing value: empty, ``?``, ``NA`` and other words that are used for it."""
    return cell.strip() in _missing()


@functools.cache
def _missing() -> frozenset[str]:
    from pyarrow.csv import ConvertOptions

    return frozenset((*ConvertOptions().null_values, "?"))


_PLAIN = Dialect(encoding="utf-8", separator=",", quote='"', decimal=".", skip=0, width=0)
_NO_MARK = "_"  # a decimal mark with which no number is written


def stream_csv(
    path: Path,
    columns: Sequence[str],
    dialect: Dialect = _PLAIN,
    types: Mapping[str, str] | None = None,
    *,
    text: memoryview | None = None,
    first_line: int = 1,
) -> Iterator[Any]:
    """Yield the pyarrow record batches of a CSV file with these `columns`: those in `types`, else all as float32.

    `text` is a part of the file instead of all of it, from line `first_line` on.

    Raises:
        UserError: the text cannot be parsed; the message carries the line.
    """
    import pyarrow as pa
    import pyarrow.csv

    wanted = types or dict.fromkeys(columns, "float32")
    source: Any = str(path) if text is None else pa.BufferReader(pa.py_buffer(text))
    decimal = dialect.decimal or _NO_MARK
    hint = "" if dialect.decimal else "; if it is a number, say with DECIMAL= which mark stands before decimals"
    if dialect.rewritten:
        source = _Rewritten(path, dialect)
        first_line = dialect.skip + 1
        dialect = replace(_PLAIN, multiline=dialect.multiline)
    read_options = pa.csv.ReadOptions(
        use_threads=False,
        column_names=columns,
        skip_rows=dialect.skip,
        block_size=_CHUNK_BYTES,
        encoding="utf8" if dialect.encoding in ("utf-8", "utf-8-sig") else dialect.encoding,
    )
    parse_options = pa.csv.ParseOptions(
        delimiter=dialect.separator, quote_char=dialect.quote, newlines_in_values=dialect.multiline
    )
    convert_options = _conversion(wanted, decimal)
    try:
        yield from pa.csv.open_csv(
            source, read_options=read_options, parse_options=parse_options, convert_options=convert_options
        )
    except pa.ArrowInvalid as error:
        reason = _reason(str(error), first_line)
        raise UserError(f"'{path}' is not {len(columns)} columns of numbers: {reason}{hint}") from error
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(f"'{path}' is cut or cannot be read: {error}") from error


def _conversion(types: Mapping[str, str], decimal: str) -> Any:
    """Return pyarrow's options for columns of these types."""
    import pyarrow as pa
    import pyarrow.csv

    missing = (*_missing(), *missing_spellings())
    return pa.csv.ConvertOptions(
        column_types={name: pa.type_for_alias(kind) for name, kind in types.items()},
        include_columns=list(types),
        null_values=[*missing, *(f" {word}" for word in missing)],
        decimal_point=decimal,
    )


class _Rewritten(io.RawIOBase):
    """The rows of a file as UTF-8 with single commas, for a parser that knows no runs of blanks."""

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self._file = path.open(encoding=dialect.encoding, newline="")
        for _ in range(dialect.skip):
            self._file.readline()
        self._rows = split_rows(self._file, dialect.separator, dialect.quote)
        self._rest = b""

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with what comes next; return the bytes, 0 at the end."""
        while len(self._rest) < len(buffer):
            rows = [row for _, row in itertools.islice(self._rows, 1_000)]
            if not rows:
                break
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            self._rest += text.getvalue().encode()
        part = self._rest[: len(buffer)]
        self._rest = self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def to_array(path: Path, batch: Any, columns: Sequence[int], line: int, dtype: str = "float32") -> Array:
    """Return `columns` of a record batch as [rows, columns]; `line` is its first row's line in the file.

    Raises:
        UserError: a value is missing, NaN or infinite; line and column are named.
    """
    values = np.empty((batch.num_rows, len(columns)), dtype)
    for place, number in enumerate(columns):
        column = batch.column(number)
        if column.null_count:
            raise not_a_number(path, line + column.is_valid().to_pylist().index(False), number)
        values[:, place] = np.from_dlpack(column)  # pyarrow's own to_numpy() would import pandas, a second of work
    # One sum shows whether there is any NaN or infinity; only then is it worth looking where.
    if not np.isfinite(values.sum(dtype=np.float64)):
        row, place = np.argwhere(~np.isfinite(values))[0]
        raise not_a_number(path, line + int(row), columns[place])
    return values


def not_a_number(path: Path, line: int, column: int) -> UserError:
    """Return the error for the cell in `line` (from 1) and `column` (from 0) of a file."""
    return UserError(f"'{path}' line {line:,} column {column + 1} is missing, NaN or infinite: give a number")


_PYARROW_FAULTS = r"(Expected \d+ columns, got \d+|invalid value '[^']{0,40}|Empty CSV file|invalid UTF8 data)"


def _reason(message: str, first_line: int) -> str:
    """Return pyarrow's message as the user counts: lines from 1 on, without the text of the whole row."""
    row = re.search(r"Row #(\d+)", message)
    match = re.search(_PYARROW_FAULTS, message)
    text = message[:160]
    if match:
        text = match[1].replace("Expected", "expected").replace("Empty CSV file", "it is empty")
    text += "'" if text.startswith("invalid value") else ""
    return f"line {int(row[1]) + first_line - 1:,}: {text}" if row else text


def read_number_rows(paths: tuple[Path, ...], part: str, *, features: int, classes: int) -> Iterator[Chunk]:
    """Yield chunks of CSV files without header, label first: float32 [rows, features] and labels.

    The files may be gzip-compressed. One thread: the other cores belong to other ranks.

    Raises:
        UserError: a line has another column count, is not a number, is NaN or has a label outside 0..classes-1.
    """
    columns = [f"c{number}" for number in range(1 + features)]
    for path in paths:
        line = 1
        for batch in stream_csv(path, columns):
            values = to_array(path, batch, range(len(columns)), line)
            labels = values[:, 0]
            wrong = np.flatnonzero((labels != np.floor(labels)) | (labels < 0) | (labels >= classes))
            if len(wrong):
                raise UserError(
                    f"'{path}' line {line + wrong[0]:,} has label {labels[wrong[0]]}: labels are 0 to {classes - 1}"
                )
            yield values[:, 1:], labels
            line += len(values)
