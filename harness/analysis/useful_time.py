"""Useful time: what a rank does outside of synchronisation calls, and the efficiencies that it makes.

Names and definitions are those of the POP Centre of Excellence ("Standard Metrics for Performance Analysis",
https://co-design.pop-coe.eu/metrics).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UsefulShares:
    """What of the time of a launch was useful, as shares of its time: of each rank, and on an ideal network.

    Shares of several turns are of their total times.
    """

    by_rank: Array
    ideal: float


def useful_in_turns(epochs: Sequence[Calls], turns: Collection[int]) -> UsefulShares | None:
    """Return the useful shares of the steps that were timed in `turns`, by their numbers; None where there are none.

    Such a step is from one call to the next within a turn: what a rank does before the first one and after the last
    one of an epoch is in no turn, and neither are the first steps of a turn.
    """
    useful = []
    lasted = []
    for calls in epochs:
        previous = calls.turn[:-1]
        counted = 1 + np.flatnonzero((calls.turn[1:] == previous) & np.isin(previous, list(turns)))
        useful.append(calls.between[counted])
        lasted.append(calls.exit[counted] - calls.exit[counted - 1])
    step_useful = np.vstack(useful)
    whole = float(np.vstack(lasted).mean(axis=1).sum())
    if whole <= 0:
        return None
    return UsefulShares(by_rank=step_useful.sum(axis=0) / whole, ideal=float(step_useful.max(axis=1).sum()) / whole)


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
