"""One quantity of two measurements: by how much it differs, how sure that is, and what it means.

Hodges & Lehmann (1963) estimate the shift between two samples by the median of all pairwise differences. Its interval
inverts the Wilcoxon-Mann-Whitney test: two of the ordered differences, chosen by the exact distribution of U
(Hollander, Wolfe & Chicken, *Nonparametric Statistical Methods*, 3rd ed., section 4.3). No assumption on the shape of
the noise, and up to a quarter of wild values moves neither much.
"""

import functools
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from harness.analysis.stats import LEVEL, NEEDED, Interval
from harness.regression.quantities import RELATIVE, CostSample, Values, as_cost, as_slowdown
from harness.schema.layout import Layout

PASS = "pass"
SMALL = "small slowdown"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"

PRACTICAL = 0.03
_EXACT = 60  # values in a sample up to which a distribution is counted; then the normal one serves


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
        """How many times as good the current value of a `RELATIVE` quantity is: above 1 is faster, more efficient."""
        return 1 - self.slowdown

    @property
    def ratio_interval(self) -> Interval | None:
        """The interval of `ratio`."""
        return Interval(low=1 - self.interval.high, high=1 - self.interval.low) if self.interval else None


def row_of_launches(
    before: CostSample, now: CostSample, *, comparisons: int = 1, practical: float = PRACTICAL, apart: bool = False
) -> ComparedRow:
    """Return the row of two samples of launches, one of `comparisons`; no interval where they were launched `apart`."""
    distance, relative = shift(now.costs, before.costs), before.quantity in RELATIVE
    found = None if apart else shift_interval(now.costs, before.costs, 1 - (1 - LEVEL) / comparisons)
    interval = verdict = None
    if found is not None and min(len(now.costs), len(before.costs)) >= NEEDED:
        interval = Interval(low=as_slowdown(found.low, relative), high=as_slowdown(found.high, relative))
        limit = as_cost(practical, relative)
        verdict = verdict_of(distance, found, limit)
    return ComparedRow(
        quantity=before.quantity,
        layout=before.layout,
        decides=before.decides,
        values=(before.value, now.value),
        launches=(len(before.costs), len(now.costs)),
        slowdown=as_slowdown(distance, relative),
        interval=interval,
        verdict=verdict or INCONCLUSIVE,
        apart=apart,
    )


def verdict_of(
    estimate: float, bounds: Interval, limit: float, *, upper: float | None = None, borne: Interval | None = None
) -> str:
    """Return what an estimated cost means whose `bounds` are sure, and beside which `limit` is a practical one.

    A change has to be `borne` out by other bounds too, where there are some; a pass is decided by `upper` where that is
    another bound.
    """
    sure = borne or bounds
    if bounds.low > 0 and sure.low > 0 and estimate > limit:
        return REGRESSION
    if bounds.high < 0 and sure.high < 0 and estimate < -limit:
        return IMPROVEMENT
    if (bounds.high if upper is None else upper) < limit:
        return SMALL if bounds.low > 0 else PASS
    return INCONCLUSIVE


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


def _normal_count(mean: float, variance: float, tail: float) -> int | None:
    count = int(np.floor(mean + norm.ppf(tail) * variance**0.5 - 0.5))
    return count if count >= 0 else None
