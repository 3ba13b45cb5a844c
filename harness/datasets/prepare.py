"""Prepare: read the source once into memory-mapped arrays that every rank opens, and check what they hold."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.base.errors import UserError
from harness.base.files import cache_folder, publish_once, write_atomic
from harness.base.removal import replace_file
from harness.datasets import synthetic
from harness.datasets.data_source import DataSource
from harness.datasets.dataset import TEST, TRAIN, Array, Chunk, Dataset
from harness.datasets.image_files import open_index
from harness.datasets.known import dataset_info
from harness.datasets.npy_files import NpyWriter, Vector, read_chunks, shift_and_factor
from harness.datasets.own_file import FILE, TEXT_SUFFIXES, ArrayFile, are_different, own_suffix
from harness.datasets.own_table import OwnTable
from harness.datasets.single_precision import centred_columns, find_centring, measure_columns
from harness.datasets.table_sources import PARQUET
from harness.schema.data_record import CentredColumn, DataRecord, OwnFile
from harness.schema.record import decode, encode

# Test rows of a file that has no test part: drawn by a seed, the same share of every class.

_CHUNK_BYTES = 16 << 20
SEED = 0
"""It is the same for every launch, whatever its ranks and its own seed: all are tested on the same rows."""


def draw_rows(labels: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.bool_]:
    """Return which of the rows, with `labels` 0 to k-1, are the `count` test rows.

    Every class has its share, rounded so that the sum is `count`; a class of one row keeps it to train on.
    """
    rows = np.bincount(labels)
    exact = count * rows / len(labels)
    drawn = np.floor(exact).astype(np.int64)
    most = np.where(rows > 1, rows - 1, 0)
    drawn = np.minimum(drawn, most)
    for place in np.argsort(drawn - exact, kind="stable"):
        if drawn.sum() < count and drawn[place] < most[place]:
            drawn[place] += 1
    short = count - int(drawn.sum())
    if short:  # classes of one row have nothing to give: the largest classes do
        for place in np.argsort(-rows, kind="stable"):
            more = min(short, int(most[place] - drawn[place]))
            drawn[place] += more
            short -= more
    random = np.random.Generator(np.random.PCG64(SEED))
    held = np.zeros(len(labels), np.bool_)
    for place, part in enumerate(drawn):
        members = np.flatnonzero(labels == place)
        held[random.choice(members, int(part), replace=False)] = True
    return held


def are_sorted(labels: npt.NDArray[np.int32]) -> bool:
    """Return whether rows of one class stand together, so that the first ones are not like all."""
    shares = np.bincount(labels) / len(labels)
    changes = np.count_nonzero(labels[1:] != labels[:-1])
    return bool(2 * changes < (len(labels) - 1) * (1 - np.sum(shares**2)))


def order_rows(labels: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int64]:
    """Return the numbers of all rows: those to train on first, then the `count` test rows.

    Both are in the file's order; where that is sorted by class the rows to train on are in random order, as SAMPLES=
    takes the first and each rank its own part of them.
    """
    held = draw_rows(labels, count)
    train = np.flatnonzero(~held)
    if are_sorted(labels):
        train = np.random.Generator(np.random.PCG64(SEED)).permutation(train)
    return np.concatenate([train, np.flatnonzero(held)])


def reorder(path: Path, order: npt.NDArray[np.int64]) -> None:
    """Rewrite the .npy file at `path` with its rows in this order."""
    ordered = path.with_suffix(".ordered.npy")
    rows = np.load(path, mmap_mode="r")
    step = max(1, _CHUNK_BYTES // max(1, rows[:1].nbytes))
    with NpyWriter(ordered, rows.dtype.str, rows.shape[1:]) as file:
        for start in range(0, len(order), step):
            file.append(rows[order[start : start + step]])
    del rows
    replace_file(ordered, path, "prepared data")


_log = logging.getLogger(__name__)

_FORMAT = "2"  # part of every prepared folder's path: a new layout of the files never reads an old one
_RECORD = "data.json"
_FEATURES = "x.npy"
_LABELS = "y.npy"
_SHIFT = "shift.npy"
_FACTOR = "factor.npy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Data ready for every rank, in `folder`.

    `train_x` and `test_x` are read-only memory maps [rows, *features], uint8 or float32; `train_y` and
    `test_y` int32 [rows]. `shift` and `factor` (float32) broadcast against a row: the network's input is
    (float32(x) - shift) * factor.

    Where images stay in their files, `files` are the paths and `train_x` and `test_x` int64 [rows, 3]: file number,
    offset and bytes of each image.
    """

    record: DataRecord
    folder: Path
    train_x: Array
    train_y: npt.NDArray[np.int32]
    test_x: Array
    test_y: npt.NDArray[np.int32]
    shift: Vector
    factor: Vector
    files: npt.NDArray[np.bytes_] | None = None

    def chunks(self, rows: int) -> Iterator[Array]:
        """Yield the features of the first `rows` rows, training rows first, without mapping them."""
        return read_chunks(self.folder / _FEATURES, rows)


