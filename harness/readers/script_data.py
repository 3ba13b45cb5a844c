"""`DataSet`: what a user's script reads its part of the rows with, by paper B's interface."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness import datasets
from harness.base.errors import UserError, unknown
from harness.base.setting_names import arguments_of_a_call
from harness.datasets.csv_form import CsvSettings
from harness.datasets.dataset import Array
from harness.datasets.shards import split_evenly
from harness.readers.peers import Peers, find_peers
from harness.readers.row_sources import TEST, TRAIN, VALIDATION, ArrayPair, CsvRows, ImageRows, RowSource, open_parts
from harness.schema.workload import CSV_DECIMALS, CSV_SEPARATORS, IMAGENET, Workload

# A rank's rows of the training, validation and test parts of a data set, as a script asked for them.

_log = logging.getLogger(__name__)

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
    separator: str = ""
    decimal: str = ""
    header: str = ""
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
        choices = {"separator": CSV_SEPARATORS, "decimal": CSV_DECIMALS, "header": ("yes", "no")}
        for field in ("label", *choices):
            value = getattr(self, field)
            if value not in (None, "") and self.name != "csv":
                raise UserError(f"{field} {value!r} is for CSV files: leave it out for {self.name.upper()}")
            if field in choices and value and value not in choices[field]:
                raise unknown(field, value, choices[field])


_MNIST_VALIDATION = 1 / 6  # the last 10,000 of 60,000, as in the original
_CLASSES = 10_000  # more different labels are not classes


class RankRows(NamedTuple):
    """This rank's rows of one part: float32 [rows, *features] and labels, float32 [rows, classes] if one-hot."""

    data: Array
    labels: Array


def load_rank_rows(request: DataSetRequest, peers: Peers) -> dict[str, RankRows]:
    """Read this rank's rows of every part that there is; all ranks together.

    Raises:
        UserError: a file is damaged, has no features and labels, or has fewer rows than there are ranks.
    """
    raw = {}
    classes: int | None = None
    with contextlib.ExitStack() as stack:
        reader = _RankReader(request, peers, stack)
        for part, source, ranges in reader.wanted():
            rows = sum(map(len, ranges))
            if rows and rows < peers.size:
                raise UserError(f"{request.name} has {rows} {part} rows for {peers.size} ranks: use fewer ranks")
            if rows:
                classes = source.classes
                raw[part] = source.read(reader.own_ranges(ranges))
    if TRAIN not in raw:
        raise UserError(f"{request.name} has no training rows: check {request.train_file}")
    labels = reader.labels({part: y for part, (_, y) in raw.items()}, classes)
    divisor = np.float32(request.normalize)
    return {
        part: RankRows(data=np.divide(x, divisor, dtype=np.float32, casting="unsafe"), labels=labels[part])
        for part, (x, _) in raw.items()
    }


