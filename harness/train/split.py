"""What each rank's synchronisation calls were: waiting for the last rank (skew), and the sum itself (wire)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.comm.clocks import Clock
from harness.spec.record import EpochRecord
from harness.train.record import Columns


def on_one_clock(steps: Sequence[Sequence[Columns]], clocks: Sequence[Clock]) -> list[list[Columns]]:
    """Return the columns of all ranks, [rank][epoch], with times on rank 0's clock and the parts of every call.

    Taken: begin_s (the rank's clock), entry_s and exit_s (since begin_s). Returned: all three in seconds since rank 0
    began the epoch, and per step skew_s = the last rank's entry less the own, wire_s = exit less the last rank's
    entry. Both are NaN for a step without a call; together they are exactly exit_s - entry_s.
    """
    epochs = len(steps[0])
    converted: list[list[Columns]] = [[] for _ in steps]
    for epoch in range(epochs):
        zero = float(clocks[0].common(steps[0][epoch]["begin_s"][:1])[0])
        parts = [_shifted(own[epoch], clock, zero) for own, clock in zip(steps, clocks, strict=True)]
        last = np.max([part["entry_s"] for part in parts], axis=0)
        for rank, part in enumerate(parts):
            converted[rank].append(part | {"skew_s": last - part["entry_s"], "wire_s": part["exit_s"] - last})
    return converted


def _shifted(columns: Columns, clock: Clock, zero: float) -> Columns:
    begin = columns["begin_s"]
    return columns | {
        "begin_s": clock.common(begin) - zero,
        "entry_s": clock.common(begin + columns["entry_s"]) - zero,
        "exit_s": clock.common(begin + columns["exit_s"]) - zero,
    }


def with_parts(epochs: Sequence[EpochRecord], steps: Sequence[Sequence[Columns]]) -> tuple[EpochRecord, ...]:
    """Return `epochs` with the sums of every rank's skew and wire; `steps` [rank][epoch] from `on_one_clock`."""
    return tuple(
        replace(
            record,
            skew_seconds=tuple(float(np.nansum(own[number]["skew_s"])) for own in steps),
            wire_seconds=tuple(float(np.nansum(own[number]["wire_s"])) for own in steps),
        )
        for number, record in enumerate(epochs)
    )
