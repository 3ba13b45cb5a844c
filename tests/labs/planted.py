"""Launches whose every cost is planted: records and tables of steps as a machine of known costs would write them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.schema.point import Point
from harness.schema.record import EpochRecord, RunRecord, encode
from harness.schema.sweep_folder import RUN_FILE, STEPS_FILE
from tests.labs.factories import make_point, make_ranks, make_run

BATCHES = 800  # of 64 rows each in an epoch, over all ranks; under weak scaling for each of them
Compute = Callable[[np.random.Generator, int], np.ndarray]


def write_planted(
    sweep: Path,
    ranks: int,
    repeat: int,
    compute: Compute,
    *,
    wire: float = 0.0,
    input_s: float = 0.0,
    epochs: int = 3,
    batch: Sequence[int] | None = None,
    point: Point | None = None,
    **changes: object,
) -> RunRecord:
    """Write a launch under `sweep`: in every step rank r computes `compute` [steps, ranks], then all sum for `wire`.

    Seconds. Every epoch begins with `input_s` of input on every rank. One rank, or SYNC=none, sums nothing.
    """
    point = point or make_point(ranks, repeat)
    sums = ranks > 1 and point.workload.sync != "none"
    rng, weak = np.random.default_rng((repeat, ranks)), point.scaling == "weak"
    steps, batches = (BATCHES, BATCHES * ranks) if weak else (BATCHES // ranks, BATCHES)
    rows, records = [], []
    for epoch in range(epochs):
        own = compute(rng, steps)
        entry, left = np.empty_like(own), np.empty_like(own)
        now = np.full(ranks, input_s)
        for step in range(steps):
            entry[step] = now + own[step]
            now = np.full(ranks, entry[step].max() + wire) if sums else entry[step]
            left[step] = now
        records.append(_record(epoch, entry, left, input_s))
        rows += [_columns(epoch, rank, entry[:, rank], left[:, rank], alone=not sums) for rank in range(ranks)]
    described = [
        replace(one, batch=own)
        for one, own in zip(make_ranks(ranks, 64 * batches, 64), batch or [64] * ranks, strict=True)
    ]
    whole = {"epochs": tuple(records), "ranks": tuple(described), "rows": 64 * batches}
    run = make_run(point, **(whole | changes))
    folder = sweep / point.folder
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_bytes(encode(run))
    pq.write_table(pa.concat_tables(rows), folder / STEPS_FILE)
    return run


def _record(epoch: int, entry: np.ndarray, left: np.ndarray, input_s: float) -> EpochRecord:
    steps, ranks = entry.shape
    skew = entry.max(axis=1, keepdims=True) - entry
    return EpochRecord(
        epoch=epoch,
        steps=steps,
        seconds=tuple(left[-1].tolist()),
        sync_seconds=tuple((left - entry).sum(axis=0).tolist()),
        input_seconds=(input_s,) * ranks,
        skew_seconds=tuple(skew.sum(axis=0).tolist()),
        wire_seconds=tuple((left - entry - skew).sum(axis=0).tolist()),
        train_loss=1.0,
        test_accuracy=0.9,
    )


def _columns(epoch: int, rank: int, entry: np.ndarray, left: np.ndarray, *, alone: bool) -> pa.Table:
    steps = len(entry)
    nothing = np.full(steps, np.nan)
    return pa.table(
        {
            "epoch": np.full(steps, epoch, np.int32),
            "step": np.arange(steps, dtype=np.int32),
            "rank": np.full(steps, rank, np.int32),
            "begin_s": np.zeros(steps),
            "entry_s": nothing if alone else entry,
            "exit_s": nothing if alone else left,
        }
    )
