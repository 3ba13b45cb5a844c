"""Did it get worse? A verdict for each point and for the curve, and for all of it together.

Only versions that trained in turns are judged (`regression.variant_turns`). Launches beside each other are compared by
the ratio of their medians.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.analysis import units
from harness.analysis.comparison import sessions
from harness.analysis.confidence_intervals import Interval, ratio_interval
from harness.regression.measurement import CostSample, MeasuredLaunch, Measurement, samples
from harness.schema.layout import Layout

PASS = "pass"
SMALL = "small slowdown"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"
BETTER = "better"
WORSE = "worse"
ALIKE = "alike"
OPEN = "open"

PRACTICAL = 0.03  # part of the speed or efficiency: the least change that makes a difference to anyone


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """One quantity at one layout (None: the curve): what it was (the reference) and what it is (the current one).

    `slowdown` above 0 is worse; a fraction of speed or efficiency, or of the reference's epoch. `interval` is on the
    same scale, None where launches lack. `values` and `launches` (in turns: blocks) are the reference's and the current
    ones. Only rows that `decide` can fail a check. `apart`: they were launched in different sessions, which may differ
    by more than the code.
    """

    quantity: str
    layout: Layout | None
    decides: bool
    values: tuple[float, float]
    launches: tuple[int, int]
    slowdown: float
    interval: Interval | None
    verdict: str = ""
    apart: bool = False

    @property
    def ratio(self) -> float:
        """How many times as good the current value is: above 1 is faster, more efficient."""
        return 1 - self.slowdown

    @property
    def ratio_interval(self) -> Interval | None:
        """The interval of `ratio`."""
        return Interval(low=1 - self.interval.high, high=1 - self.interval.low) if self.interval else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsSpent:
    """What a check in turns took. `epochs` are those of its launches where they are more than the study's, else 0."""

    blocks: int
    rounds: int
    minutes: float
    epochs: int = 0

    def __str__(self) -> str:
        blocks = units.plural(self.blocks, "block")
        rounds = units.plural(self.rounds, "round")
        longer = f", launches of {self.epochs} epochs" if self.epochs else ""
        return f"{blocks}, {rounds}, {self.minutes:.1f} minutes{longer}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A reference, what is compared with it, and the verdicts; a slowdown below `practical` makes no difference.

    `spent` is None where launches were compared that did not train in turns.
    """

    reference: Measurement
    current: Measurement
    practical: float
    rows: tuple[ComparedRow, ...]
    spent: TurnsSpent | None = None

    @property
    def unmeasured(self) -> tuple[Layout, ...]:
        """The reference's layouts that have no launch now."""
        return tuple(layout for layout in self.reference.layouts if not self.current.of(layout))

    @property
    def deciding(self) -> tuple[ComparedRow, ...]:
        """The rows that can fail the check."""
        return tuple(row for row in self.rows if row.decides)

    @property
    def verdict(self) -> str:
        """The worst of the deciding rows: a regression first, then what is open, a small slowdown, an improvement."""
        verdicts = {row.verdict for row in self.deciding}
        if REGRESSION in verdicts:
            return REGRESSION
        if INCONCLUSIVE in verdicts or self.unmeasured or not verdicts:
            return INCONCLUSIVE
        return next((verdict for verdict in (SMALL, IMPROVEMENT) if verdict in verdicts), PASS)


def compare_measurements(
    first: Measurement, second: Measurement, *, practical: float = PRACTICAL
) -> tuple[ComparedRow, ...]:
    """Return time and efficiency of `second` over `first` at every layout that both launched, each row judged alone.

    They may differ in anything but the rows of an epoch: layouts where these differ are left out. A verdict is
    ``better`` or ``worse`` where the interval leaves out 0 and the ratio is of a `practical` size, ``alike`` where the
    whole interval is within it, else ``open``, as it is for launches of different sessions.
    """
    shared = [layout for layout in first.layouts if _are_same_rows(first.of(layout), second.of(layout))]
    if not shared:
        return ()
    launches = (*first.launches, *second.launches)
    apart = len(set(sessions([(launch.started, launch.ended) for launch in launches]))) > 1
    rows = []
    for before in samples(first, shared):
        for now in samples(second, shared):
            if before.key == now.key:
                row = _row_of_launches(before, now, apart=apart)
                rows.append(replace(row, verdict=_meaning(row, practical)))
    return tuple(rows)


def _are_same_rows(first: Sequence[MeasuredLaunch], second: Sequence[MeasuredLaunch]) -> bool:
    """Say whether launches of two measurements, at least one of each, trained as many rows in an epoch."""
    return bool(second) and math.isclose(first[0].rows, second[0].rows, rel_tol=0.01)


def _row_of_launches(before: CostSample, now: CostSample, *, apart: bool) -> ComparedRow:
    """Return the ratio of the medians of two samples, with its interval where they are of one session."""
    speed = np.exp(-now.costs)
    speed_before = np.exp(-before.costs)
    ratio = float(np.median(speed) / np.median(speed_before))
    interval = None if apart else ratio_interval(speed, speed_before)
    return ComparedRow(
        quantity=before.quantity,
        layout=before.layout,
        decides=True,
        values=(before.value, now.value),
        launches=(len(before.costs), len(now.costs)),
        slowdown=1 - ratio,
        interval=Interval(low=1 - interval.high, high=1 - interval.low) if interval else None,
        apart=apart,
    )


def _meaning(row: ComparedRow, practical: float) -> str:
    interval = row.ratio_interval
    if interval is None:
        return OPEN
    low = 1 / (1 + practical)
    high = 1 + practical
    if low <= interval.low and interval.high <= high:
        return ALIKE
    if interval.low > 1 and row.ratio > high:
        return BETTER
    if interval.high < 1 and row.ratio < low:
        return WORSE
    return OPEN