@dataclass(frozen=True, slots=True)
class _RankReader:
    """Reads what a script has asked for, as one of `peers`; `stack` closes the files."""

    request: DataSetRequest
    peers: Peers
    stack: contextlib.ExitStack

    def wanted(self) -> Iterator[tuple[str, RowSource, Sequence[range]]]:
        """Yield every part with its source and the rows of the source's blocks that it is made of."""
        parts = self._open(self.request.train_file)
        for part, path in ((VALIDATION, self.request.validation_file), (TEST, self.request.test_file)):
            if path is not None:
                parts[part] = self._open(path)[TRAIN]
        default = _MNIST_VALIDATION if self.request.name == "mnist" else 0.0
        validated_part = self.request.valid_pct if self.request.valid_pct is not None else default
        # A file of its own for a part leaves nothing to hold out for it.
        training = parts[TRAIN]
        held_out = _cut(
            training.blocks,
            validated_part=0 if VALIDATION in parts else validated_part,
            tested_part=0 if TEST in parts else self.request.test_pct,
        )
        yield TRAIN, training, held_out[TRAIN]
        for part in (VALIDATION, TEST):
            if part in parts:
                yield part, parts[part], [range(rows) for rows in parts[part].blocks]
            else:
                yield part, training, held_out[part]

    def own_ranges(self, parts: Sequence[range]) -> list[range]:
        """Return this rank's rows of every block, of which the rows `parts` are wanted; over all ranks an exact cover.

        The next block starts with the next rank, so that no rank gets the larger part of all of them.
        """
        ranges = []
        for block, part in enumerate(parts):
            share = split_evenly(len(part), self.peers.size, (self.peers.rank + block) % self.peers.size)
            ranges.append(range(part.start + share.start, part.start + share.stop))
        return ranges

    def _open(self, path: str | Path | None) -> dict[str, RowSource]:
        if self.request.name in KNOWN:
            workload = Workload(
                dataset=self.request.name,
                model=datasets.dataset_info(self.request.name).default_model,
                global_batch=1,
                image_size=self.request.image_size,
            )
            prepared = datasets.prepare(
                datasets.locate(workload, Path(self.request.data_dir) if self.request.data_dir else None)
            )
            if prepared.record.note and self.peers.rank == 0:
                _log.warning("%s: %s", self.request.name, prepared.record.note)
            parts = {TRAIN: (prepared.train_x, prepared.train_y), TEST: (prepared.test_x, prepared.test_y)}
            classes = prepared.record.classes
            if prepared.files is None:
                return {part: ArrayPair(x, y, classes) for part, (x, y) in parts.items()}
            size = prepared.record.features[0]
            return {part: ImageRows(prepared.files, x, y, size, classes) for part, (x, y) in parts.items()}
        assert path is not None
        if self.request.name == "csv":
            request = self.request
            written = CsvSettings(separator=request.separator, decimal=request.decimal, header=request.header)
            return {TRAIN: CsvRows(Path(path), request.label, self.peers, written)}
        return self.stack.enter_context(open_parts(Path(path), self.request.name))

    def labels(self, labels: dict[str, Array], classes: int | None) -> dict[str, Array]:
        """Return the labels as the script wants them; without a number of `classes` these are all ranks' values."""
        labels = {part: y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for part, y in labels.items()}
        if not self.request.one_hot or any(y.ndim > 1 for y in labels.values()):
            return {part: y.astype(np.float32 if y.dtype.kind == "f" else np.int32) for part, y in labels.items()}
        if classes is not None:
            values = np.arange(classes)
        else:
            rank_values = np.unique(np.concatenate(list(labels.values())))
            values = np.unique(np.concatenate(self.peers.gather(rank_values[: _CLASSES + 1])))
            if len(values) > _CLASSES or np.any(values != np.round(values)):
                file = self.request.train_file
                raise UserError(f"the labels of '{file}' are not whole numbers, one per class: pass one_hot=False")
        identity = np.eye(len(values), dtype=np.float32)
        return {part: identity[np.searchsorted(values, y)] for part, y in labels.items()}


def _cut(blocks: Sequence[int], *, validated_part: float, tested_part: float) -> dict[str, list[range]]:
    """Return the rows of every block that train, validate and test: the last ones are held out, the very last test."""
    ranges: dict[str, list[range]] = {TRAIN: [], VALIDATION: [], TEST: []}
    for rows in blocks:
        tested = round(rows * tested_part)
        validated = round(rows * validated_part)
        edge = rows - tested - validated
        ranges[TRAIN].append(range(0, edge))
        ranges[VALIDATION].append(range(edge, edge + validated))
        ranges[TEST].append(range(edge + validated, rows))
    return ranges


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

        `more`: validation_file, test_file, valid_pct, test_pct, one_hot, data_dir, image_size; of CSV text label (a
        column), separator, decimal and header, as the settings of these names.

        Raises:
            UserError: an argument is wrong, or a file is missing, damaged or too short.
        """
        fields = [field.name for field in dataclasses.fields(DataSetRequest)]
        for name in more:
            if name not in fields:
                raise unknown("argument of DataSet", name, fields)
        peers = find_peers()
        request = DataSetRequest(name=data_name.lower(), normalize=normalize, **more)
        with arguments_of_a_call():
            parts = load_rank_rows(request, peers)
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
        rank_rows = self._parts[part]
        begin = self._next[part]
        self._next[part] = (begin + size) % len(rank_rows.data)
        rows = np.arange(begin, begin + size) % len(rank_rows.data)
        return rank_rows.data[rows], rank_rows.labels[rows]
