"""One launch as the known causes look at it: its record, its calls, and which parts of its epochs went where."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.analysis.launch_frames import EpochTimes, epoch_times
from harness.analysis.sync_calls import Calls
from harness.schema.record import RunRecord
from harness.why.waiting import skew_shares

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch. `run` has its epochs, `calls` are empty where none are recorded, `base` ran on the fewest ranks."""

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
        """The part of the epochs that the allreduces themselves take; unknown parts of synchronisation count."""
        return self.part(self.times.sync) - self.skew

    @cached_property
    def input(self) -> float:
        """The part of the epochs that goes into rows."""
        return self.part(self.times.input)

    @cached_property
    def skew_causes(self) -> dict[str, float]:
        """Which part of the epochs each of the SKEW_CAUSES takes."""
        shares = skew_shares(self.calls, [rank.batch for rank in self.run.ranks]) if self.entries.size else {}
        return {cause: share * self.skew for cause, share in shares.items()}

    @cached_property
    def entries(self) -> Array:
        """When every rank came to every call, [calls, ranks]."""
        return np.concatenate([np.empty((0, len(self.run.ranks))), *(epoch.entry for epoch in self.calls)])

    @property
    def hosts(self) -> set[str]:
        """The hosts of the ranks."""
        return {rank.host for rank in self.run.ranks}
