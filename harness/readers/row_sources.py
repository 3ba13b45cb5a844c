"""What rows can be read from by their numbers: arrays, files of arrays, a file with an array for each class, images."""

import contextlib
import io
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.base.cores import memory_limit, usable_cores
from harness.base.errors import UserError
from harness.datasets.array_files import is_rows, named_pair, open_hdf5, open_netcdf, open_npz
from harness.datasets.csv_form import LABEL_NAMES, CsvSettings, find_form
from harness.datasets.csv_rows import GZIP, CsvForm, stream_csv, to_array
from harness.datasets.dataset import Array
from harness.datasets.single_precision import find_centring, measure_columns
from harness.readers.peers import Peers

TRAIN = "training"
VALIDATION = "validation"
TEST = "testing"
_SEED = 0


class RowSource(Protocol):
    """Rows with labels, in one or more blocks that are each divided over the ranks.

    `classes` is how many there are, None where the labels of all ranks decide; `blocks` the rows of every block.
    """

    classes: int | None
    blocks: tuple[int, ...]

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Return features and labels of the rows in `ranges`, one range for every block."""


class ArrayPair:
    """Features and labels that can be sliced: arrays, HDF5 data sets, NetCDF variables, members of an .npz."""

    def __init__(self, x: Any, y: Any, classes: int | None = None) -> None:
        self._features = x
        self._labels = y
        self.classes = classes
        self.blocks: tuple[int, ...] = (x.shape[0],)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Slice both."""
        (rows,) = ranges
        chosen = slice(rows.start, rows.stop)
        return np.asarray(self._features[chosen]), np.asarray(self._labels[chosen])