def prepare(source: DataSource) -> Prepared:
    """Return the source's data as memory maps, writing them to the cache folder the first time.

    Ranks that start together write once: the others wait at a lock, and where locks do not work the
    first to finish wins.

    Raises:
        UserError: the source's content is bad, or the cache folder is full or cannot be written.
    """
    if source.stored:
        return _open_images(source)
    folder = prepared_folder(source)
    publish_once(folder, lambda staging: _write(source, staging))
    return _open(source, folder)


def prepared_folder(source: DataSource) -> Path:
    """Return the folder that the source's prepared data has or will have."""
    if source.stored:
        return cache_folder() / "images"
    size = f"-{source.rows}" if source.kind == "synthetic" else ""
    return cache_folder() / "prepared" / _FORMAT / f"{source.data_id}{size}"


def _write(source: DataSource, folder: Path) -> None:
    """Write x.npy and y.npy (training rows, then test rows), the statistics and, last, the record."""
    _log.info("preparing %s in '%s'", source.data_id, folder)
    dataset = dataset_info(source.name).sized(source.image_size, source.classes)
    own_reader = _own_reader(source)
    dataset = replace(dataset, read=own_reader.read) if own_reader else dataset
    train_rows, test_rows = _write_rows(dataset, source, folder)
    if train_rows + test_rows < 2:
        raise UserError(f"'{source.files[0]}' has one row only: training and test need at least 2")
    notes = []
    centred: tuple[CentredColumn, ...] = ()
    labels = _relabel(folder / _LABELS, source.files[0], own_reader) if own_reader else None
    if labels:
        notes.append(labels.note)
    held_out = False
    shuffled = False
    seed = None
    if test_rows == 0:
        test_rows = dataset.hold_out(train_rows)
        train_rows -= test_rows
        note = _held_out(dataset, source.files[0].name, train_rows, test_rows)
        held_out = bool(note)
        notes.append(note)
        if own_reader:
            seed = SEED
            classes = np.load(folder / _LABELS)
            order = order_rows(classes, test_rows)
            for name in (_FEATURES, _LABELS):
                reorder(folder / name, order)
            shuffled = are_sorted(classes)
    if isinstance(own_reader, OwnTable):
        notes += own_reader.encode(folder / _FEATURES, train_rows)
        centred = own_reader.centred
    elif isinstance(own_reader, ArrayFile):
        centred = _to_single(folder / _FEATURES, source.files[0], train_rows + test_rows)
    if centred:
        notes.append(_centred_note(source.files[0].name, centred))
    features = np.load(folder / _FEATURES, mmap_mode="r").shape[1:]
    shift, factor = shift_and_factor(read_chunks(folder / _FEATURES, train_rows), features, dataset.standardise)
    np.save(folder / _SHIFT, shift)
    np.save(folder / _FACTOR, factor)
    record = DataRecord(
        name=source.name,
        kind=source.kind,
        sha256=source.sha256,
        train_rows=train_rows,
        test_rows=test_rows,
        features=features,
        classes=len(labels.names) if labels else dataset.classes,
        held_out=held_out,
        held_out_seed=seed,
        own_file=_understood(source.files[0], own_reader, labels, centred, shuffled) if own_reader and labels else None,
        note="; ".join(filter(None, notes)),
    )
    write_atomic(folder / _RECORD, encode(record))


