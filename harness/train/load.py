"""Give every rank its rows: read by itself, or sent by rank 0."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness import datasets
from harness.base.errors import UserError
from harness.datasets.shards import Shards, split_evenly
from harness.schema.point import Point
from harness.schema.record import DataRecord

if TYPE_CHECKING:
    from harness.comm.world import World


Array = npt.NDArray[Any]

_MESSAGE_BYTES = 64 * 2**20
_LEAST_TEST_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class RankData:
    """One rank's rows. Images stay uint8 [rows, *features]; other features are float32, already standardised.

    `shift` and `factor` turn uint8 rows x into the network's input (x - shift) * factor; None where done.
    Labels are int32 [rows]. `load_s` and `distribute_s` are seconds. Where images stay in files, `files` are the
    paths and `train_x` and `test_x` the places of the images in them (`Prepared`).
    """

    record: DataRecord
    shards: Shards
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    shift: Array | None
    factor: Array | None
    load_s: float
    distribute_s: float
    files: npt.NDArray[np.bytes_] | None = None


def load(world: "World", point: Point, data_dir: Path | None) -> RankData:
    """Prepare the data once and return this rank's part of it.

    Raises:
        SharedError: the data is absent or damaged, or has fewer rows than asked for.
    """
    begin = time.perf_counter()
    source = world.on_root(lambda: _prepare_once(point, data_dir))
    prepared = datasets.prepare(source)
    shards = _shards(point, prepared.record.train_rows)
    record = _with_fewer_test_rows(prepared, point.workload.samples)
    test = split_evenly(record.test_rows, world.size, world.rank)
    scatter = point.workload.distribution == "scatter" and world.size > 1
    if scatter and world.rank:
        train_x, train_y = prepared.train_x[:0], prepared.train_y[:0]
    else:
        own = shards.own_rows(world.rank)
        train_x, train_y = (_read(array, own) for array in (prepared.train_x, prepared.train_y))
    test_x, test_y = (_read(array, test) for array in (prepared.test_x, prepared.test_y))
    loaded = time.perf_counter()
    if scatter:
        train_x = _scatter(world, shards, prepared.train_x, train_x)
        train_y = _scatter(world, shards, prepared.train_y, train_y)
    distributed = time.perf_counter()
    images = train_x.dtype == np.uint8 or prepared.files is not None
    if not images:
        _standardise(train_x, prepared.shift, prepared.factor)
        _standardise(test_x, prepared.shift, prepared.factor)
    return RankData(
        record=record,
        shards=shards,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        shift=prepared.shift if images else None,
        factor=prepared.factor if images else None,
        load_s=loaded - begin + (time.perf_counter() - distributed),
        distribute_s=distributed - loaded,
        files=prepared.files,
    )


def _with_fewer_test_rows(prepared: datasets.Prepared, samples: int | None) -> DataRecord:
    """Return the record; where images are decoded from files and few are trained on, few are tested on."""
    record = prepared.record
    if prepared.files is None or samples is None:
        return record
    return replace(record, test_rows=min(record.test_rows, max(_LEAST_TEST_ROWS, samples // 5)))


def _prepare_once(point: Point, data_dir: Path | None) -> datasets.Source:
    source = datasets.locate(point.workload, data_dir)
    if point.data_id and source.data_id != point.data_id:
        raise UserError(f"the {source.name} data has changed since the sweep was planned: run the sweep again")
    prepared = datasets.prepare(source)
    _shards(point, prepared.record.train_rows)
    return source


def _shards(point: Point, available: int) -> Shards:
    workload, layout = point.workload, point.layout
    rows = workload.samples or available
    if rows > available:
        raise UserError(f"SAMPLES={rows} is more than the {available} training rows of {workload.dataset}")
    shards = Shards(rows=rows, batch=workload.batch(layout.ranks), shares=layout.shares or (1,) * layout.ranks)
    if workload.drop_remainder and not shards.full_steps:
        raise UserError(
            f"SAMPLES={rows} does not fill one global batch of {shards.batch} and partial batches are dropped: "
            "use more samples, a smaller batch or --no-drop-remainder"
        )
    return shards


def _read(array: Array, rows: range) -> Array:
    return np.array(array[rows.start : rows.stop])  # a copy: pages of the memory map are touched here, not in training


def _standardise(rows: Array, shift: Array, factor: Array) -> None:
    rows -= shift
    rows *= factor


def _scatter(world: "World", shards: Shards, source: Array, own: Array) -> Array:
    """Send every rank its rows of `source` from rank 0, point to point (paper A, section 3.3.1)."""
    if world.rank == 0:
        for rank in range(1, world.size):
            rows = shards.own_rows(rank)
            for block in _blocks(source, rows):
                world.comm.Send(np.ascontiguousarray(source[block.start : block.stop]), dest=rank)
        return own
    rows = shards.own_rows(world.rank)
    received = np.empty((len(rows), *source.shape[1:]), dtype=source.dtype)
    for block in _blocks(source, rows):
        world.comm.Recv(received[block.start - rows.start : block.stop - rows.start], source=0)
    return received


def _blocks(source: Array, rows: range) -> list[range]:
    size = max(1, _MESSAGE_BYTES // max(1, source[:1].nbytes))
    return [range(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]
