"""The rows of CSV text, one file or a folder of them: each rank counts a part of the bytes and parses its own rows."""

import itertools
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from harness.base.errors import UserError
from harness.datasets.csv_rows import CsvHeader, read_head, stream_csv, to_array
from harness.datasets.dataset import Array
from harness.readers.peers import Peers

PIECE_BYTES = 16 << 20
"""A rank counts the lines of a file in pieces of so many bytes."""
_NEWLINE = ord("\n")
_RETURN = ord("\r")


class CsvRows:
    """The rows of CSV files, one after the other. The label's column is as in `CsvHeader`."""

    classes: int | None = None

    def __init__(self, path: Path, label: str | int | None, peers: Peers) -> None:
        """Find out how many rows there are; all ranks together.

        Raises:
            UserError: there is no file, it is empty, or it has no column `label`.
        """
        files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not files:
            raise UserError(f"train_file '{path}' is a folder without .csv files: give another")
        self._heads = {file: read_head(file) for file in files}
        self._width = len(self._heads[files[0]].cells)
        self._label = _label(files[0], self._heads[files[0]], label)
        pieces = [piece for file, head in self._heads.items() for piece in _pieces(file, head)]
        counts = peers.gather([_lines(*piece) for piece in pieces[peers.rank :: peers.size]])
        self._pieces: dict[Path, list[tuple[int, int]]] = {file: [] for file in files}
        for number, (file, begin, _, _) in enumerate(pieces):
            self._pieces[file].append((begin, counts[number % peers.size][number // peers.size]))
        self.blocks: tuple[int, ...] = (sum(map(sum, counts)),)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Parse the rows of the one range: float32 [rows, columns - 1] and float64 [rows]."""
        (rows,) = ranges
        features = [place for place in range(self._width) if place != self._label]
        x = [np.empty((0, len(features)), np.float32)]
        y = [np.empty(0)]
        columns = [f"c{place}" for place in range(self._width)]
        types = dict.fromkeys(columns, "float32") | {columns[self._label]: "float64"}
        first = 0
        for path, pieces in self._pieces.items():
            count = sum(lines for _, lines in pieces)
            begin = max(rows.start - first, 0)
            end = min(rows.stop - first, count)
            first += count
            if begin >= end:
                continue
            with path.open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            text = memoryview(content)[_offset(content, pieces, begin) : _offset(content, pieces, end)]
            line = 1 + begin + (self._heads[path].header > 0)
            for batch in stream_csv(path, columns, types=types, text=text, first_line=line):
                x.append(to_array(path, batch, features, line))
                y.append(to_array(path, batch, [self._label], line, "float64")[:, 0])
                line += batch.num_rows
        return np.concatenate(x), np.concatenate(y)


def _label(path: Path, head: CsvHeader, label: str | int | None) -> int:
    """Return the place of the label's column: the one asked for, else as `CsvHeader` has it."""
    if label is None:
        if head.names and not head.names[head.label]:
            raise UserError(f"'{path}' has a nameless first column, as an index has: say with label which column it is")
        return head.label
    if isinstance(label, str):
        if label.lower() not in head.names:
            names = ", ".join(head.names) or "a header"
            raise UserError(f"label '{label}' is not a column of '{path}': name one of {names}")
        return head.names.index(label.lower())
    width = len(head.cells)
    if not -width <= label < width:
        raise UserError(f"label {label} is not a column of '{path}': use 0 to {width - 1}")
    return label % width


def _pieces(path: Path, head: CsvHeader) -> Iterator[tuple[Path, int, int, int]]:
    """Yield the file, the offsets in bytes at which each piece of its rows begins and ends, and that of all rows."""
    size = path.stat().st_size
    edges = [head.header, *range(head.header + PIECE_BYTES, size, PIECE_BYTES), size]
    for begin, end in itertools.pairwise(edges):
        yield path, begin, end, head.header


def _lines(path: Path, begin: int, end: int, first: int) -> int:
    """Return how many lines of a file's rows, which begin at `first`, end between two offsets.

    Blank lines do not count: the parser skips them. The last line of a file may have no newline.
    """
    with path.open("rb") as file:
        before = max(first, begin - 2)
        file.seek(before)
        content = np.frombuffer(file.read(end - before), np.uint8)
        is_file_end = not file.read(1)
    ends = np.flatnonzero(content == _NEWLINE)
    begins = np.concatenate([[0], ends + 1])
    if is_file_end and begins[-1] < len(content):
        ends = np.append(ends, len(content))
    begins = begins[: len(ends)]
    lengths = ends - begins
    # The line that `before` cuts is two bytes long or more, unless it begins there.
    is_row = (lengths > 1) | ((lengths == 1) & (content[np.minimum(begins, len(content) - 1)] != _RETURN))
    return int(np.count_nonzero(is_row & (ends >= begin - before)))


def _offset(content: mmap.mmap, pieces: Sequence[tuple[int, int]], row: int) -> int:
    """Return where row `row` of a file begins, its end after the last row; `pieces` are offsets and their lines."""
    first = pieces[0][0]
    for begin, lines in pieces:
        if row <= lines:  # the newline before the row is in this piece
            return _after_rows(content, begin, row, first)
        row -= lines
    raise AssertionError("the file has fewer rows")


def _after_rows(content: mmap.mmap, begin: int, rows: int, first: int) -> int:
    """Return where the line begins that comes after so many `rows` that end from `begin` on; no row is before `first`.

    Blank lines are passed by.
    """
    place = begin
    while rows:
        newline = content.find(b"\n", place)
        if newline < 0:
            return len(content)
        line_end = content[max(first, newline - 2) : newline]
        is_blank = line_end in (b"", b"\r") or line_end.endswith((b"\n", b"\n\r"))
        rows -= not is_blank
        place = newline + 1
    return place
