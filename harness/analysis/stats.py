"""Medians and their intervals, and means over blocks of what trained in turns.

The sample is the launch, not the step (Hoefler & Belli, "Scientific Benchmarking of Parallel Computing
Systems", SC'15, rules 5 to 7). Ratios of launches one after the other are ratios of medians.

In turns the sample is the block, one number of its rounds (`harness.analysis.turn_blocks`). Rounds of one block alone
decide nothing: every start of a launch has a speed of its own (0.7 to 1 % on a virtual machine), which its rounds
share. Over blocks Student's t of their numbers holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, quantile_test
from scipy.stats import t as student

LEVEL = 0.95
NEEDED = 6  # launches: below this no pair of order statistics reaches 95 %
SESSION_GAP = timedelta(hours=1)
SESSION_SPREAD = 0.02  # deviation between sessions that stands in where too few were measured
_RESAMPLES = 9999
FEWEST_BLOCKS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A two-sided 95 % interval, in the unit of the values."""

    low: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of `factor` (above 0) times the value."""
        return Interval(low=self.low * factor, high=self.high * factor)


def sessions(times: Sequence[tuple[datetime, datetime]]) -> tuple[int, ...]:
    """Return the number of the session, from 0 in order of time, of launches that started and ended at `times`.

    A session ends where nothing runs for `SESSION_GAP`: what comes later may find the machine in another state
    (other neighbours on the host, another clock rate), which all its launches share. The levels are those of
    Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time" (ISMM 2013): launches within sessions.
    """
    found = [0] * len(times)
    number, until = -1, None
    for place in sorted(range(len(times)), key=lambda place: times[place]):
        begin, end = times[place]
        if until is None or begin - until > SESSION_GAP:
            number += 1
        until = end if until is None else max(until, end)
        found[place] = number
    return tuple(found)


def median_interval(values: ArrayLike) -> Interval | None:
    """Return the order-statistic 95 % interval of the median of `values`, None below 6 values.

    Without assumption on the distribution: the number of values below the median is Binomial(n, 1/2), and the narrowest
    symmetric pair is taken. Of this session only: exact for independent values. Where two speeds of a machine last over
    launches (kept with a chance of 0.8 to 0.95), it covered 41 to 88 % of the true medians.
    """
    data = np.asarray(values, dtype=float)
    if len(data) < NEEDED:
        return None
    low, high = quantile_test(data, p=0.5).confidence_interval(LEVEL)
    return Interval(low=float(low), high=float(high))


def ratio_interval(
    numerator: ArrayLike, denominator: ArrayLike, *, paired: bool = False, seed: int = 0
) -> Interval | None:
    """Return the 95 % interval of median(numerator) / median(denominator), by `percentiles` of a bootstrap.

    `paired`: value k of both is of the same block of the interleaved order, and whole blocks are drawn: what slows a
    whole block cancels in the ratio. None when either has fewer than 6 values.
    """
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if min(len(top), len(bottom)) < NEEDED:
        return None
    first, second = resamples(len(top), len(bottom), paired=paired, seed=seed)
    return percentiles(_medians(top[first]) / _medians(bottom[second]), min(len(top), len(bottom)))


def resamples(first: int, second: int, *, paired: bool, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the launches that a bootstrap draws of `first` and of `second` launches, [draws, launches].

    Seeded, so that a report is the same when drawn again. `paired`: the same numbers of both, which are equally many.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, first, (_RESAMPLES, first))
    return drawn, drawn if paired else rng.integers(0, second, (_RESAMPLES, second))


def percentiles(values: NDArray[np.float64], launches: int, *, rows: int = 1) -> Interval:
    """Return the 95 % interval that the `values` [draws] of a bootstrap over `launches` make.

    `rows` that are read together share the error (Bonferroni), so that all of them hold with 95 %.

    Percentiles are widened for few launches (Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69, 2015, section 5.2: a bootstrap sample varies too little by the factor (n-1)/n).
    """
    quantile = norm.isf((1 - LEVEL) / 2 / rows) * math.sqrt(launches / (launches - 1))
    tail = 100 * norm.cdf(-quantile)
    low, high = np.percentile(values, [tail, 100 - tail])
    return Interval(low=float(low), high=float(high))


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``np.median(values, axis=1)``; of thousands of short rows a sort finds them ten times as fast."""
    rows = np.sort(values, axis=1)
    count = rows.shape[1]
    medians: NDArray[np.float64] = (rows[:, (count - 1) // 2] + rows[:, count // 2]) / 2
    return medians


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRatio:
    """A ratio over blocks: the mean of their log ratios, as a factor, and its 95 % interval."""

    ratio: float
    interval: Interval
    blocks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMean:
    """A mean over blocks, and half the width of its interval."""

    mean: float
    reach: float


def over_blocks(values: Sequence[float], *, level: float = LEVEL) -> BlockMean | None:
    """Return the mean of the blocks' `values` and the reach of Student's two-sided interval; None for fewer than 3."""
    if len(values) < FEWEST_BLOCKS:
        return None
    reach = student.ppf(0.5 + level / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return BlockMean(mean=float(np.mean(values)), reach=float(reach))


def ratio_over_blocks(ratios: Sequence[float], *, level: float = LEVEL) -> BlockRatio | None:
    """Return the ratio of which `ratios` are the blocks' logarithms, one each; None for fewer than 3.

    The interval is Student's, of the logarithms; two-sided with probability `level`.
    """
    found = over_blocks(ratios, level=level)
    if found is None:
        return None
    return BlockRatio(
        ratio=math.exp(found.mean),
        interval=Interval(low=math.exp(found.mean - found.reach), high=math.exp(found.mean + found.reach)),
        blocks=len(ratios),
    )
