"""Did it get worse? A verdict for each point and for the curve, and for all of it together."""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import ndtri

from harness.analysis.stats import LEVEL, NEEDED, Interval
from harness.regression.hodges_lehmann import needed_values, shift, shift_interval
from harness.regression.noise import Noise, learn
from harness.regression.quantities import RELATIVE, Sample, as_cost, as_loss, samples
from harness.regression.states import join, without
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

PASS = "pass"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"

SIZE = 0.10  # the loss that must not be missed
_MOST_LAUNCHES = 200


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
    """A reference, what is held against it, and the verdicts. `unmeasured` layouts have no launch now."""

    reference: Measurement
    current: Measurement
    noise: Measurement | None
    size: float
    rows: tuple[Row, ...]
    unmeasured: tuple[Layout, ...]

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
    noise: Measurement | None = None,
    *,
    size: float = SIZE,
    looks: int = 1,
) -> Check:
    """Return the verdicts on `current` against `reference`, both of the same workload and machine.

    A regression needs both: an interval of the shift that excludes 0, and a shift above the noise floor. A
    pass needs that a loss of `size` (fraction) would have been seen. `noise` adds A/A launches to those that
    the two hold themselves. `looks` is how often the same question is asked while launches are added: every
    look gets its part of the error that is allowed in all.
    """
    shared = [layout for layout in reference.layouts if current.of(layout)]
    unmeasured = tuple(layout for layout in reference.layouts if not current.of(layout))
    rows: tuple[Row, ...] = ()
    if shared:
        before, now = (samples(one, reference, shared) for one in (reference, current))
        pairs = [(one, other) for one in before for other in now if one.key == other.key]
        comparisons = looks * sum(one.decides for one, _ in pairs)
        groups = [group for group in _alike(noise, reference, current) if set(shared) <= set(group.layouts)]
        alike = [samples(group, reference, shared) for group in groups]
        rows = tuple(_row(one, other, _noise(alike, one.key), size, comparisons) for one, other in pairs)
    return Check(reference=reference, current=current, noise=noise, size=size, rows=rows, unmeasured=unmeasured)


def _alike(noise: Measurement | None, reference: Measurement, current: Measurement) -> list[Measurement]:
    """Return the groups of launches of the same code: A/A runs, each launch in one of them.

    The launches of `noise` join the side that ran the same code: what lies between their sessions is then
    noise too. The two sides themselves are never joined, for their difference is the question.
    """
    sides = [reference, current]
    if noise is None:
        return sides
    rest = without(without(noise, reference), current)
    for number, side in enumerate(sides):
        if side.software == noise.software:
            return [*sides[:number], join(side, rest), *sides[number + 1 :]]
    return [*sides, rest]


def _noise(alike: Sequence[Sequence[Sample]], key: tuple[str, Layout | None]) -> Noise | None:
    return learn([sample.costs for group in alike for sample in group if sample.key == key])


def _row(before: Sample, now: Sample, noise: Noise | None, size: float, comparisons: int) -> Row:
    counts = (len(before.costs), len(now.costs))
    distance = shift(now.costs, before.costs)
    level = 1 - (1 - LEVEL) / comparisons
    enough = min(counts) >= NEEDED and noise is not None
    interval = shift_interval(now.costs, before.costs, level) if enough else None
    floor = noise.floor(counts[1], counts[0], comparisons) if noise else None
    relative = before.quantity in RELATIVE
    limit = as_cost(size, relative)
    verdict = _verdict(distance, interval, floor, limit)
    return Row(
        quantity=before.quantity,
        layout=before.layout,
        decides=before.decides,
        values=(before.value, now.value),
        launches=counts,
        loss=as_loss(distance, relative),
        interval=_loss_interval(interval, relative),
        floor=None if floor is None else as_loss(floor, relative),
        verdict=verdict,
        more=_more(distance, counts, noise, level, limit, comparisons) if verdict == INCONCLUSIVE else None,
    )


def _loss_interval(interval: Interval | None, relative: bool) -> Interval | None:
    if interval is None:
        return None
    return Interval(low=as_loss(interval.low, relative), high=as_loss(interval.high, relative))


def _verdict(distance: float, interval: Interval | None, floor: float | None, limit: float) -> str:
    if interval is None or floor is None:
        return INCONCLUSIVE
    if interval.low > 0 and distance > floor:
        return REGRESSION
    if interval.high < 0 and distance < -floor:
        return IMPROVEMENT
    # A loss of `limit` would have to show: above the floor, and by an interval that leaves it out.
    return PASS if interval.high < limit and floor < limit else INCONCLUSIVE


def _more(
    distance: float, counts: tuple[int, int], noise: Noise | None, level: float, limit: float, comparisons: int
) -> int | None:
    """Return how many more launches would settle it if the shift and the noise stay as they are."""
    reference, current = counts
    least = needed_values(reference, level)
    if reference < NEEDED or least is None:
        return None
    if noise is None:
        return max(1, least - current)
    quantile = float(ndtri((1 + level) / 2))
    for total in range(max(least, current + 1), _MOST_LAUNCHES + 1):
        half = quantile * noise.error(total, reference)
        floor = noise.floor(total, reference, comparisons)
        if abs(distance) > max(half, floor) or (distance + half < limit and floor < limit):
            return total - current
    return None
