"""Did it get worse? A verdict for each point and for the curve, and for all of it together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.stats import LEVEL, NEEDED, Interval
from harness.regression.hodges_lehmann import (
    Values,
    needed_pairs,
    needed_values,
    paired_interval,
    paired_shift,
    shift,
    shift_interval,
)
from harness.regression.noise import FALSE_ALARMS, Noise, learn
from harness.regression.quantities import RELATIVE, Sample, Size, as_cost, as_loss, samples
from harness.regression.states import join, without
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

PASS = "pass"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"

PRACTICAL = 0.03
_MOST_LAUNCHES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The loss that must not be missed, and the least that makes a difference to anyone, however sure it is."""

    size: float = 0.10
    practical: float = PRACTICAL

    def costs(self, relative: bool) -> tuple[float, float]:
        """Return both as steps up in cost."""
        return as_cost(self.size, relative), as_cost(self.practical, relative)


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One quantity at one layout (None: the curve). `loss` above 0 is worse; a fraction of speed or efficiency,
    or of the reference's epoch. `interval` and `floor` are on the same scale, None where launches lack.

    `values` and `launches` are the reference's and the current ones. `more` is the number of launches (of
    each layout) after which a verdict can be expected, None where none is missing or no number would do.
    """

    quantity: str
    layout: Layout | None
    decides: bool
    values: tuple[float, float]
    launches: tuple[int, int]
    loss: float
    interval: Interval | None
    floor: float | None
    verdict: str
    more: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A reference, what is held against it, and the verdicts. `unmeasured` layouts have no launch now.

    `duet`: both sides were launched in turn, and only differences of neighbours count. Else `sittings` are the
    degrees of freedom of what lies between sittings.
    """

    reference: Measurement
    current: Measurement
    limits: Limits
    rows: tuple[Row, ...]
    unmeasured: tuple[Layout, ...]
    duet: bool = False
    sittings: int = 0

    @property
    def deciding(self) -> tuple[Row, ...]:
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
    limits: Limits = DEFAULT_LIMITS,
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
    rows: tuple[Row, ...] = ()
    freedom = 0
    if shared:
        groups = _alike([one for one in alike if set(shared) <= set(one.layouts)], reference, current)
        pairs = _pairs(groups[0], groups[1], shared)
        comparisons = sum(one.decides for one, _ in pairs)
        known = [samples(group, groups[0], shared) for group in groups]
        noises = [_noise(known, one.key) for one, _ in pairs]
        freedom = max((noise.sittings for noise in noises if noise), default=0)
        rows = tuple(
            _row(one, other, noise, limits, comparisons, looks)
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
    limits: Limits = DEFAULT_LIMITS,
    looks: int = 1,
) -> Check:
    """Return the verdicts on two versions whose launches of one repeat and layout ran one after the other.

    Chance decided which of the two came first, so no weather makes more false alarms than `FALSE_ALARMS`: see
    `hodges_lehmann.paired_interval`. No noise need be known. Pairs that lack a half are left out.
    """
    shared, unmeasured = _layouts(reference, current)
    pairs = _pairs(reference, current, shared) if shared else []
    comparisons = looks * sum(one.decides for one, _ in pairs)
    rows = tuple(_duet_row(one, other, limits, comparisons) for one, other in pairs)
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


def _pairs(reference: Measurement, current: Measurement, shared: Sequence[Layout]) -> list[tuple[Sample, Sample]]:
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


def _noise(alike: Sequence[Sequence[Sample]], key: tuple[str, Layout | None]) -> Noise | None:
    return learn([sample.by_sitting for group in alike for sample in group if sample.key == key])


