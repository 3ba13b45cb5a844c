"""What a diagnosis looks at: one launch with its single calls and what it is compared with, or one that failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.analysis.calls import Calls
from harness.analysis.causes import skew_shares
from harness.analysis.frames import EpochTimes, epoch_times
from harness.schema.record import RunRecord

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """What shows a cause in one launch: a sentence, and the part of an epoch that it costs, None where that is not
    time or cannot be told. `who` keeps findings of different ranks apart."""

    text: str
    cost: float | None = None
    who: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch. `run` has its epochs; `calls` are empty where none are recorded; `base` ran on fewest ranks."""

    run: RunRecord
    calls: Sequence[Calls] = ()
    base: RunRecord | None = None

    @cached_property
    def times(self) -> EpochTimes:
        """The times of the epochs."""
        return epoch_times(self.run)

    @cached_property
    def total(self) -> float:
        """Seconds of all epochs, the slowest rank of each."""
        return float(self.times.seconds.max(axis=1).sum())

    def part(self, seconds: Array) -> float:
        """Return the part of the epochs that `seconds` [epochs, ranks] take, mean over ranks."""
        return float(seconds.mean(axis=1).sum() / self.total)

    @cached_property
    def skew(self) -> float:
        """The part of the epochs that ranks wait for the last one."""
        return self.part(self.times.skew)

    @cached_property
    def wire(self) -> float:
        """The part of the epochs that the sums themselves take; unknown parts of synchronisation count."""
        return self.part(self.times.sync) - self.skew

    @cached_property
    def input(self) -> float:
        """The part of the epochs that goes into rows."""
        return self.part(self.times.input)

    @cached_property
    def skew_causes(self) -> dict[str, float]:
        """Which part of the epochs each of `causes.SKEW_CAUSES` takes."""
        shares = skew_shares(self.calls, [rank.batch for rank in self.run.ranks]) if self.entries.size else {}
        return {cause: share * self.skew for cause, share in shares.items()}

    @cached_property
    def entries(self) -> Array:
        """When every rank came to every call, [calls, ranks]."""
        return np.concatenate([np.empty((0, len(self.run.ranks))), *(one.entry for one in self.calls)])

    @property
    def hosts(self) -> set[str]:
        """The hosts of the ranks."""
        return {rank.host for rank in self.run.ranks}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause that was found: its name, evidence and fix, in `launches` of `of` that were looked at.

    `cost` is the part of an epoch, the greatest of the launches.
    """

    cause: str
    evidence: str
    fix: str
    cost: float | None
    launches: int
    of: int
