"""Did it get worse? A verdict for each point and for the curve, and for all of it together; comparisons without one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isclose

from harness.analysis.numbers import plural
from harness.analysis.stats import sessions
from harness.regression.quantities import RELATIVE, CostSample, samples
from harness.regression.significance import (
    IMPROVEMENT,
    INCONCLUSIVE,
    PASS,
    PRACTICAL,
    REGRESSION,
    SMALL,
    ComparedRow,
    row_of_launches,
)
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

BETTER = "better"
WORSE = "worse"
ALIKE = "alike"
OPEN = "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsSpent:
    """What a check in turns took. `epochs` are those of its launches where they are more than the study's, else 0."""

    blocks: int
    rounds: int
    minutes: float
    epochs: int = 0

    def __str__(self) -> str:
        blocks, rounds = plural(self.blocks, "block"), plural(self.rounds, "round")
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
    def apart(self) -> bool:
        """Whether the two were launched in different sessions, which cannot tell the code from the machine."""
        return any(row.apart for row in self.rows)

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
        return next((one for one in (SMALL, IMPROVEMENT) if one in verdicts), PASS)


def check_launches(reference: Measurement, current: Measurement, *, practical: float = PRACTICAL) -> Check:
    """Return the verdicts on `current` against `reference`, both of the same workload and machine.

    Launches of one session are judged; those of different ones cannot tell. What drifts within the session counts as
    launches that scatter.
    """
    shared = [layout for layout in reference.layouts if current.of(layout)]
    pairs = _pairs(reference, current, shared) if shared else []
    comparisons, apart = sum(one.decides for one, _ in pairs), _apart(reference, current)
    rows = tuple(
        row_of_launches(before, now, comparisons=comparisons, practical=practical, apart=apart) for before, now in pairs
    )
    return Check(reference=reference, current=current, practical=practical, rows=rows)


def compare_measurements(
    first: Measurement, other: Measurement, *, practical: float = PRACTICAL
) -> tuple[ComparedRow, ...]:
    """Return time and efficiency of `other` over `first` at every layout that both launched, each row judged alone.

    They may differ in anything but the rows of an epoch: layouts where these differ are left out. A verdict is
    ``better`` or ``worse`` where the interval leaves out 0 and the ratio is of a `practical` size, ``alike`` where the
    whole interval is within it, else ``open``, as it is for launches of different sessions.
    """
    shared = [
        layout
        for layout in first.layouts
        if other.of(layout) and isclose(first.of(layout)[0].rows, other.of(layout)[0].rows, rel_tol=0.01)
    ]
    apart = _apart(first, other)
    rows = []
    for before, now in _pairs(first, other, shared) if shared else []:
        if before.quantity in RELATIVE:
            row = row_of_launches(before, now, practical=practical, apart=apart)
            rows.append(replace(row, verdict=_meaning(row, practical)))
    return tuple(rows)


def _apart(one: Measurement, other: Measurement) -> bool:
    """Return whether the launches of both are of more than one session."""
    return len(set(sessions([(launch.started, launch.ended) for launch in (*one.launches, *other.launches)]))) > 1


def _meaning(row: ComparedRow, practical: float) -> str:
    interval = row.ratio_interval
    if interval is None:
        return OPEN
    low, high = 1 / (1 + practical), 1 + practical
    if low <= interval.low and interval.high <= high:
        return ALIKE
    if interval.low > 1 and row.ratio > high:
        return BETTER
    if interval.high < 1 and row.ratio < low:
        return WORSE
    return OPEN


def _pairs(
    reference: Measurement, current: Measurement, shared: Sequence[Layout]
) -> list[tuple[CostSample, CostSample]]:
    before, now = (samples(one, reference, shared) for one in (reference, current))
    return [(one, other) for one in before for other in now if one.key == other.key]