def _row(before: Sample, now: Sample, noise: Noise | None, limits: Limits, comparisons: int, looks: int) -> Row:
    distance = shift(now.costs, before.costs)
    level = 1 - (1 - LEVEL) / comparisons / looks
    enough = min(len(now.costs), len(before.costs)) >= NEEDED
    interval = shift_interval(now.costs, before.costs, level) if enough else None
    floor = None
    if noise is not None:
        floor = noise.floor(now.size, before.size, comparisons, looks=looks)
        between = 1 - (1 - LEVEL) / comparisons
        interval = interval and noise.widened(interval, distance, now.size, before.size, between)

    def more() -> int | None:
        return _more(distance, (before.size, now.size), noise, limits, comparisons, looks)

    return _judged(before, now, distance, interval if noise else None, floor, limits, more)


def _duet_row(before: Sample, now: Sample, limits: Limits, comparisons: int) -> Row:
    costs = dict(zip(before.blocks, before.costs, strict=True))
    differences: Values = np.array(
        [cost - costs[block] for block, cost in zip(now.blocks, now.costs, strict=True) if block in costs]
    )
    distance = paired_shift(differences) if len(differences) else 0.0
    interval = paired_interval(differences, 1 - (1 - LEVEL) / comparisons)
    surer = paired_interval(differences, 1 - 2 * FALSE_ALARMS / comparisons)
    floor = max(distance - surer.low, surer.high - distance) if surer else None

    def more() -> int | None:
        least = needed_pairs(1 - 2 * FALSE_ALARMS / comparisons)
        return max(least - len(differences), len(differences), 1)  # twice as many as there are

    return _judged(before, now, distance, interval, floor, limits, more)


def _judged(
    before: Sample,
    now: Sample,
    distance: float,
    interval: Interval | None,
    floor: float | None,
    limits: Limits,
    more: Callable[[], int | None],
) -> Row:
    """Return the row of a shift by `distance` in cost, with its `interval` and noise `floor` on the same scale."""
    relative = before.quantity in RELATIVE
    limit, least = limits.costs(relative)
    verdict = _verdict(distance, interval, floor, limit, least)
    return Row(
        quantity=before.quantity,
        layout=before.layout,
        decides=before.decides,
        values=(before.value, now.value),
        launches=(len(before.costs), len(now.costs)),
        loss=as_loss(distance, relative),
        interval=_loss_interval(interval, relative),
        floor=None if floor is None else as_loss(floor, relative),
        verdict=verdict,
        more=more() if verdict == INCONCLUSIVE else None,
    )


def _loss_interval(interval: Interval | None, relative: bool) -> Interval | None:
    if interval is None:
        return None
    return Interval(low=as_loss(interval.low, relative), high=as_loss(interval.high, relative))


def _verdict(distance: float, interval: Interval | None, floor: float | None, limit: float, least: float) -> str:
    if interval is None or floor is None:
        return INCONCLUSIVE
    if interval.low > 0 and distance > max(floor, least):
        return REGRESSION
    if interval.high < 0 and distance < -max(floor, least):
        return IMPROVEMENT
    # A loss of `limit` would have to show: above the floor, and by an interval that leaves it out.
    return PASS if interval.high < limit and floor < limit else INCONCLUSIVE


def _more(
    distance: float,
    sizes: tuple[Size, Size],
    noise: Noise | None,
    limits: Limits,
    comparisons: int,
    looks: int,
) -> int | None:
    """Return how many more launches in this sitting would settle it if the shift and the noise stay as they are."""
    reference, current = sizes
    level = 1 - (1 - LEVEL) / comparisons / looks
    least = needed_values(reference.launches, level)
    if reference.launches < NEEDED or least is None:
        return None
    if noise is None:
        return max(1, least - current.launches)
    limit, practical = limits.costs(True)
    for total in range(max(least, current.launches + 1), _MOST_LAUNCHES + 1):
        then = Size(launches=total, sittings=max(current.sittings, 1.0))
        half = noise.within_error(then, reference, (1 - level) / 2)
        half = float(np.hypot(half, noise.between_error(then, reference, (1 - LEVEL) / comparisons / 2)))
        floor = noise.floor(then, reference, comparisons, looks=looks)
        if abs(distance) > max(half, floor, practical) or (distance + half < limit and floor < limit):
            return total - current.launches
    return None
