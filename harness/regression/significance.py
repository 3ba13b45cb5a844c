"""One quantity of two measurements: by how much it differs, how sure that is, and what it means."""

from dataclasses import dataclass, replace

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
from harness.regression.noise import FALSE_ALARMS, Noise
from harness.regression.quantities import RELATIVE, CostSample, SampleSize, as_cost, as_slowdown
from harness.schema.layout import Layout

PASS = "pass"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"

PRACTICAL = 0.03
_MOST_LAUNCHES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """The slowdown that must not be missed, and the least that makes a difference to anyone, however sure it is."""

    size: float = 0.10
    practical: float = PRACTICAL


DEFAULT_LIMITS = Thresholds()


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """One quantity at one layout (None: the curve): what it was (the reference) and what it is (the current one).

    `slowdown` above 0 is worse; a fraction of speed or efficiency, or of the reference's epoch. `interval` and `floor`,
    what noise alone seldom exceeds, are on the same scale, None where launches lack. `values` and `launches` are the
    reference's and the current ones. Only rows that `decide` can fail a check. `more` is the number of launches (of
    each layout) after which a verdict can be expected, None where none is missing or no number would do. `assumed`:
    what lies between sessions was not measured.
    """

    quantity: str
    layout: Layout | None
    decides: bool
    values: tuple[float, float]
    launches: tuple[int, int]
    slowdown: float
    interval: Interval | None
    floor: float | None
    verdict: str = ""
    more: int | None = None
    assumed: bool = False

    @property
    def ratio(self) -> float:
        """How many times as good the current value of a `RELATIVE` quantity is: above 1 is faster, more efficient."""
        return 1 - self.slowdown

    @property
    def ratio_interval(self) -> Interval | None:
        """The interval of `ratio`."""
        return Interval(low=1 - self.interval.high, high=1 - self.interval.low) if self.interval else None


def row_of_sessions(
    before: CostSample,
    now: CostSample,
    noise: Noise | None,
    *,
    comparisons: int = 1,
    looks: int = 1,
    limits: Thresholds | None = None,
) -> ComparedRow:
    """Return the row of two samples of different sessions, one of `comparisons` at one of `looks`.

    It has a verdict where there are `limits`.
    """
    distance = shift(now.costs, before.costs)
    level = 1 - (1 - LEVEL) / comparisons / looks
    interval = floor = None
    if noise is not None:
        floor = noise.floor(now.size, before.size, comparisons, looks=looks)
        if min(len(now.costs), len(before.costs)) >= NEEDED:
            interval = shift_interval(now.costs, before.costs, level)
        between = 1 - (1 - LEVEL) / comparisons
        interval = interval and noise.widened(interval, distance, now.size, before.size, between)
    row = replace(_row(before, now, distance, interval, floor), assumed=noise is None or noise.assumed)
    if limits is None:
        return row
    verdict = _verdict(before.quantity in RELATIVE, distance, interval, floor, limits)
    if verdict != INCONCLUSIVE:
        return replace(row, verdict=verdict)
    more = _more_launches(distance, (before.size, now.size), noise, limits, comparisons, looks)
    return replace(row, verdict=verdict, more=more)


def row_of_pairs(before: CostSample, now: CostSample, limits: Thresholds, comparisons: int) -> ComparedRow:
    """Return the row of two samples whose launches of one block ran one right after the other."""
    costs = dict(zip(before.blocks, before.costs, strict=True))
    differences: Values = np.array(
        [cost - costs[block] for block, cost in zip(now.blocks, now.costs, strict=True) if block in costs]
    )
    distance = paired_shift(differences) if len(differences) else 0.0
    interval = paired_interval(differences, 1 - (1 - LEVEL) / comparisons)
    surer = paired_interval(differences, 1 - 2 * FALSE_ALARMS / comparisons)
    floor = max(distance - surer.low, surer.high - distance) if surer else None
    verdict = _verdict(before.quantity in RELATIVE, distance, interval, floor, limits)
    least = needed_pairs(1 - 2 * FALSE_ALARMS / comparisons)
    more = max(least - len(differences), len(differences), 1)  # twice as many as there are
    row = _row(before, now, distance, interval, floor)
    return replace(row, verdict=verdict, more=more if verdict == INCONCLUSIVE else None)


def _row(
    before: CostSample, now: CostSample, distance: float, interval: Interval | None, floor: float | None
) -> ComparedRow:
    """Return the row of a shift by `distance` in cost, with its `interval` and noise `floor` on the same scale."""
    relative = before.quantity in RELATIVE
    if interval is not None:
        interval = Interval(low=as_slowdown(interval.low, relative), high=as_slowdown(interval.high, relative))
    return ComparedRow(
        quantity=before.quantity,
        layout=before.layout,
        decides=before.decides,
        values=(before.value, now.value),
        launches=(len(before.costs), len(now.costs)),
        slowdown=as_slowdown(distance, relative),
        interval=interval,
        floor=None if floor is None else as_slowdown(floor, relative),
    )


def _verdict(
    relative: bool, distance: float, interval: Interval | None, floor: float | None, limits: Thresholds
) -> str:
    if interval is None or floor is None:
        return INCONCLUSIVE
    limit, least = as_cost(limits.size, relative), as_cost(limits.practical, relative)
    if interval.low > 0 and distance > max(floor, least):
        return REGRESSION
    if interval.high < 0 and distance < -max(floor, least):
        return IMPROVEMENT
    # A slowdown of `limit` would have to show: above the floor, and by an interval that leaves it out.
    return PASS if interval.high < limit and floor < limit else INCONCLUSIVE


def _more_launches(
    distance: float,
    sizes: tuple[SampleSize, SampleSize],
    noise: Noise | None,
    limits: Thresholds,
    comparisons: int,
    looks: int,
) -> int | None:
    """Return how many more launches in this session would settle it if the shift and the noise stay as they are."""
    reference, current = sizes
    level = 1 - (1 - LEVEL) / comparisons / looks
    least = needed_values(reference.launches, level)
    if reference.launches < NEEDED or least is None:
        return None
    if noise is None:
        return max(1, least - current.launches)
    limit, practical = as_cost(limits.size, True), as_cost(limits.practical, True)
    for total in range(max(least, current.launches + 1), _MOST_LAUNCHES + 1):
        then = SampleSize(launches=total, sessions=max(current.sessions, 1.0))
        half = noise.within_error(then, reference, (1 - level) / 2)
        half = float(np.hypot(half, noise.between_error(then, reference, (1 - LEVEL) / comparisons / 2)))
        floor = noise.floor(then, reference, comparisons, looks=looks)
        if abs(distance) > max(half, floor, practical) or (distance + half < limit and floor < limit):
            return total - current.launches
    return None
