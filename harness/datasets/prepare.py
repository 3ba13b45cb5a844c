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
from harness.datasets import synthetic
from harness.datasets.data_source import DataSource, file_sha256
from harness.datasets.dataset import (
    TEST,
    TRAIN,
    Array,
    Block,
    Dataset,
    NpyWriter,
    Vector,
    read_blocks,
    shift_and_factor,
)
from harness.datasets.downloads import published_or_pinned
from harness.datasets.held_out import SEED, are_sorted, order_rows, reorder
from harness.datasets.image_files import open_index
from harness.datasets.known import info
from harness.datasets.own_arrays import ArrayFile
from harness.datasets.own_file import CSV, FILE
from harness.datasets.own_labels import are_different
from harness.datasets.own_table import CsvTable
from harness.schema.data_record import DataRecord, OwnFile
from harness.schema.record import decode, encode

_log = logging.getLogger(__name__)

_FORMAT = "2"  # part of every prepared folder's path: a new layout of the files never reads an old one
_RECORD, _FEATURES, _LABELS, _SHIFT, _FACTOR = "data.json", "x.npy", "y.npy", "shift.npy", "factor.npy"


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

    def blocks(self, rows: int) -> Iterator[Array]:
        """Yield the features of the first `rows` rows, training rows first, without mapping them."""
        return read_blocks(self.folder / _FEATURES, rows)


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
    dataset = info(source.name).sized(source.image_size, source.classes)
    own = _own_reader(source)
    dataset = replace(dataset, read=own.read) if own else dataset
    train_rows, test_rows = _write_rows(dataset, source, folder)
    if train_rows + test_rows < 2:
        raise UserError(f"'{source.files[0]}' has one row only: training and test need at least 2")
    notes = []
    labels = _relabel(folder / _LABELS, source.files[0], own) if own else None
    if labels:
        notes.append(labels.note)
    held_out, seed, shuffled = False, None, False
    if test_rows == 0:
        test_rows = dataset.hold_out(train_rows)
        train_rows -= test_rows
        note = _held_out(dataset, source.files[0].name, train_rows, test_rows)
        held_out = bool(note)
        notes.append(note)
        if own:
            seed = SEED
            classes = np.load(folder / _LABELS)
            shuffled = are_sorted(classes)
            order = order_rows(classes, test_rows)
            for name in (_FEATURES, _LABELS):
                reorder(folder / name, order)
    if isinstance(own, CsvTable):
        notes += own.encode(folder / _FEATURES, train_rows)
    features = np.load(folder / _FEATURES, mmap_mode="r").shape[1:]
    shift, factor = shift_and_factor(read_blocks(folder / _FEATURES, train_rows), features, dataset.standardise)
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
        own_file=_understood(source.files[0], own, labels, shuffled) if own and labels else None,
        note="; ".join(filter(None, notes)),
    )
    write_atomic(folder / _RECORD, encode(record))


def _own_reader(source: DataSource) -> CsvTable | ArrayFile | None:
    """Return what reads a file of the user's own; None for a data set that is known."""
    if source.name != FILE:
        return None
    path = source.files[0]
    return CsvTable(path, source.csv) if path.suffix.lower() == CSV else ArrayFile()


def _understood(file: Path, own: CsvTable | ArrayFile, labels: "_Labels", shuffled: bool) -> OwnFile:
    """Return what the record says of a file of the user's own."""
    return OwnFile(
        file=file.name,
        rows=sum(labels.counts),
        class_names=labels.names,
        class_rows=labels.counts,
        table=own.columns() if isinstance(own, CsvTable) else None,
        arrays=own.names if isinstance(own, ArrayFile) else (),
        shuffled=shuffled,
    )


def _write_rows(dataset: Dataset, source: DataSource, folder: Path) -> tuple[int, int]:
    """Write the features and labels of both parts, read from the files or drawn; return the rows of each."""
    if source.kind == "synthetic":
        train = synthetic.blocks(dataset, source.rows, TRAIN)
        test = synthetic.blocks(dataset, synthetic.test_rows(dataset, source.rows), TEST)
    else:
        train, test = dataset.read(source.train, TRAIN), dataset.read(source.test, TEST)
    head = next((block for block in train if len(block[0])), None)
    if head is None:
        raise UserError(f"'{source.files[0]}' has no rows: check the file")
    label_type = "int64" if source.name == FILE else "int32"
    with (
        NpyWriter(folder / _FEATURES, str(head[0].dtype), head[0].shape[1:]) as features,
        NpyWriter(folder / _LABELS, label_type, ()) as labels,
    ):
        train_rows = _append(source, chain([head], train), features, labels)
        return train_rows, _append(source, test, features, labels)


def _append(source: DataSource, blocks: Iterator[Block], features: NpyWriter, labels: NpyWriter) -> int:
    """Write the blocks of one part and return its rows; all have the first one's features."""
    before = features.rows
    for x, y in blocks:
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


