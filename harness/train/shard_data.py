"""Give every rank its rows: read by itself, or sent by rank 0; images from their files, batch by batch."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import datasets
from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.comm.world import World
from harness.datasets.shards import Shards, split_evenly
from harness.schema.data_record import DataRecord
from harness.schema.point import Point

Array = npt.NDArray[Any]

_MESSAGE_BYTES = 64 * 2**20
_LEAST_TEST_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class RankData:
    """One rank's rows. Images stay uint8 [rows, *features]; other features are float32, already standardised.

    `shift` and `factor` turn uint8 rows x into the network's input (x - shift) * factor; None where done.
    Labels are int32 [rows]. `load_s` and `distribute_s` are seconds; where rank 0 sends the rows, reading them is
    part of the latter. Where images stay in files, `files` are the paths and `train_x` and `test_x` the places of
    the images in them (`Prepared`).
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


def load_shard(world: World, point: Point, data_dir: Path | None) -> RankData:
    """Prepare the data once and return this rank's part of it; `world` may have fewer ranks than the point's layout.

    Raises:
        SharedError: the data is absent or damaged, or has fewer rows than asked for.
    """
    begin = time.perf_counter()
    scatter = point.workload.distribution == "scatter" and world.size > 1
    source, head = world.on_root(lambda: _prepare_once(point, data_dir))
    prepared = head if scatter and world.rank else datasets.prepare(source)
    shards = _shards(point, prepared.record.train_rows, world.size)
    record, samples = prepared.record, point.workload.samples
    if prepared.files is not None and samples is not None:
        # Where images are decoded, few are tested on as on few trained.
        record = replace(record, test_rows=min(record.test_rows, max(_LEAST_TEST_ROWS, samples // 5)))
    train = [shards.own_rows(rank) for rank in range(world.size)]
    test = [split_evenly(record.test_rows, world.size, rank) for rank in range(world.size)]
    opened = time.perf_counter()
    train_x, train_y, test_x, test_y = (
        _hand_out(world, array, rows) if scatter else _read(array, rows[world.rank])
        for arrays, rows in (((prepared.train_x, prepared.train_y), train), ((prepared.test_x, prepared.test_y), test))
        for array in arrays
    )
    distribute_s = time.perf_counter() - opened if scatter else 0.0
    images = train_x.dtype == np.uint8 or prepared.files is not None
    for part in () if images else (train_x, test_x):
        part -= prepared.shift
        part *= prepared.factor
    return RankData(
        record=record,
        shards=shards,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        shift=prepared.shift if images else None,
        factor=prepared.factor if images else None,
        load_s=time.perf_counter() - begin - distribute_s,
        distribute_s=distribute_s,
        files=prepared.files,
    )


def _prepare_once(point: Point, data_dir: Path | None) -> tuple[datasets.DataSource, datasets.Prepared]:
    """Return the source, and what is prepared of it with no rows: only their shapes and types are left."""
    source = datasets.locate(point.workload, data_dir, point.data_id)
    prepared = datasets.prepare(source)
    _shards(point, prepared.record.train_rows, point.layout.ranks)
    train_x, train_y, test_x, test_y = (
        np.empty((0, *array.shape[1:]), array.dtype)
        for array in (prepared.train_x, prepared.train_y, prepared.test_x, prepared.test_y)
    )
    head = replace(prepared, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, files=None)
    return source, head


def _shards(point: Point, available: int, ranks: int) -> Shards:
    workload = point.workload
    rows = workload.samples or available
    if rows > available:
        raise UserError(f"{setting('samples', rows)} is more than the {available} training rows of {workload.dataset}")
    shards = Shards(rows=rows, batch=workload.batch(point.layout.ranks), ranks=ranks)
    if workload.drop_remainder and not shards.full_steps:
        raise UserError(
            f"{setting('samples', rows)} does not fill one global batch of {shards.batch} and partial batches are "
            f"dropped: use more samples, a smaller batch or {setting('no_drop_remainder', True)}"
        )
    return shards


def _read(array: Array, rows: range) -> Array:
    return np.array(array[rows.start : rows.stop])  # a copy: pages of the memory map are touched here, not in training


def _hand_out(world: World, array: Array, parts: Sequence[range]) -> Array:
    """Return this rank's part of `array`, whose rows only rank 0 has: it sends them point to point.

    So the paper does it (paper A, section 3.3.1). On the other ranks `array` has no rows, only their shape and type.
    """
    own_rows = parts[world.rank]
    if world.rank:
        received = np.empty((len(own_rows), *array.shape[1:]), dtype=array.dtype)
        for message in _messages(array, own_rows):
            world.comm.Recv(received[message.start - own_rows.start : message.stop - own_rows.start], source=0)
        return received
    for rank, rows in enumerate(parts[1:], start=1):
        for message in _messages(array, rows):
            world.comm.Send(np.ascontiguousarray(array[message.start : message.stop]), dest=rank)
    return _read(array, own_rows)


def _messages(source: Array, rows: range) -> list[range]:
    """Return the rows of each message in which `rows` of `source` are sent."""
    row_bytes = source.dtype.itemsize * math.prod(source.shape[1:])
    size = max(1, _MESSAGE_BYTES // max(1, row_bytes))
    return [range(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]
