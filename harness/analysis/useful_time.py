"""Useful time: what a rank does outside of synchronisation calls, and the efficiencies that it makes.

Names and definitions are those of the POP Centre of Excellence ("Standard Metrics for Performance Analysis",
https://co-design.pop-coe.eu/metrics).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from harness.analysis.sync_calls import Calls
from harness.schema.record import RunRecord

Array = NDArray[np.float64]

PARALLEL = "parallel efficiency"
LOAD_BALANCE = "load balance"
COMMUNICATION = "communication efficiency"
SERIALISATION = "serialisation efficiency"
TRANSFER = "transfer efficiency"
COMPUTATION = "computation scaling"
GLOBAL = "global efficiency"

USEFUL_COLUMNS = ("seconds", "useful_seconds", "longest_seconds", "ideal_seconds")


def useful_times(epochs: Iterable[Calls], run: RunRecord, to_turns: float) -> dict[str, float]:
    """Return the USEFUL_COLUMNS; on an ideal network each call ends when the last rank comes, computation unchanged.

    Medians over the launch's epochs, in seconds of one. `to_turns` scales what was recorded to the launch's time in
    turns.
    """
    useful = [calls.between.sum(axis=0) for calls in epochs]
    values = (
        [max(record.seconds) for record in run.epochs],
        [by_rank.mean() for by_rank in useful],
        [by_rank.max() for by_rank in useful],
        [calls.between.max(axis=1).sum() for calls in epochs],
    )
    return {name: to_turns * float(np.median(value)) for name, value in zip(USEFUL_COLUMNS, values, strict=True)}


def useful_by_rank(epochs: Iterable[Calls]) -> Array:
    """Return the useful seconds of an epoch of every rank, medians over the launch's epochs."""
    median: Array = np.median([calls.between.sum(axis=0) for calls in epochs], axis=0)
    return median


def efficiency_factors(times: Array, base: Array | None) -> dict[str, Array]:
    """Return the efficiencies of `times`: rows seconds, useful, longest, ideal, and useful core-seconds of a row.

    Without the `base`'s times there is no computation scaling, and no global efficiency.
    """
    seconds, useful, longest, ideal, row_core_seconds = times
    factors: dict[str, Array] = {
        PARALLEL: useful / seconds,
        LOAD_BALANCE: useful / longest,
        COMMUNICATION: longest / seconds,
        SERIALISATION: longest / ideal,
        TRANSFER: ideal / seconds,
    }
    if base is not None:
        factors[COMPUTATION] = base[4] / row_core_seconds
        factors[GLOBAL] = factors[PARALLEL] * factors[COMPUTATION]
    return factors