def _own_reader(source: DataSource) -> OwnTable | ArrayFile | None:
    """Return what reads a file of the user's own; None for a data set that is known."""
    if source.name != FILE:
        return None
    path = source.files[0]
    is_table = own_suffix(path) in (*TEXT_SUFFIXES, PARQUET)
    return OwnTable(path, source.csv) if is_table else ArrayFile()


def _to_single(path: Path, file: Path, rows: int) -> tuple[CentredColumn, ...]:
    """Rewrite float64 features of arrays as float32; return the columns that were centred and scaled for it.

    Raises:
        UserError: float64 does not tell the values of a column apart.
    """
    stored = np.load(path, mmap_mode="r")
    features = stored.shape[1:]
    if stored.dtype != np.float64:
        return ()
    del stored
    names = [f"x{list(place)}" for place in np.ndindex(features)]
    centring = find_centring(file, measure_columns(read_chunks(path, rows), features), names)
    single = path.with_suffix(".single.npy")
    with NpyWriter(single, "float32", features) as writer:
        for chunk in read_chunks(path, rows):
            writer.append(centring.apply(chunk))
    replace_file(single, path, "prepared data")
    return centred_columns(centring, names)


def _centred_note(file: str, centred: tuple[CentredColumn, ...]) -> str:
    """Return the sentence that columns were centred and scaled."""
    most = 5
    columns = [f"{column.name} (minus {column.centre:.9g}, divided by {column.scale:.6g})" for column in centred[:most]]
    more = f" and {len(centred) - most:,} more" if len(centred) > most else ""
    return f"centred and scaled in {file}, as float32 does not hold the numbers: {', '.join(columns)}{more}"


def _understood(
    file: Path,
    own_reader: OwnTable | ArrayFile,
    labels: "_Labels",
    centred: tuple[CentredColumn, ...],
    shuffled: bool,
) -> OwnFile:
    """Return what the record says of a file of the user's own."""
    return OwnFile(
        file=file.name,
        rows=sum(labels.counts),
        class_names=labels.names,
        class_rows=labels.counts,
        table=own_reader.columns() if isinstance(own_reader, OwnTable) else None,
        arrays=own_reader.names if isinstance(own_reader, ArrayFile) else (),
        centred=centred,
        shuffled=shuffled,
    )


def _write_rows(dataset: Dataset, source: DataSource, folder: Path) -> tuple[int, int]:
    """Write the features and labels of both parts, read from the files or drawn; return the rows of each."""
    if source.kind == "synthetic":
        train = synthetic.chunks(dataset, source.rows, TRAIN)
        test = synthetic.chunks(dataset, synthetic.test_rows(dataset, source.rows), TEST)
    else:
        train = dataset.read(source.train, TRAIN)
        test = dataset.read(source.test, TEST)
    head = next((chunk for chunk in train if len(chunk[0])), None)
    if head is None:
        raise UserError(f"'{source.files[0]}' has no rows: check the file")
    label_type = "int64" if source.name == FILE else "int32"
    with (
        NpyWriter(folder / _FEATURES, str(head[0].dtype), head[0].shape[1:]) as features,
        NpyWriter(folder / _LABELS, label_type, ()) as labels,
    ):
        train_rows = _append(source, chain([head], train), features, labels)
        return train_rows, _append(source, test, features, labels)


def _append(source: DataSource, chunks: Iterator[Chunk], features: NpyWriter, labels: NpyWriter) -> int:
    """Write the chunks of one part and return its rows; all have the first one's features."""
    before = features.rows
    for x, y in chunks:
        if not len(x):
            continue
        if x.shape[1:] != features.features:
            raise UserError(
                f"'{source.files[0]}' has rows of shape {x.shape[1:]} after rows of shape {features.features}: "
                "give training and test rows the same features"
            )
        features.append(x)
        labels.append(np.asarray(y).astype(labels.dtype))
    return features.rows - before


