"""How far two small samples lie apart: the Hodges-Lehmann shift and its exact interval.

Hodges & Lehmann (1963) estimate the shift by the median of all pairwise differences. Its interval inverts
the Wilcoxon-Mann-Whitney test: two of the ordered differences, chosen by the exact distribution of U
(Hollander, Wolfe & Chicken, *Nonparametric Statistical Methods*, 3rd ed., section 4.3). No assumption on the
shape of the noise, and up to a quarter of wild values moves neither much.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from harness.analysis.stats import NEEDED, Interval

Values = NDArray[np.float64]
ASYMPTOTIC = 3 / np.pi  # efficiency of the estimate against the difference of means, normal noise
_EXACT = 60  # values in a sample up to which U's distribution is counted; then the normal one serves


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

    The largest c with P(U <= c) <= `tail` for samples of `n` and `m` values.
    """
    if min(n, m) < 1:
        return None
    if max(n, m) > _EXACT:
        return _normal_count(n, m, tail)
    below = np.cumsum(_u_counts(n, m))
    allowed = int(np.searchsorted(below / below[-1], tail, side="right"))
    return allowed - 1 if allowed else None


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


def needed_pairs(level: float) -> int:
    """Return how many pairs have an interval of `level`."""
    return int(np.ceil(-np.log2((1 - level) / 2)))


def _walsh(differences: Values) -> Values:
    """Return the mean of every two of `differences`, each with itself too."""
    first, second = np.triu_indices(len(differences))
    means: Values = (differences[first] + differences[second]) / 2
    return means


@functools.cache
def signed_tail_count(n: int, tail: float) -> int | None:
    """Return the largest c with P(W <= c) <= `tail` for the signed-rank sum W of `n` pairs, None where there is none.

    Counted up to `_EXACT` pairs, above by the normal distribution.
    """
    if n > _EXACT:
        from scipy.stats import norm

        spread = (n * (n + 1) * (2 * n + 1) / 24) ** 0.5
        return int(np.floor(n * (n + 1) / 4 + norm.ppf(tail) * spread - 0.5))
    counts = np.ones(1)
    for rank in range(1, n + 1):
        counts = np.concatenate([counts, np.zeros(rank)]) + np.concatenate([np.zeros(rank), counts])
    allowed = int(np.searchsorted(np.cumsum(counts) / 2.0**n, tail, side="right"))
    return allowed - 1 if allowed else None


def needed_values(m: int, level: float, *, most: int = 1000) -> int | None:
    """Return how many values have an interval of `level` against `m` others; at least 6, None above `most`."""
    for n in range(NEEDED, most):
        if tail_count(n, m, (1 - level) / 2) is not None:
            return n
    return None


def _u_counts(n: int, m: int) -> Values:
    """Return how many orders of n + m values have U = 0, 1, ..., n * m (Mann & Whitney 1947, their recurrence).

    As coefficients of the Gaussian binomial: product of (1 - q^(m+i)) / (1 - q^i) for i = 1..n.
    """
    counts = np.zeros(n * m + 1)
    counts[0] = 1
    for i in range(1, n + 1):
        up = m + i
        if up <= n * m:
            counts[up:] = counts[up:] - counts[:-up]
        for start in range(i, n * m + 1):
            counts[start] += counts[start - i]
    return counts


def _normal_count(n: int, m: int, tail: float) -> int | None:
    from scipy.stats import norm

    spread = (n * m * (n + m + 1) / 12) ** 0.5
    count = int(np.floor(n * m / 2 + norm.ppf(tail) * spread - 0.5))
    return count if count >= 0 else None