def _relabel(path: Path, file: Path, own: CsvTable | ArrayFile) -> _Labels:
    """Replace labels by their places 0..k-1 among the k different ones.

    Raises:
        UserError: there is one class only, or nearly every row has its own.
    """
    texts = own.classes
    raw = np.array(texts)[np.load(path)] if texts else np.load(path)
    values, places, counts = np.unique(raw, return_inverse=True, return_counts=True)
    if len(values) < 2:
        raise UserError(f"'{file}' has one class only (label {values[0]}): training needs at least 2")
    if are_different(len(values), len(raw)):
        if isinstance(own, CsvTable):
            raise own.no_label()
        raise UserError(
            f"'{file}' {own.names[1]} has {len(values):,} different labels in {len(raw):,} rows: give one of few "
            "classes for each row"
        )
    np.save(path, places.astype(np.int32))
    note = ""
    if texts or not np.array_equal(values, np.arange(len(values))):
        shown = ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
        note = f"labels {shown} of {file.name} are classes 0 to {len(values) - 1}"
    return _Labels(names=tuple(map(str, values)), counts=tuple(counts.tolist()), note=note)


def _held_out(dataset: Dataset, file: str, train_rows: int, test_rows: int) -> str:
    """Return the sentence that test rows were taken from what the original trains on, empty if they were not."""
    rows, whole = train_rows + test_rows, dataset.train_rows + dataset.test_rows
    if dataset.name == FILE:
        return f"{file} has no test part: {test_rows:,} rows of all classes are held out for test, drawn by seed {SEED}"
    if dataset.separate_test:
        return f"no {dataset.title} test files: the last {test_rows:,} training rows are held out for test"
    if rows != whole:
        return f"{file} has {rows:,} of {whole:,} rows: its last {test_rows:,} are held out for test"
    return ""


def _open_images(source: DataSource) -> Prepared:
    dataset = info(source.name).sized(source.image_size, source.classes)
    train, test = source.train, source.test
    if source.kind == "synthetic":
        folder = synthetic.jpeg_folder(dataset, source.rows, source.classes)
        train, test = (folder / "train",), (folder / "val",)
    index = open_index(train, test)
    rows, test_rows = index.summary.train_rows, index.summary.test_rows
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
        shift, factor = np.load(folder / _SHIFT), np.load(folder / _FACTOR)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCheck:
    """One fact: what was found, what is published, and whether they agree (None: nothing to compare with)."""

    what: str
    found: str
    expected: str = ""
    agrees: bool | None = None


def verify(source: DataSource, prepared: Prepared) -> list[FileCheck]:
    """Return the checks of rows, classes, value range, and mean and deviation of real data, in this order.

    Rows that were held out of a training part count as training rows again here.
    """
    facts, record = info(source.name), prepared.record
    train_y, test_y = prepared.train_y, prepared.test_y
    if record.held_out:
        train_y, test_y = np.concatenate([train_y, test_y]), test_y[:0]
    checks = [*_hashes(source, facts), *_rows(facts, record.held_out, len(train_y), len(test_y))]
    for part, labels, counts in (("train", train_y, facts.train_counts), ("test", test_y, facts.test_counts)):
        if len(labels):
            found = tuple(np.bincount(labels, minlength=record.classes).tolist())
            checks.append(_compare(f"{part} rows per class", found, counts))
    blocks = prepared.blocks(record.train_rows + record.test_rows)
    extremes = [(float(block.min()), float(block.max())) for block in blocks]
    low, high = min(low for low, _ in extremes), max(high for _, high in extremes)
    bounds = facts.value_range
    checks.append(
        FileCheck(
            what="values",
            found=f"{low:g} to {high:g}",
            expected="" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}",
            agrees=None if bounds is None else bool(bounds[0] <= low and high <= bounds[1]),
        )
    )
    if facts.channel_mean:  # scaled to 0..1, of all rows that the original trains on
        shift, factor = shift_and_factor(prepared.blocks(len(train_y)), facts.features, facts.standardise)
        for name, values, expected in (
            ("mean per channel", shift / 255, facts.channel_mean),
            ("deviation per channel", 1 / factor / 255, facts.channel_std),
        ):
            checks.append(_compare(name, tuple(round(value, 4) for value in values.tolist()), expected))
    return checks


def _hashes(source: DataSource, facts: Dataset) -> list[FileCheck]:
    downloads = {file.name: file for file in facts.downloads}
    checks = []
    for path in source.files:
        file = downloads.get(path.name)
        known = published_or_pinned(file, path) if file else None
        found = file_sha256(path)
        expected = (
            "" if known is None else "as published" if found == known else f"published {known}: packed differently"
        )
        # The same content packed differently has a different hash: that is no fault, the content is checked below.
        checks.append(
            FileCheck(what=f"sha256 {path.name}", found=found, expected=expected, agrees=found == known or None)
        )
    return checks


def _rows(facts: Dataset, held_out: bool, train: int, test: int) -> list[FileCheck]:
    if not facts.train_rows:
        return [FileCheck(what="rows", found=f"{train + test:,}")]
    if not facts.separate_test:
        found, whole = train + test, facts.train_rows + facts.test_rows
        expected = f"{whole:,}" + (": this is a piece" if found < whole else "")
        agrees = None if found < whole else found == whole
        return [FileCheck(what="rows", found=f"{found:,}", expected=expected, agrees=agrees)]
    checks = [_compare("train rows", (train,), (facts.train_rows,))]
    if held_out:
        return [*checks, FileCheck(what="test rows", found="no test files", expected=f"{facts.test_rows:,}")]
    return [*checks, _compare("test rows", (test,), (facts.test_rows,))]


def _compare(what: str, found: tuple[float, ...], expected: tuple[float, ...]) -> FileCheck:
    agrees = found == expected if expected else None
    words = (" ".join(f"{value:,}" for value in values) for values in (found, expected))
    return FileCheck(what=what, found=next(words), expected=next(words), agrees=agrees)
