"""One quantity of two measurements: by how much it differs, how sure that is, and what it means.

Hodges & Lehmann (1963) estimate the shift between two samples by the median of all pairwise differences. Its interval
inverts the Wilcoxon-Mann-Whitney test: two of the ordered differences, chosen by the exact distribution of U
(Hollander, Wolfe & Chicken, *Nonparametric Statistical Methods*, 3rd ed., section 4.3). No assumption on the shape of
the noise, and up to a quarter of wild values moves neither much.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm

from harness.analysis.stats import LEVEL, NEEDED, Interval
from harness.regression.noise import FALSE_ALARMS, Noise
from harness.regression.quantities import RELATIVE, CostSample, SampleSize, Values, as_cost, as_slowdown
from harness.schema.layout import Layout

PASS = "pass"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"

PRACTICAL = 0.03
_MOST_LAUNCHES = 200
_EXACT = 60  # values in a sample up to which a distribution is counted; then the normal one serves


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


def shift(current: Values, reference: Values) -> float:
    """Return by how much `current` lies above `reference` (both at least one value)."""
    return float(np.median(np.subtract.outer(current, reference)))


def shift_interval(current: Values, reference: Values, level: float) -> Interval | None:
    """Return the two-sided interval of the shift with coverage of at least `level`, None with too few values."""
    count = tail_count(len(current), len(reference), (1 - level) / 2)
    if count is None:
        return None
    differences = np.sort(np.subtract.outer(current, reference), axis=None)
    return Interval(low=float(differences[count]), high=float(differences[-1 - count]))


@functools.cache
def tail_count(n: int, m: int, tail: float) -> int | None:
    """Return how many ordered differences may be left out at each end, None where even none is too many.

    The largest c with P(U <= c) <= `tail` for samples of `n` and `m` values; counted up to `_EXACT` values, above by
    the normal distribution.
    """
    if min(n, m) < 1:
        return None
    if max(n, m) > _EXACT:
        return _normal_count(n * m / 2, n * m * (n + m + 1) / 12, tail)
    # The orders of n + m values with U = 0, 1, ..., n * m (Mann & Whitney 1947, their recurrence): the coefficients of
    # the Gaussian binomial, the product of (1 - q^(m+i)) / (1 - q^i) for i = 1..n.
    counts = np.zeros(n * m + 1)
    counts[0] = 1
    for i in range(1, n + 1):
        up = m + i
        if up <= n * m:
            counts[up:] = counts[up:] - counts[:-up]
        for start in range(i, n * m + 1):
            counts[start] += counts[start - i]
    below = np.cumsum(counts)
    allowed = int(np.searchsorted(below / below[-1], tail, side="right"))
    return allowed - 1 if allowed else None


def needed_values(m: int, level: float, *, most: int = 1000) -> int | None:
    """Return how many values have an interval of `level` against `m` others; at least 6, None above `most`."""
    for n in range(NEEDED, most):
        if tail_count(n, m, (1 - level) / 2) is not None:
            return n
    return None


def paired_shift(differences: Values) -> float:
    """Return the middle of paired `differences` (at least one): the median of all their pairwise means."""
    return float(np.median(_walsh(differences)))


def paired_interval(differences: Values, level: float) -> Interval | None:
    """Return the two-sided interval of the middle with coverage of at least `level`, None with too few pairs.

    Inverts Wilcoxon's signed-rank test (Hollander, Wolfe & Chicken, section 3.3). Where chance decided which half of
    a pair came first, each difference of equal halves is as likely to have the other sign, whatever the machine
    did meanwhile: the test is then exact by the design alone (Fisher 1935), without assumptions on the noise.
    """
    count = signed_tail_count(len(differences), (1 - level) / 2)
    if count is None:
        return None
    means = np.sort(_walsh(differences))
    return Interval(low=float(means[count]), high=float(means[-1 - count]))


@functools.cache
def signed_tail_count(n: int, tail: float) -> int | None:
    """Return the largest c with P(W <= c) <= `tail` for the signed-rank sum W of `n` pairs, None where there is none.

    Counted up to `_EXACT` pairs, above by the normal distribution.
    """
    if n > _EXACT:
        return _normal_count(n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24, tail)
    counts = np.ones(1)
    for rank in range(1, n + 1):
        counts = np.concatenate([counts, np.zeros(rank)]) + np.concatenate([np.zeros(rank), counts])
    allowed = int(np.searchsorted(np.cumsum(counts) / 2.0**n, tail, side="right"))
    return allowed - 1 if allowed else None


def _normal_count(mean: float, variance: float, tail: float) -> int | None:
    count = int(np.floor(mean + norm.ppf(tail) * variance**0.5 - 0.5))
    return count if count >= 0 else None


def needed_pairs(level: float) -> int:
    """Return how many pairs have an interval of `level`."""
    return int(np.ceil(-np.log2((1 - level) / 2)))


def _walsh(differences: Values) -> Values:
    """Return the mean of every two of `differences`, each with itself too."""
    first, second = np.triu_indices(len(differences))
    means: Values = (differences[first] + differences[second]) / 2
    return means
