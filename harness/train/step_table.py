"""The table of steps (steps.parquet): every step's times and loss on every rank, on one clock.

A rank's wait for others is its skew, the rest of a call the wire.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.comm.host_clock import HostClock
from harness.schema.record import (
    EpochRecord,
)

Columns = dict[str, npt.NDArray[Any]]


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

    `begin` is the epoch's start in seconds on the rank's clock. `losses`, float32 [steps], are the rank's summed row
    losses. `calls`, float64 [calls, 2], are entry and exit in seconds since the epoch's start. `period` is that of
    `SyncPolicy`: under gradients (0) every step has its call. Of several sums in one synchronisation the call is as
    long as all, up to the end of the last: what is computed between them is computation. Steps without a call have NaN
    times.
    """
    steps = len(losses)
    times = np.full((steps, 2), np.nan)
    if len(calls):
        due = steps if period == 0 else -(-steps // (period or steps))
        if len(calls) > due:
            ends = calls.reshape(due, -1, 2)[:, -1, 1]
            calls = np.column_stack([ends - per_step(calls, due), ends])
        numbers = np.arange(len(calls))
        times[numbers if period == 0 else np.minimum((numbers + 1) * (period or steps), steps) - 1] = calls
    return {
        "epoch": np.full(steps, epoch, np.int32),
        "step": np.arange(steps, dtype=np.int32),
        "rank": np.full(steps, rank, np.int32),
        "begin_s": np.full(steps, begin),
        "entry_s": times[:, 0],
        "exit_s": times[:, 1],
        "loss_sum": losses,
    }


def on_one_clock(steps: Sequence[Sequence[Columns]], clocks: Sequence[HostClock]) -> list[list[Columns]]:
    """Return the columns of all ranks, [rank][epoch], with times on rank 0's clock and the parts of every call.

    Taken: begin_s (the rank's clock), entry_s and exit_s (since begin_s). Returned: all three in seconds since rank 0
    began the epoch, and per step skew_s = the last rank's entry less the own, wire_s = exit less the last rank's
    entry. Both are NaN for a step without a call; together they are exactly exit_s - entry_s.
    """
    epochs = len(steps[0])
    converted: list[list[Columns]] = [[] for _ in steps]
    for epoch in range(epochs):
        zero = float(clocks[0].common(steps[0][epoch]["begin_s"][:1]).sum())  # of one value, or of none without steps
        parts = [_shifted(columns[epoch], clock, zero) for columns, clock in zip(steps, clocks, strict=True)]
        last = np.max([part["entry_s"] for part in parts], axis=0)
        for rank, part in enumerate(parts):
            converted[rank].append(part | {"skew_s": last - part["entry_s"], "wire_s": part["exit_s"] - last})
    return converted


def _shifted(columns: Columns, clock: HostClock, zero: float) -> Columns:
    begin = columns["begin_s"]
    return columns | {
        "begin_s": clock.common(begin) - zero,
        "entry_s": clock.common(begin + columns["entry_s"]) - zero,
        "exit_s": clock.common(begin + columns["exit_s"]) - zero,
    }


def with_parts(epochs: Sequence[EpochRecord], steps: Sequence[Sequence[Columns]]) -> tuple[EpochRecord, ...]:
    """Return `epochs` with the sums of every rank's skew and wire; `steps` [rank][epoch] from `on_one_clock`.

    Epochs without columns stay as they are: those in which a rank failed.
    """
    places = {int(columns["epoch"][0]): place for place, columns in enumerate(steps[0]) if len(columns["epoch"])}
    records = []
    for record in epochs:
        if record.epoch in places:
            columns = [rank_steps[places[record.epoch]] for rank_steps in steps]
            skew_s = tuple(float(np.nansum(rank_columns["skew_s"])) for rank_columns in columns)
            wire_s = tuple(float(np.nansum(rank_columns["wire_s"])) for rank_columns in columns)
            record = replace(record, skew_seconds=skew_s, wire_seconds=wire_s)
        records.append(record)
    return tuple(records)
