"""Did it get worse? A verdict for each point and for the curve, and for all of it together."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.stats import NEEDED
from harness.regression.measurements import join, without
from harness.regression.noise import Noise, learn
from harness.regression.quantities import CostSample, samples
from harness.regression.significance import (
    DEFAULT_LIMITS,
    IMPROVEMENT,
    INCONCLUSIVE,
    PASS,
    REGRESSION,
    CheckRow,
    Thresholds,
    row_apart,
    row_of_pairs,
)
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A reference, what is held against it, and the verdicts. `unmeasured` layouts have no launch now.

    `duet`: both sides were launched in turn, and only differences of neighbours count. Else `sittings` are the
    degrees of freedom of what lies between sittings.
    """

    reference: Measurement
    current: Measurement
    limits: Thresholds
    rows: tuple[CheckRow, ...]
    unmeasured: tuple[Layout, ...]
    duet: bool = False
    sittings: int = 0

    @property
    def deciding(self) -> tuple[CheckRow, ...]:
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


def check(
    reference: Measurement,
    current: Measurement,
    alike: Sequence[Measurement] = (),
    *,
    limits: Thresholds = DEFAULT_LIMITS,
    looks: int = 1,
) -> Check:
    """Return the verdicts on `current` against `reference`, both of the same workload and machine.

    A regression needs three things: an interval of the shift that excludes 0, a shift above the noise floor, and a
    loss of a practical size. A pass needs that a loss of the size in `limits` would have been seen. The two count as
    measured in different sittings. `alike` are more launches of single commits: of the two that are compared, or of
    others, from which only the noise is learned. `looks` is how often the same question is asked while launches are
    added: every look gets its part of the error that is allowed in all.
    """
    shared, unmeasured = _layouts(reference, current)
    rows: tuple[CheckRow, ...] = ()
    freedom = 0
    if shared:
        groups = _alike([one for one in alike if set(shared) <= set(one.layouts)], reference, current)
        pairs = _pairs(groups[0], groups[1], shared)
        comparisons = sum(one.decides for one, _ in pairs)
        known = [samples(group, groups[0], shared) for group in groups]
        noises = [_noise(known, one.key) for one, _ in pairs]
        freedom = max((noise.sittings for noise in noises if noise), default=0)
        rows = tuple(
            row_apart(one, other, noise, limits, comparisons, looks)
            for (one, other), noise in zip(pairs, noises, strict=True)
        )
    return Check(
        reference=reference,
        current=current,
        limits=limits,
        rows=rows,
        unmeasured=unmeasured,
        sittings=freedom,
    )


def check_duet(
    reference: Measurement,
    current: Measurement,
    *,
    limits: Thresholds = DEFAULT_LIMITS,
    looks: int = 1,
) -> Check:
    """Return the verdicts on two versions whose launches of one repeat and layout ran one after the other.

    Chance decided which of the two came first, so no weather makes more false alarms than `FALSE_ALARMS`: see
    `hodges_lehmann.paired_interval`. No noise need be known. Pairs that lack a half are left out.
    """
    shared, unmeasured = _layouts(reference, current)
    pairs = _pairs(reference, current, shared) if shared else []
    comparisons = looks * sum(one.decides for one, _ in pairs)
    rows = tuple(row_of_pairs(one, other, limits, comparisons) for one, other in pairs)
    return Check(
        reference=reference,
        current=current,
        limits=limits,
        rows=rows,
        unmeasured=unmeasured,
        duet=True,
    )


def _layouts(reference: Measurement, current: Measurement) -> tuple[list[Layout], tuple[Layout, ...]]:
    """Return the reference's layouts that were launched now, and those that were not."""
    shared = [layout for layout in reference.layouts if current.of(layout)]
    return shared, tuple(layout for layout in reference.layouts if not current.of(layout))


def _pairs(
    reference: Measurement, current: Measurement, shared: Sequence[Layout]
) -> list[tuple[CostSample, CostSample]]:
    before, now = (samples(one, reference, shared) for one in (reference, current))
    return [(one, other) for one in before for other in now if one.key == other.key]


def _alike(noise: Sequence[Measurement], reference: Measurement, current: Measurement) -> list[Measurement]:
    """Return the reference, the current launches and further groups, each of the same code, each launch in one.

    Those of `noise` join the side that ran the same code, whose middle is then known from more sittings. The two
    sides themselves are never joined, for their difference is the question.
    """
    groups = [reference, current]
    for more in noise:
        rest = without(without(more, reference), current)
        same = next((number for number, one in enumerate(groups) if one.software.state == more.software.state), None)
        if same is None:
            groups.append(rest)
        else:
            groups[same] = join(groups[same], rest)
    return groups


def _noise(alike: Sequence[Sequence[CostSample]], key: tuple[str, Layout | None]) -> Noise | None:
    return learn([sample.by_sitting for group in alike for sample in group if sample.key == key])
