"""`DataSet`: what a user's script reads its part of the rows with, by paper B's interface; and what that reads from.

Rows by number, shared among the ranks of the MPI world or of this process alone. Of CSV text, one file or a folder of
them, each rank counts a part of the bytes and parses its own rows.
"""

import contextlib
import dataclasses
import io
import itertools
import logging
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from harness import datasets
from harness.base.cores import memory_limit, usable_cores
from harness.base.errors import UserError, unknown
from harness.datasets.array_files import is_rows, named_pair, open_hdf5, open_netcdf, open_npz
from harness.datasets.csv_rows import CsvHeader, read_head, stream_csv, to_array
from harness.datasets.dataset import Array
from harness.datasets.shards import split_evenly
from harness.schema.workload import IMAGENET, Workload

_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """This process's number among `size`, and a way to get every rank's value of something, in order of ranks."""

    rank: int = 0
    size: int = 1
    gather: Callable[[Any], list[Any]] = lambda value: [value]


def find_peers(environment: Mapping[str, str] = os.environ) -> Peers:
    """Return the ranks that a launcher has started; this process alone under TF_MPI_ENABLE=0 or without one.

    Raises:
        UserError: the launcher started ranks that are not in one MPI world.
    """
    started = any(environment.get(name, "").isdigit() and int(environment[name]) > 1 for name in _COUNTS)
    if not started or environment.get("TF_MPI_ENABLE") == "0":
        return Peers()
    from harness.comm.world import check_start, start

    world = start()
    check_start(world.size)
    return Peers(rank=world.rank, size=world.size, gather=lambda value: list(world.comm.allgather(value)))


TRAIN, VALIDATION, TEST = "training", "validation", "testing"
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
        self._x, self._y, self.classes = x, y, classes
        self.blocks: tuple[int, ...] = (x.shape[0],)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Slice both."""
        (rows,) = ranges
        return np.asarray(self._x[rows.start : rows.stop]), np.asarray(self._y[rows.start : rows.stop])


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
        one_shape = len(rows) > 1 and len({tuple(array.shape[1:]) for array in rows}) == 1
        per_class = kind == "hdf5" and one_shape and all(map(is_rows, rows))
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
        self._files, self._places, self._labels, self._size = files, places, labels, size
        self.classes: int | None = classes
        self.blocks: tuple[int, ...] = (len(places),)  # one: their order mixes the classes

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Decode the images of the one range, a thread for each of the rank's cores.

        Raises:
            UserError: they do not fit into memory, where a script has them as float32.
        """
        (rows,) = ranges
        shape = (len(rows), self._size, self._size, 3)
        needed, free = 4 * int(np.prod(shape, dtype=np.int64)), memory_limit()
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


