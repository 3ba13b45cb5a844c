"""Useful time: what a rank does outside of synchronisation calls, and the efficiencies that it makes.

Names and definitions are those of the POP Centre of Excellence ("Standard Metrics for Performance Analysis",
https://co-design.pop-coe.eu/metrics).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.sync_calls import Calls
from harness.analysis.turn_blocks import BlockTimes
from harness.base.turns import turn_of_round
from harness.schema.record import RunRecord

Array = NDArray[np.float64]

PARALLEL = "parallel efficiency"
LOAD_BALANCE = "load balance"
COMMUNICATION = "communication efficiency"
SERIALISATION = "serialisation efficiency"
TRANSFER = "transfer efficiency"
COMPUTATION = "computation scaling"
GLOBAL = "global efficiency"


@dataclass(frozen=True, kw_only=True, slots=True)
class UsefulTime:
    """Seconds of an epoch that ranks spent outside of synchronisation calls.

    `mean` over ranks, `longest` of the rank with most, `ideal` the epoch on a network that takes no time. `whole` is
    the epoch that these are parts of. `excludes_contended`: they are of the rounds that no other work met; else they
    are of whole epochs, including interference.
    """

    whole: float
    mean: float
    longest: float
    ideal: float
    excludes_contended: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _TurnSteps:
    """Steps of a launch that were timed in turns: their `turn`, `useful` [steps, ranks] and all `seconds`, the mean
    over ranks.
    """

    turn: NDArray[np.int64]
    useful: Array
    seconds: Array

    @property
    def total_seconds(self) -> float:
        """How long all of them took; 0 where there are none."""
        return float(self.seconds.sum())

    def of_turns(self, turns: Collection[int]) -> "_TurnSteps":
        """Return those of `turns`, by their numbers."""
        chosen = np.isin(self.turn, list(turns))
        return _TurnSteps(turn=self.turn[chosen], useful=self.useful[chosen], seconds=self.seconds[chosen])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UsefulRanks:
    """The useful time of a launch, and the useful seconds of an epoch by rank."""

    time: UsefulTime
    by_rank: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchTimes:
    """Seconds of an epoch of a launch: excluding contended rounds where it has such, and as its epochs recorded it."""

    seconds: float
    recorded_seconds: float


def useful_ranks(
    epochs: Sequence[Calls], run: RunRecord, times: LaunchTimes, block: BlockTimes | None
) -> UsefulRanks | None:
    """Return the useful time of a launch: of the rounds of its `block` that no other work met where its steps tell it.

    They do not where their table has no turns, or no turn has two calls: then it is of whole epochs. None where other
    work met all rounds in which steps were recorded: such times say nothing of what is compared.
    """
    if block is None or not block.undisturbed:
        return useful_in_epochs(epochs, run, times, block)
    steps = _steps_in_turns(epochs)
    if steps.total_seconds <= 0:
        return useful_in_epochs(epochs, run, times, block)
    calm = steps.of_turns({turn_of_round(number) for number in block.calm_rounds})
    if calm.total_seconds <= 0:
        return None
    return _of_steps(calm, times.seconds)


def useful_in_epochs(
    epochs: Sequence[Calls], run: RunRecord, times: LaunchTimes, block: BlockTimes | None
) -> UsefulRanks:
    """Return the useful time of a launch in whole epochs: their medians, scaled to the launch's time in turns."""
    to_turns = times.seconds / times.recorded_seconds
    by_rank = [calls.between.sum(axis=0) for calls in epochs]
    ideal = [calls.between.max(axis=1).sum() for calls in epochs]
    time = UsefulTime(
        whole=to_turns * float(np.median([max(record.seconds) for record in run.epochs])),
        mean=to_turns * float(np.median([seconds.mean() for seconds in by_rank])),
        longest=to_turns * float(np.median([seconds.max() for seconds in by_rank])),
        ideal=to_turns * float(np.median(ideal)),
        # A single rank sums with nobody: all of its time is useful, and `seconds` are of undisturbed rounds.
        excludes_contended=block is not None and bool(block.undisturbed) and len(run.ranks) == 1,
    )
    return UsefulRanks(time=time, by_rank=to_turns * np.median(by_rank, axis=0))


def _of_steps(steps: _TurnSteps, seconds: float) -> UsefulRanks:
    """Return the useful time of a launch whose epoch takes so many `seconds` excluding contended rounds.

    What of it was useful is what was of the `steps`.
    """
    by_rank = seconds * (steps.useful.sum(axis=0) / steps.total_seconds)
    time = UsefulTime(
        whole=seconds,
        mean=float(by_rank.mean()),
        longest=float(by_rank.max()),
        ideal=seconds * (float(steps.useful.max(axis=1).sum()) / steps.total_seconds),
        excludes_contended=True,
    )
    return UsefulRanks(time=time, by_rank=by_rank)


def _steps_in_turns(epochs: Sequence[Calls]) -> _TurnSteps:
    """Return the steps from one call to the next within a turn.

    What a rank does before the first one and after the last one of an epoch is in no turn, and neither are the first
    steps of a turn.
    """
    turns = []
    useful = []
    lasted = []
    for calls in epochs:
        in_one_turn = 1 + np.flatnonzero((calls.turn[1:] == calls.turn[:-1]) & (calls.turn[1:] != 0))
        turns.append(calls.turn[in_one_turn])
        useful.append(calls.between[in_one_turn])
        lasted.append(calls.exit[in_one_turn] - calls.exit[in_one_turn - 1])
    return _TurnSteps(turn=np.concatenate(turns), useful=np.vstack(useful), seconds=np.vstack(lasted).mean(axis=1))


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
