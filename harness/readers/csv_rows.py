"""Rows of CSV text, one file or a folder of them: each rank counts a part of the bytes and parses its own rows."""

import itertools
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.base.errors import UserError
from harness.datasets.dataset import Array
from harness.datasets.text_formats import CsvHeader, read_head, stream_csv, to_array
from harness.readers.row_sources import Peers

_PIECE = 16 << 20  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Some bytes of a file."""

    path: Path
    begin: int
    end: int


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
        self._files = [(file, read_head(file)) for file in files]
        self._width = len(self._files[0][1].cells)
        self._label = _label(*self._files[0], label)
        pieces = [piece for file, head in self._files for piece in _pieces(file, head.header)]
        counts = peers.gather([_lines(piece) for piece in pieces[peers.rank :: peers.size]])
        self._pieces = [
            (piece, counts[number % peers.size][number // peers.size]) for number, piece in enumerate(pieces)
        ]

    @property
    def blocks(self) -> tuple[int, ...]:
        """One block: all rows of all files."""
        return (sum(lines for _, lines in self._pieces),)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Parse the rows of the one range: float32 [rows, columns - 1] and float64 [rows]."""
        (rows,) = ranges
        features = [place for place in range(self._width) if place != self._label]
        x, y = [np.empty((0, len(features)), np.float32)], [np.empty(0)]
        columns = [f"c{place}" for place in range(self._width)]
        types = dict.fromkeys(columns, "float32") | {columns[self._label]: "float64"}
        first = 0
        for path, head in self._files:
            last = first + sum(lines for piece, lines in self._pieces if piece.path == path)
            begin, end = max(rows.start, first) - first, min(rows.stop, last) - first
            first = last
            if begin >= end:
                continue
            line = 1 + begin + (head.header > 0)
            text = self._text(path, begin, end)
            for batch in stream_csv(path, columns, types=types, text=text, first_line=line):
                x.append(to_array(path, batch, features, line))
                y.append(to_array(path, batch, [self._label], line, "float64")[:, 0])
                line += batch.num_rows
        return np.concatenate(x), np.concatenate(y)

    def _text(self, path: Path, begin: int, end: int) -> memoryview:
        """Return the bytes of rows `begin` to `end` of a file, mapped rather than read."""
        own = [(piece, lines) for piece, lines in self._pieces if piece.path == path]
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(content)[_offset(content, own, begin) : _offset(content, own, end)]


def _label(path: Path, head: CsvHeader, label: str | int | None) -> int:
    """Return the place of the label's column: the one asked for, else as `CsvHeader` has it."""
    if label is None:
        return head.label
    if isinstance(label, str):
        if label.lower() not in head.names:
            shown = ", ".join(head.names) or "a header"
            raise UserError(f"label '{label}' is not a column of '{path}': name one of {shown}")
        return head.names.index(label.lower())
    width = len(head.cells)
    if not -width <= label < width:
        raise UserError(f"label {label} is not a column of '{path}': use 0 to {width - 1}")
    return label % width


def _pieces(path: Path, header: int) -> list[Piece]:
    size = path.stat().st_size
    edges = [header, *range(header + _PIECE, size, _PIECE), size]
    return [Piece(path=path, begin=begin, end=end) for begin, end in itertools.pairwise(edges)]


def _lines(piece: Piece) -> int:
    """Return how many lines end in the piece; the last of a file may have no newline."""
    with piece.path.open("rb") as file:
        file.seek(piece.begin)
        content = file.read(piece.end - piece.begin)
        ended = bool(file.read(1)) or content.endswith(b"\n") or not content
    return content.count(b"\n") + (not ended)


def _offset(content: mmap.mmap, pieces: Sequence[tuple[Piece, int]], row: int) -> int:
    """Return where row `row` of a file begins: behind the `row`-th newline; the end for the row behind the last."""
    place = pieces[0][0].begin
    for piece, lines in pieces:
        if row <= lines:  # the newline before the row is in this piece
            for number in range(row):
                place = content.find(b"\n", place if number else piece.begin) + 1 or len(content)
            return place
        row -= lines
    raise AssertionError("the file has fewer rows")
