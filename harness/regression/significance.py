"""One quantity of two measurements: by how much it differs, how sure that is, and what it means."""

from collections.abc import Callable
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
from harness.regression.noise import FALSE_ALARMS, Noise
from harness.regression.quantities import RELATIVE, CostSample, SampleSize, as_cost, as_loss
from harness.schema.layout import Layout

PASS = "pass"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"

PRACTICAL = 0.03
_MOST_LAUNCHES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """The loss that must not be missed, and the least that makes a difference to anyone, however sure it is."""

    size: float = 0.10
    practical: float = PRACTICAL

    def costs(self, relative: bool) -> tuple[float, float]:
        """Return both as steps up in cost."""
        return as_cost(self.size, relative), as_cost(self.practical, relative)


DEFAULT_LIMITS = Thresholds()


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRow:
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


def row_apart(
    before: CostSample, now: CostSample, noise: Noise | None, limits: Thresholds, comparisons: int, looks: int
) -> CheckRow:
    """Return the row of two samples of different sittings, one of `comparisons` at one of `looks`."""
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


def row_of_pairs(before: CostSample, now: CostSample, limits: Thresholds, comparisons: int) -> CheckRow:
    """Return the row of two samples whose launches of one block ran one right after the other."""
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
    before: CostSample,
    now: CostSample,
    distance: float,
    interval: Interval | None,
    floor: float | None,
    limits: Thresholds,
    more: Callable[[], int | None],
) -> CheckRow:
    """Return the row of a shift by `distance` in cost, with its `interval` and noise `floor` on the same scale."""
    relative = before.quantity in RELATIVE
    limit, least = limits.costs(relative)
    verdict = _verdict(distance, interval, floor, limit, least)
    return CheckRow(
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
    sizes: tuple[SampleSize, SampleSize],
    noise: Noise | None,
    limits: Thresholds,
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
        then = SampleSize(launches=total, sittings=max(current.sittings, 1.0))
        half = noise.within_error(then, reference, (1 - level) / 2)
        half = float(np.hypot(half, noise.between_error(then, reference, (1 - LEVEL) / comparisons / 2)))
        floor = noise.floor(then, reference, comparisons, looks=looks)
        if abs(distance) > max(half, floor, practical) or (distance + half < limit and floor < limit):
            return total - current.launches
    return None