_PIECE = 16 << 20  # bytes


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
        pieces = [
            (file, begin, end)
            for file, head in self._heads.items()
            for begin, end in itertools.pairwise(
                [head.header, *range(head.header + _PIECE, file.stat().st_size, _PIECE), file.stat().st_size]
            )
        ]
        counts = peers.gather([_lines(*piece) for piece in pieces[peers.rank :: peers.size]])
        self._pieces: dict[Path, list[tuple[int, int]]] = {file: [] for file in files}
        for number, (file, begin, _) in enumerate(pieces):
            self._pieces[file].append((begin, counts[number % peers.size][number // peers.size]))
        self.blocks: tuple[int, ...] = (sum(map(sum, counts)),)

    def read(self, ranges: Sequence[range]) -> tuple[Array, Array]:
        """Parse the rows of the one range: float32 [rows, columns - 1] and float64 [rows]."""
        (rows,) = ranges
        features = [place for place in range(self._width) if place != self._label]
        x, y = [np.empty((0, len(features)), np.float32)], [np.empty(0)]
        columns = [f"c{place}" for place in range(self._width)]
        types = dict.fromkeys(columns, "float32") | {columns[self._label]: "float64"}
        first = 0
        for path, pieces in self._pieces.items():
            count = sum(lines for _, lines in pieces)
            begin, end = max(rows.start - first, 0), min(rows.stop - first, count)
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
            shown = ", ".join(head.names) or "a header"
            raise UserError(f"label '{label}' is not a column of '{path}': name one of {shown}")
        return head.names.index(label.lower())
    width = len(head.cells)
    if not -width <= label < width:
        raise UserError(f"label {label} is not a column of '{path}': use 0 to {width - 1}")
    return label % width


def _lines(path: Path, begin: int, end: int) -> int:
    """Return how many lines end between two offsets; the last of a file may have no newline."""
    with path.open("rb") as file:
        file.seek(begin)
        content = file.read(end - begin)
        ended = bool(file.read(1)) or content.endswith(b"\n") or not content
    return content.count(b"\n") + (not ended)


def _offset(content: mmap.mmap, pieces: Sequence[tuple[int, int]], row: int) -> int:
    """Return where row `row` of a file begins, the end behind the last; `pieces` are offsets and their lines."""
    for begin, lines in pieces:
        if row <= lines:  # the newline before the row is in this piece
            place = begin
            for _ in range(row):
                place = content.find(b"\n", place) + 1 or len(content)
            return place
        row -= lines
    raise AssertionError("the file has fewer rows")


KNOWN = ("mnist", "cifar10", "cifar100", IMAGENET)
FORMATS = ("csv", "hdf5", "netcdf", "pnetcdf", "npz")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSetRequest:
    """The arguments of `DataSet`, checked. `valid_pct` and `test_pct` are parts of the rows, 0 to 1.

    `image_size` are the pixels a side of IMAGENET's rows, None for 224.

    Raises:
        UserError: one of them is out of its range, or a file is missing or not wanted.
    """

    name: str
    normalize: float = 1.0
    train_file: str | Path | None = None
    validation_file: str | Path | None = None
    test_file: str | Path | None = None
    valid_pct: float | None = None
    test_pct: float = 0.0
    one_hot: bool = True
    label: str | int | None = None
    data_dir: str | Path | None = None
    image_size: int | None = None

    def __post_init__(self) -> None:
        if self.name not in (*KNOWN, *FORMATS):
            raise unknown("data set", self.name, (*KNOWN, *FORMATS))
        if not self.normalize > 0:
            raise UserError(f"normalize {self.normalize} is not a divisor: give a number above 0, such as 255.0")
        held = (self.valid_pct or 0.0, self.test_pct)
        if min(held) < 0 or sum(held) >= 1:
            raise UserError(f"valid_pct {held[0]} and test_pct {held[1]} leave no training rows: use parts of 1")
        if self.name in KNOWN and self.train_file is not None:
            raise UserError(
                f"train_file cannot be combined with {self.name.upper()}: leave it out, or name another data set"
            )
        if self.name not in KNOWN and self.train_file is None:
            raise UserError(f"{self.name.upper()} has no train_file: give one")
        for field in ("train_file", "validation_file", "test_file"):
            path = getattr(self, field)
            if path is not None and not Path(path).exists():
                raise UserError(f"{field} '{path}' is not there: check the path")
        if self.image_size is not None and self.name != IMAGENET:
            raise UserError(f"image_size {self.image_size} is for IMAGENET: leave it out for {self.name.upper()}")
        if self.label is not None and self.name != "csv":
            raise UserError(f"label {self.label!r} is for CSV files: leave it out for {self.name.upper()}")


_log = logging.getLogger(__name__)

_MNIST_VALIDATION = 1 / 6  # the last 10,000 of 60,000, as in the original
_CLASSES = 10_000  # more different labels are not classes


class RankRows(NamedTuple):
    """This rank's rows of one part: float32 [rows, *features] and labels, float32 [rows, classes] if one-hot."""

    data: Array
    labels: Array


def load(request: DataSetRequest, peers: Peers) -> dict[str, RankRows]:
    """Read this rank's rows of every part that there is; all ranks together.

    Raises:
        UserError: a file is damaged, has no features and labels, or has fewer rows than there are ranks.
    """
    raw = {}
    classes: int | None = None
    with contextlib.ExitStack() as stack:
        for part, source, ranges in _wanted(request, peers, stack):
            rows = sum(map(len, ranges))
            if rows and rows < peers.size:
                raise UserError(f"{request.name} has {rows} {part} rows for {peers.size} ranks: use fewer ranks")
            if rows:
                classes = source.classes
                raw[part] = source.read(_own_ranges(ranges, peers))
    if TRAIN not in raw:
        raise UserError(f"{request.name} has no training rows: check {request.train_file}")
    labels = _labels(request, {part: y for part, (_, y) in raw.items()}, classes, peers)
    divisor = np.float32(request.normalize)
    return {
        part: RankRows(data=np.divide(x, divisor, dtype=np.float32, casting="unsafe"), labels=labels[part])
        for part, (x, _) in raw.items()
    }


def _wanted(
    request: DataSetRequest, peers: Peers, stack: contextlib.ExitStack
) -> Iterator[tuple[str, RowSource, Sequence[range]]]:
    """Yield every part with its source and the rows of the source's blocks that it is made of."""
    parts = _open(request, request.train_file, peers, stack)
    for part, path in ((VALIDATION, request.validation_file), (TEST, request.test_file)):
        if path is not None:
            parts[part] = _open(request, path, peers, stack)[TRAIN]
    default = _MNIST_VALIDATION if request.name == "mnist" else 0.0
    valid = request.valid_pct if request.valid_pct is not None else default
    # A file of its own for a part leaves nothing to hold out for it.
    held = _cut(parts[TRAIN].blocks, 0 if VALIDATION in parts else valid, 0 if TEST in parts else request.test_pct)
    yield TRAIN, parts[TRAIN], held[TRAIN]
    for part in (VALIDATION, TEST):
        whole = part in parts
        source = parts[part] if whole else parts[TRAIN]
        yield part, source, [range(rows) for rows in source.blocks] if whole else held[part]


def _own_ranges(parts: Sequence[range], peers: Peers) -> list[range]:
    """Return this rank's rows of every block, of which the rows `parts` are wanted; over all ranks an exact cover.

    The next block starts with the next rank, so that no rank gets the larger part of all of them.
    """
    ranges = []
    for block, part in enumerate(parts):
        own = split_evenly(len(part), peers.size, (peers.rank + block) % peers.size)
        ranges.append(range(part.start + own.start, part.start + own.stop))
    return ranges


def _cut(blocks: Sequence[int], valid: float, test: float) -> dict[str, list[range]]:
    """Return the rows of every block that train, validate and test: the last ones are held out, the very last test."""
    found: dict[str, list[range]] = {TRAIN: [], VALIDATION: [], TEST: []}
    for rows in blocks:
        tested = round(rows * test)
        validated = round(rows * valid)
        edge = rows - tested - validated
        found[TRAIN].append(range(0, edge))
        found[VALIDATION].append(range(edge, edge + validated))
        found[TEST].append(range(edge + validated, rows))
    return found


def _open(
    request: DataSetRequest, path: str | Path | None, peers: Peers, stack: contextlib.ExitStack
) -> dict[str, RowSource]:
    if request.name in KNOWN:
        return _known(request, peers)
    assert path is not None
    if request.name == "csv":
        return {TRAIN: CsvRows(Path(path), request.label, peers)}
    return stack.enter_context(open_parts(Path(path), request.name))


def _known(request: DataSetRequest, peers: Peers) -> dict[str, RowSource]:
    """Return the parts of one of the harness's own data sets: memory maps or images, of which a rank reads its rows."""
    workload = Workload(
        dataset=request.name,
        model=datasets.info(request.name).default_model,
        global_batch=1,
        image_size=request.image_size,
    )
    prepared = datasets.prepare(datasets.locate(workload, Path(request.data_dir) if request.data_dir else None))
    if prepared.record.note and peers.rank == 0:
        _log.warning("%s: %s", request.name, prepared.record.note)
    parts = {TRAIN: (prepared.train_x, prepared.train_y), TEST: (prepared.test_x, prepared.test_y)}
    classes = prepared.record.classes
    if prepared.files is None:
        return {part: ArrayPair(x, y, classes) for part, (x, y) in parts.items()}
    size = prepared.record.features[0]
    return {part: ImageRows(prepared.files, x, y, size, classes) for part, (x, y) in parts.items()}


def _labels(request: DataSetRequest, labels: dict[str, Array], classes: int | None, peers: Peers) -> dict[str, Array]:
    """Return the labels as the script wants them; without a number of `classes` these are all ranks' values."""
    labels = {part: y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for part, y in labels.items()}
    if not request.one_hot or any(y.ndim > 1 for y in labels.values()):
        return {part: y.astype(np.float32 if y.dtype.kind == "f" else np.int32) for part, y in labels.items()}
    if classes is not None:
        values = np.arange(classes)
    else:
        own = np.unique(np.concatenate(list(labels.values())))
        values = np.unique(np.concatenate(peers.gather(own[: _CLASSES + 1])))
        if len(values) > _CLASSES or np.any(values != np.round(values)):
            raise UserError(
                f"the labels of '{request.train_file}' are not whole numbers, one per class: pass one_hot=False"
            )
    identity = np.eye(len(values), dtype=np.float32)
    return {part: identity[np.searchsorted(values, y)] for part, y in labels.items()}


class DataSet:
    """Training, validation and testing rows of a data set, of which this MPI rank has read its own part.

    `training_data` (float32 [rows, *features], divided by `normalize`), `training_labels` (float32
    [rows, classes], or as they are with ``one_hot=False``), `validation_data`, `validation_labels`,
    `testing_data`, `testing_labels`; None where there is no such part. Over all ranks every row is there once.
    """

    def __init__(
        self,
        data_name: str,
        train_batch_size: int | None = None,
        test_batch_size: int | None = None,
        normalize: float = 1.0,
        **more: Any,
    ) -> None:
        """Read MNIST, CIFAR10, CIFAR100, IMAGENET, or ``train_file=`` in format CSV (or a folder), HDF5, NetCDF, npz.

        `more`: validation_file, test_file, valid_pct, test_pct, one_hot, label (a CSV column), data_dir, image_size.

        Raises:
            UserError: an argument is wrong, or a file is missing, damaged or too short.
        """
        fields = [field.name for field in dataclasses.fields(DataSetRequest)]
        for name in more:
            if name not in fields:
                raise unknown("argument of DataSet", name, fields)
        peers = find_peers()
        parts = load(DataSetRequest(name=data_name.lower(), normalize=normalize, **more), peers)
        self.train_batch_size = train_batch_size
        self.test_batch_size = test_batch_size
        none = (None, None)
        arrays: dict[str, tuple[Any, Any]] = {TRAIN: none, VALIDATION: none, TEST: none, **parts}
        self.training_data, self.training_labels = arrays[TRAIN]
        self.validation_data, self.validation_labels = arrays[VALIDATION]
        self.testing_data, self.testing_labels = arrays[TEST]
        self._next = dict.fromkeys(parts, 0)
        self._parts = parts

    def next_train_batch(self) -> tuple[Array, Array]:
        """Return the next `train_batch_size` training rows and their labels, and after the last the first again."""
        return self._take(TRAIN, "train_batch_size", self.train_batch_size)

    def next_validation_batch(self) -> tuple[Array, Array]:
        """Return the next `test_batch_size` validation rows and their labels."""
        return self._take(VALIDATION, "test_batch_size", self.test_batch_size)

    def next_test_batch(self) -> tuple[Array, Array]:
        """Return the next `test_batch_size` testing rows and their labels."""
        return self._take(TEST, "test_batch_size", self.test_batch_size)

    def _take(self, part: str, field: str, size: int | None) -> tuple[Array, Array]:
        if size is None or size < 1:
            raise UserError(f"{field} is {size}: give DataSet a number of rows above 0")
        if part not in self._parts:
            raise UserError(f"there are no {part} rows: give DataSet valid_pct, test_pct or a file for them")
        found = self._parts[part]
        begin = self._next[part]
        self._next[part] = (begin + size) % len(found.data)
        rows = np.arange(begin, begin + size) % len(found.data)
        return found.data[rows], found.labels[rows]