@dataclass(frozen=True, kw_only=True, slots=True)
class _Labels:
    """The classes of a file of the user's own: their names there, the rows of each, and a note if they are others."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    note: str = ""


def _relabel(path: Path, file: Path, own_reader: OwnTable | ArrayFile) -> _Labels:
    """Replace labels by their places 0..k-1 among the k different ones.

    Raises:
        UserError: there is one class only, or nearly every row has its own.
    """
    texts = own_reader.classes
    raw = np.array(texts)[np.load(path)] if texts else np.load(path)
    values, places, counts = np.unique(raw, return_inverse=True, return_counts=True)
    if len(values) < 2:
        raise UserError(f"'{file}' has one class only (label {values[0]}): training needs at least 2")
    if are_different(len(values), len(raw)):
        if isinstance(own_reader, OwnTable):
            raise own_reader.no_label()
        count = f"{len(values):,} different labels in {len(raw):,} rows"
        raise UserError(f"'{file}' {own_reader.names[1]} has {count}: give one of few classes for each row")
    np.save(path, places.astype(np.int32))
    note = ""
    if texts or not np.array_equal(values, np.arange(len(values))):
        first_values = ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
        note = f"labels {first_values} of {file.name} are classes 0 to {len(values) - 1}"
    return _Labels(names=tuple(map(str, values)), counts=tuple(counts.tolist()), note=note)


def _held_out(dataset: Dataset, file: str, train_rows: int, test_rows: int) -> str:
    """Return the sentence that test rows were taken from what the original trains on, empty if they were not."""
    rows = train_rows + test_rows
    published_rows = dataset.train_rows + dataset.test_rows
    if dataset.name == FILE:
        return f"{file} has no test part: {test_rows:,} rows of all classes are held out for test, drawn by seed {SEED}"
    if dataset.separate_test:
        return f"no {dataset.title} test files: the last {test_rows:,} training rows are held out for test"
    if rows != published_rows:
        return f"{file} has {rows:,} of {published_rows:,} rows: its last {test_rows:,} are held out for test"
    return ""


def _open_images(source: DataSource) -> Prepared:
    dataset = dataset_info(source.name).sized(source.image_size, source.classes)
    train = source.train
    test = source.test
    if source.kind == "synthetic":
        folder = synthetic.jpeg_folder(dataset, source.rows, source.classes)
        train = (folder / "train",)
        test = (folder / "val",)
    index = open_index(train, test)
    rows = index.summary.train_rows
    test_rows = index.summary.test_rows
    held_out = 0 if test_rows else dataset.hold_out(rows)
    rows -= held_out
    scale = np.float32(255)
    return Prepared(
        record=DataRecord(
            name=source.name,
            kind=source.kind,
            sha256=source.sha256,
            train_rows=rows,
            test_rows=held_out or test_rows,
            features=dataset.features,
            # A small stand-in may lack some classes.
            classes=dataset.classes if source.kind == "synthetic" else index.summary.classes,
            held_out=bool(held_out),
            note=source.note,
        ),
        folder=index.folder,
        train_x=index.places[:rows],
        train_y=index.labels[:rows],
        test_x=index.places[rows:],
        test_y=index.labels[rows:],
        shift=np.array(dataset.channel_mean, np.float32) * scale,
        factor=np.float32(1) / (np.array(dataset.channel_std, np.float32) * scale),
        files=index.files,
    )


def _open(source: DataSource, folder: Path) -> Prepared:
    """Open the prepared folder; raise a UserError if a file in it is missing or damaged."""
    path = folder / _RECORD
    try:
        record = decode(path.read_bytes(), DataRecord, path)
        x = np.load(folder / _FEATURES, mmap_mode="r")
        y = np.load(folder / _LABELS, mmap_mode="r")
        shift = np.load(folder / _SHIFT)
        factor = np.load(folder / _FACTOR)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"prepared data in '{folder}' is damaged ({error}): delete that folder") from error
    rows = record.train_rows + record.test_rows
    if len(x) != rows or len(y) != rows:
        raise UserError(f"prepared data in '{folder}' has {len(x):,} rows, not {rows:,}: delete that folder")
    note = "; ".join(filter(None, (source.note if source.kind == "synthetic" else "", record.note)))
    return Prepared(
        record=replace(record, note=note),
        folder=folder,
        train_x=x[: record.train_rows],
        train_y=y[: record.train_rows],
        test_x=x[record.train_rows :],
        test_y=y[record.train_rows :],
        shift=shift,
        factor=factor,
    )
