"""Write a finished launch: one folder, whole or not at all."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.base.files import folder_atomic
from harness.schema.record import RUN_FILE, STEPS_FILE, RunRecord, encode

Columns = dict[str, npt.NDArray[Any]]


def call_steps(period: int | None, steps: int, calls: int) -> npt.NDArray[np.int32]:
    """Return the step after which each of an epoch's synchronisation calls was made, int32 [calls].

    `period` as in `SyncPolicy`; under gradients (period 0) every step has its call.
    """
    if period == 0:
        return np.arange(calls, dtype=np.int32)
    every = period or steps
    return np.minimum((np.arange(calls) + 1) * every, steps).astype(np.int32) - 1


def per_step(calls: npt.NDArray[np.float64], steps: int) -> npt.NDArray[np.float64]:
    """Return the seconds inside `calls` [calls, 2] of each of `steps` steps, which made equally many each."""
    inside: npt.NDArray[np.float64] = (calls[:, 1] - calls[:, 0]).reshape(steps, -1).sum(axis=1)
    return inside


def step_columns(
    *,
    rank: int,
    epoch: int,
    begin: float,
    losses: npt.NDArray[np.float32],
    calls: npt.NDArray[np.float64],
    period: int | None,
) -> Columns:
    """Return one rank's and epoch's rows of steps.parquet.

    `begin` is the epoch's start in seconds on the rank's clock; `losses` float32 [steps], the rank's summed row
    losses; `calls` float64 [calls, 2], entry and exit in seconds since the epoch's start. Steps without a call have
    NaN times.
    """
    steps = len(losses)
    times = np.full((steps, 2), np.nan)
    if len(calls):
        times[call_steps(period, steps, len(calls))] = calls
    return {
        "epoch": np.full(steps, epoch, np.int32),
        "step": np.arange(steps, dtype=np.int32),
        "rank": np.full(steps, rank, np.int32),
        "begin_s": np.full(steps, begin),
        "entry_s": times[:, 0],
        "exit_s": times[:, 1],
        "loss_sum": losses,
    }


def write_run(folder: Path, record: RunRecord, steps: list[Columns]) -> None:
    """Write run.json and steps.parquet into `folder`.

    Columns of steps.parquet: epoch, step, rank (int32); begin_s (the rank's start of the epoch), entry_s, exit_s
    (float64, seconds since rank 0 began the epoch, on rank 0's clock, NaN for a step without synchronisation), skew_s
    and wire_s (float64, the parts of exit_s - entry_s, `harness.train.collect`), loss_sum (float32); where batch
    normalisation is synchronised statistics_s (float64, seconds inside its calls), where images are in files
    input_s (float64, seconds waited for the batch). Where sums overlap with the backward pass, entry_s is when the rank
    has all its gradients.

    Raises:
        UserError: the folder cannot be written or the disk is full; nothing is left behind.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: np.concatenate([part[name] for part in steps]) for name in steps[0]})
    with folder_atomic(folder) as staging:
        pq.write_table(table, staging / STEPS_FILE, compression="zstd")
        (staging / RUN_FILE).write_bytes(encode(record))
