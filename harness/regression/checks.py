"""Did it get worse? A verdict for each point and for the curve, and for all of it together; comparisons without one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isclose

from harness.analysis.stats import NEEDED
from harness.regression.measurements import join, without
from harness.regression.noise import learn_noise
from harness.regression.quantities import RELATIVE, CostSample, samples
from harness.regression.significance import (
    DEFAULT_LIMITS,
    IMPROVEMENT,
    INCONCLUSIVE,
    PASS,
    PRACTICAL,
    REGRESSION,
    ComparedRow,
    Thresholds,
    row_of_pairs,
    row_of_sessions,
)
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

BETTER = "better"
WORSE = "worse"
ALIKE = "alike"
OPEN = "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A reference, what is compared with it, and the verdicts. `unmeasured` layouts have no launch now.

    `duet`: both sides were launched in turn, and only differences of neighbours count. Else `sessions` are the
    degrees of freedom of what lies between sessions.
    """

    reference: Measurement
    current: Measurement
    limits: Thresholds
    rows: tuple[ComparedRow, ...]
    duet: bool = False
    sessions: int = 0

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
        """The worst of the deciding rows: a regression first, then what is open, then an improvement."""
        verdicts = {row.verdict for row in self.deciding}
        if REGRESSION in verdicts:
            return REGRESSION
        if INCONCLUSIVE in verdicts or self.unmeasured:
            return INCONCLUSIVE
        return IMPROVEMENT if IMPROVEMENT in verdicts else PASS

    @property
    def more(self) -> int | None:
        """The launches of each layout still needed, None where none or no number would do."""
        needs = [row.more for row in self.deciding if row.verdict == INCONCLUSIVE]
        if self.unmeasured:
            needs.append(NEEDED)
        return max((need for need in needs if need), default=None)


def check_sessions(
    reference: Measurement,
    current: Measurement,
    same_code: Sequence[Measurement] = (),
    *,
    limits: Thresholds = DEFAULT_LIMITS,
    looks: int = 1,
) -> Check:
    """Return the verdicts on `current` against `reference`, both of the same workload and machine.

    A regression needs three things: an interval of the shift that excludes 0, a shift above the noise floor, and a
    slowdown of a practical size. A pass needs that one of the size in `limits` would have been seen. The two count as
    measured in different sessions. `same_code` are more launches, each measurement of a single commit: of the two that
    are compared, or of others, from which only the noise is learned. `looks` is how often the same question is asked
    while launches are added: every look gets its part of the error that is allowed in all.
    """
    shared = [layout for layout in reference.layouts if current.of(layout)]
    rows, freedom = [], 0
    if shared:
        groups = _group_sides([one for one in same_code if set(shared) <= set(one.layouts)], reference, current)
        pairs = _pairs(groups[0], groups[1], shared)
        comparisons = sum(one.decides for one, _ in pairs)
        known = [sample for group in groups for sample in samples(group, groups[0], shared)]
        for before, now in pairs:
            noise = learn_noise([sample.by_session for sample in known if sample.key == before.key])
            freedom = max(freedom, noise.sessions if noise else 0)
            rows.append(row_of_sessions(before, now, noise, comparisons=comparisons, looks=looks, limits=limits))
    return Check(reference=reference, current=current, limits=limits, rows=tuple(rows), sessions=freedom)


def check_duet(
    reference: Measurement, current: Measurement, *, limits: Thresholds = DEFAULT_LIMITS, looks: int = 1
) -> Check:
    """Return the verdicts on two versions whose launches of one repeat and layout ran one after the other.

    Chance decided which of the two came first, so no machine drift makes more false alarms than `FALSE_ALARMS`: see
    `significance.paired_interval`. No noise need be known. Pairs that lack a half are left out.
    """
    shared = [layout for layout in reference.layouts if current.of(layout)]
    pairs = _pairs(reference, current, shared) if shared else []
    comparisons = looks * sum(one.decides for one, _ in pairs)
    rows = tuple(row_of_pairs(before, now, limits, comparisons) for before, now in pairs)
    return Check(reference=reference, current=current, limits=limits, rows=rows, duet=True)


def compare_measurements(
    first: Measurement, other: Measurement, same_code: Sequence[Measurement] = (), *, practical: float = PRACTICAL
) -> tuple[ComparedRow, ...]:
    """Return time and efficiency of `other` over `first` at every layout that both launched, each row judged alone.

    They may differ in anything but the rows of an epoch: layouts where these differ are left out. They count as
    measured in different sessions; `same_code` are A/A launches that show how far sessions differ. A verdict is
    ``better`` or ``worse`` where the interval leaves out 0 and the ratio is of a `practical` size, ``alike`` where the
    whole interval is within it, else ``open``.
    """
    shared = [
        layout
        for layout in first.layouts
        if other.of(layout) and isclose(first.of(layout)[0].rows, other.of(layout)[0].rows, rel_tol=0.01)
    ]
    pairs = _pairs(first, other, shared) if shared else []
    known = [sample for pair in pairs for sample in pair]
    known += [sample for one in same_code for sample in samples(one, one, one.layouts)]
    rows = []
    for before, now in pairs:
        if before.quantity in RELATIVE:
            row = row_of_sessions(before, now, learn_noise([one.by_session for one in known if one.key == before.key]))
            rows.append(replace(row, verdict=_meaning(row, practical)))
    return tuple(rows)


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


def _group_sides(same_code: Sequence[Measurement], reference: Measurement, current: Measurement) -> list[Measurement]:
    """Return the reference, the current launches and further groups, each of the same code, each launch in one.

    Those of `same_code` join the side that ran the same code, whose middle is then known from more sessions. The two
    sides themselves are never joined, for their difference is the question.
    """
    groups = [reference, current]
    for more in same_code:
        rest = without(without(more, reference), current)
        same = next((number for number, one in enumerate(groups) if one.software.state == more.software.state), None)
        if same is None:
            groups.append(rest)
        else:
            groups[same] = join(groups[same], rest)
    return groups