class PerClass:
    """One array of rows for every class: the label is the array's number. Rows come in random order."""

    classes: int | None = None

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = arrays
        self.blocks: tuple[int, ...] = tuple(array.shape[0] for array in arrays)  # each rank gets some of all

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Read the rows of every class and shuffle them."""
        x = np.concatenate(
            [array[rows.start : rows.stop] for array, rows in zip(self._arrays, ranges, strict=True)], axis=0
        )
        y = np.repeat(np.arange(len(ranges)), [len(rows) for rows in ranges])
        order = np.random.Generator(np.random.PCG64(_SEED)).permutation(len(y))
        return x[order], y[order]


@contextlib.contextmanager
def open_parts(path: Path, kind: str) -> Iterator[dict[str, RowSource]]:
    """Yield the parts of a file of `kind` ``npz``, ``hdf5``, ``netcdf`` or ``pnetcdf``.

    They are named arrays, or in HDF5 (MaTEx's form) one data set of rows for every class.

    Raises:
        UserError: the file is damaged or names no features and labels.
    """
    openers = {"npz": open_npz, "hdf5": open_hdf5}
    with openers.get(kind, open_netcdf)(path) as arrays:
        rows = list(arrays.values())
        same_shape = len(rows) > 1 and len({tuple(array.shape[1:]) for array in rows}) == 1
        per_class = kind == "hdf5" and same_shape and all(map(is_rows, rows))
        parts: dict[str, RowSource] = {}
        for part in (TRAIN, VALIDATION, TEST):
            names = named_pair(path, arrays, part, required=part == TRAIN and not per_class)
            if names is not None:
                parts[part] = ArrayPair(arrays[names[0]], arrays[names[1]])
        if TRAIN not in parts:
            parts[TRAIN] = PerClass(rows)
        yield parts


_EDGE = 1 / 16  # left out on every side: the middle 224 of 256 pixels


class ImageRows:
    """Images by their places in containers (`datasets.Prepared`): uint8 [rows, size, size, 3], their middle squares."""

    def __init__(
        self, files: npt.NDArray[np.bytes_], places: Array, labels: npt.NDArray[np.int32], size: int, classes: int
    ) -> None:
        self._files = files
        self._places = places
        self._labels = labels
        self._size = size
        self.classes: int | None = classes
        self.blocks: tuple[int, ...] = (len(places),)  # one: their order mixes the classes

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Decode the images of the one range, a thread for each of the rank's cores.

        Raises:
            UserError: they do not fit into memory, where a script has them as float32.
        """
        (rows,) = ranges
        shape = (len(rows), self._size, self._size, 3)
        needed = 4 * int(np.prod(shape, dtype=np.int64))
        free = memory_limit()
        if needed > free:
            raise UserError(
                f"{len(rows):,} images of {self._size} pixels a side take {needed / 2**30:.1f} GiB on this rank, "
                f"{free / 2**30:.1f} GiB are free: use more nodes or a smaller image_size"
            )
        x = np.empty(shape, np.uint8)
        with ThreadPoolExecutor(usable_cores()) as threads:
            images = threads.map(self._image, self._places[rows.start : rows.stop])
            for number, image in enumerate(images):
                x[number] = image
        return x, np.asarray(self._labels[rows.start : rows.stop])

    def _image(self, place: npt.NDArray[np.int64]) -> Array:
        from PIL import Image, ImageOps

        number, offset, size = map(int, place)
        with Path(bytes(self._files[number]).decode()).open("rb") as file:
            content = os.pread(file.fileno(), size, offset)
        with Image.open(io.BytesIO(content)) as picture:
            square = ImageOps.fit(picture.convert("RGB"), (self._size, self._size), Image.Resampling.BILINEAR, _EDGE)
        return np.asarray(square)


# The rows of CSV text, one file or a folder of them: each rank counts a part of the bytes and parses its own rows.

PIECE_BYTES = 16 << 20
"""A rank counts the lines of a file in pieces of so many bytes."""
_PLAIN = CsvSettings()
_NEWLINE = ord("\n")
_RETURN = ord("\r")


class CsvRows:
    """The rows of CSV files, one after the other."""

    classes: int | None = None

    def __init__(self, path: Path, label: str | int | None, peers: Peers, settings: CsvSettings = _PLAIN) -> None:
        """Find out how many rows there are; all ranks together. `settings` say how the files are written.

        The label's column is the one asked for, else the one called label, target or class, else the first.

        Raises:
            UserError: there is no file, it is empty, it has no column `label`, it can be read in two ways, or it
                cannot be divided by its bytes.
        """
        files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not files:
            raise UserError(f"train_file '{path}' is a folder without .csv files: give another")
        self._forms = {file: _dividable_form(file, settings) for file in files}
        first = self._forms[files[0]]
        for form in self._forms.values():
            if form.width != first.width:
                raise UserError(f"'{form.path}' has {form.width} columns, '{files[0]}' {first.width}: give the same")
        self._width = first.width
        self._label = _label(first, label)
        self._begins = {file: _rows_begin(form) for file, form in self._forms.items()}
        pieces = [piece for file in files for piece in _pieces(file, self._begins[file])]
        counts = peers.gather([_lines(*piece) for piece in pieces[peers.rank :: peers.size]])
        self._pieces: dict[Path, list[tuple[int, int]]] = {file: [] for file in files}
        for number, (file, begin, _, _) in enumerate(pieces):
            self._pieces[file].append((begin, counts[number % peers.size][number // peers.size]))
        self.blocks: tuple[int, ...] = (sum(map(sum, counts)),)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Parse the rows of the one range: float32 [rows, columns - 1] and float64 [rows]."""
        (rows,) = ranges
        parts = [np.empty((0, self._width))]
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
            row = begin
            form = self._forms[path]
            for batch in stream_csv(form, dict.fromkeys(range(self._width), "float64"), text=text):
                parts.append(to_array(form, batch, row, "float64"))
                row += batch.num_rows
            if row != end:
                raise UserError(
                    f"'{path}' has {row - begin:,} rows where {end - begin:,} lines end in newlines: save it with "
                    "newlines at the ends of lines"
                )
        values = np.concatenate(parts)
        single = _single(next(iter(self._forms.values())), values)
        return np.delete(single, self._label, axis=1), values[:, self._label]


def _dividable_form(path: Path, settings: CsvSettings) -> CsvForm:
    """Return how a file is written whose lines can be told apart in its bytes; raise a UserError of another."""
    form, _ = find_form(path, settings)
    if path.suffix.lower() == GZIP or form.encoding not in ("utf-8", "utf-8-sig") or form.separator == " ":
        raise UserError(
            f"'{path}' is packed, in {form.encoding.upper()} or separated by blanks, and ranks read parts of it "
            "by their bytes: save it as UTF-8 with commas, not packed"
        )
    return form


def _single(form: CsvForm, features: Array) -> Array:
    """Return features, float64, as float32; raise a UserError if float32 does not tell a column's numbers apart."""
    if not len(features):
        return features.astype(np.float32)
    names = form.names or [f"column {place + 1}" for place in range(form.width)]
    centring = find_centring(form.path, measure_columns([features], features.shape[1:]), names)
    if centring.chosen.any():
        place = int(centring.chosen.argmax())
        raise UserError(
            f"'{form.path}' column '{names[place]}' has numbers that float32 does not tell apart, such as "
            f"{features[0, place]:.17g}: take a constant off them in the file"
        )
    single: Array = features.astype(np.float32)
    return single


def _rows_begin(form: CsvForm) -> int:
    """Return the byte at which a file's first row begins, below its header."""
    with form.path.open("rb") as file:
        for _ in range(form.skip):
            file.readline()
        return file.tell()


def _label(form: CsvForm, label: str | int | None) -> int:
    """Return the place of the label's column."""
    names = [name.lower() for name in form.names]
    if label is None:
        place = next((place for place, name in enumerate(names) if name in LABEL_NAMES), 0)
        if names and not names[place]:
            raise UserError(
                f"'{form.path}' has a nameless first column, as an index has: say with label which column it is"
            )
        return place
    if isinstance(label, str):
        if label.lower() not in names:
            raise UserError(
                f"label '{label}' is not a column of '{form.path}': name one of {', '.join(names) or 'a header'}"
            )
        return names.index(label.lower())
    if not -form.width <= label < form.width:
        raise UserError(f"label {label} is not a column of '{form.path}': use 0 to {form.width - 1}")
    return label % form.width


def _pieces(path: Path, first: int) -> Iterator[tuple[Path, int, int, int]]:
    """Yield the file, the bytes at which each piece of its rows begins and ends, and that at which all begin."""
    size = path.stat().st_size
    edges = [first, *range(first + PIECE_BYTES, size, PIECE_BYTES), size]
    for begin, end in itertools.pairwise(edges):
        yield path, begin, end, first


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
