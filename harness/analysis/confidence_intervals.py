"""Every inference procedure of this project: intervals and tests, one for each kind of data.

procedure            data                   estimand              assumes                    used for
-------------------  ---------------------  --------------------  -------------------------  ---------------------------
mean_over_blocks     blocks                 mean                  independent, about normal  times and speedups (of
                                                                                             logarithms), slowest core,
                                                                                             check
ratio_over_blocks    blocks                 ratio: mean           the same                   bench, settings of the
                                            logarithm                                        probe
difference_of_means  launches of two kinds  difference of means   the same, and unrelated    speedups of launches that
                                                                                             share no block, compare
median_interval      launches; rounds       their median          independent values         probe, bearing out a check
ratio_interval       launches of two kinds  ratio of two medians  independent repeats of     time to accuracy, which
                                                                  one session                some launches never reach
resamples and        launches of two kinds  other functions of    the same                   efficiencies, costs of
percentiles                                 them                                             overheads, reading by
                                                                                             rank 0
session_model        blocks of sessions     level of new          sessions and blocks about  checks against a baseline
(in regression)                             sessions beside a     normal and independent
                                            baseline's
level_change         means of sessions      whether their level   exchangeable sessions      histories
(the same)                                  changed, and where

The sample is the launch, not the step (Hoefler & Belli, "Scientific Benchmarking of Parallel Computing Systems", SC'15,
rules 5 to 7). Launches that are compared share a block. Rounds of one block alone decide nothing: every start of a
launch has a speed of its own (0.7 to 1 % on a virtual machine), which its rounds share.

Rows that are judged together share the error (Bonferroni): they are given a higher `level`. Ranges of assumptions, such
as a prediction's, are no inference and are not made here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, ndtr, ndtri, stdtrit

Values = NDArray[np.float64]
Counts = NDArray[np.int32]

LEVEL = 0.95
FEWEST_BLOCKS = 3
"""Below this a mean has no interval."""
FEWEST_LAUNCHES = 6
"""Below this no pair of order statistics reaches 95 %, and a bootstrap has too few different samples."""
RESAMPLES = 9999


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A two-sided interval, in the unit of the values; of 95 % where nothing else is said."""

    low: float
    high: float

    @property
    def log_reach(self) -> float:
        """Half its width, of the logarithm: 0.01 is a ratio known within about 1 %."""
        return math.log(self.high / self.low) / 2

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of `factor` (above 0) times the value."""
        return Interval(low=self.low * factor, high=self.high * factor)


def median_interval(values: ArrayLike, *, level: float = LEVEL) -> Interval | None:
    """Return the order-statistic interval of the median of `values`, None where there are too few for `level`.

    Without assumption on the distribution: the number of values below the median is Binomial(n, 1/2), and the narrowest
    symmetric pair is taken; for 95 % it needs 6 values. Of this session only: exact for independent values. Where two
    speeds of a machine last over launches (kept with a chance of 0.8 to 0.95), it covered 41 to 88 % of the true
    medians.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    place = _order_statistic((1 - level) / 2, len(ordered))
    if place < 1:
        return None
    return Interval(low=float(ordered[place - 1]), high=float(ordered[-place]))


@cache
def _order_statistic(tail: float, size: int) -> int:
    """Return which of `size` ordered values bounds their median with the error `tail`, from 1; 0 where none does."""
    probabilities = bdtr(np.arange(size + 1), size, 0.5)  # of at most so many values below the median
    return int(np.searchsorted(probabilities, tail)) if size else 0


def ratio_interval(
    numerator: ArrayLike, denominator: ArrayLike, *, paired: bool = False, seed: int = 0
) -> Interval | None:
    """Return the 95 % CI of median(numerator) / median(denominator), by `percentiles` of a bootstrap.

    `paired`: value k of both is of the same repeat of the interleaved order, and whole repeats are drawn: what slows
    one of them cancels in the ratio. None when either has fewer than 6 values.
    """
    upper = np.asarray(numerator, dtype=float)
    lower = np.asarray(denominator, dtype=float)
    fewest = min(len(upper), len(lower))
    if fewest < FEWEST_LAUNCHES:
        return None
    _, of_lower = _resampled_counts(len(upper), len(lower), paired=paired, seed=seed)
    upper_medians = _numerator_medians(tuple(upper.tolist()), len(lower), paired=paired, seed=seed)
    return percentiles(upper_medians / _medians(lower, of_lower), fewest)


@lru_cache(maxsize=1)  # all points of a sweep have the base's above the line
def _numerator_medians(values: tuple[float, ...], others: int, *, paired: bool, seed: int) -> Values:
    """Return the median of the numerator's `values` in each draw of `ratio_interval`, [draws]."""
    of_values, _ = _resampled_counts(len(values), others, paired=paired, seed=seed)
    medians = _medians(np.array(values), of_values)
    medians.setflags(write=False)
    return medians


@lru_cache(maxsize=8)  # the points of a sweep have equally many launches
def resamples(first: int, second: int, *, paired: bool, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the launches that a bootstrap draws of `first` and of `second` launches, [draws, launches].

    Seeded, so that a report is the same when drawn again. `paired`: the same numbers of both, which are equally many.
    """
    rng = np.random.default_rng(seed)
    of_first = rng.integers(0, first, (RESAMPLES, first))
    of_second = of_first if paired else rng.integers(0, second, (RESAMPLES, second))
    for numbers in (of_first, of_second):
        numbers.setflags(write=False)
    return of_first, of_second


@lru_cache(maxsize=8)
def _resampled_counts(first: int, second: int, *, paired: bool, seed: int = 0) -> tuple[Counts, Counts]:
    """Return how often each of the `resamples` has a launch, of the `first` and of the `second`, [launches, draws]."""
    of_first, of_second = resamples(first, second, paired=paired, seed=seed)
    counts = _counts(of_first, first)
    return counts, counts if paired else _counts(of_second, second)


def _counts(drawn: NDArray[np.int64], launches: int) -> Counts:
    draws = len(drawn)
    places = drawn * draws + np.arange(draws)[:, None]
    counts = np.bincount(places.ravel(), minlength=launches * draws).reshape(launches, draws).astype(np.int32)
    counts.setflags(write=False)
    return counts


@lru_cache(maxsize=2)
def resampled_shares(first: int, second: int, *, paired: bool) -> tuple[Values, Values]:
    """Return which part of each of the `resamples` a launch is, of the `first` and of the `second`, [draws, launches].

    A mean over the drawn launches is a product with these.
    """
    of_first, of_second = _resampled_counts(first, second, paired=paired)
    shares = _shares(of_first)
    return shares, shares if paired else _shares(of_second)


def _shares(counts: Counts) -> Values:
    shares: Values = np.ascontiguousarray(counts.T) / len(counts)
    shares.setflags(write=False)
    return shares


def percentiles(values: Values, launches: int, *, rows: int = 1) -> Interval:
    """Return the 95 % CI that the `values` [draws] of a bootstrap over `launches` make.

    `rows` that are read together share the error (Bonferroni), so that all of them hold with 95 %.

    Percentiles are widened for few launches (Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69, 2015, section 5.2: a bootstrap sample varies too little by the factor (n-1)/n).
    """
    quantile = -ndtri((1 - LEVEL) / 2 / rows) * math.sqrt(launches / (launches - 1))
    tail = 100 * ndtr(-quantile)
    low, high = np.percentile(values, [tail, 100 - tail])
    return Interval(low=float(low), high=float(high))


def _medians(values: Values, counts: Counts) -> Values:
    """Return the median of each draw, which has each of `values` so often as `counts` [values, draws] says.

    From the least value on, those that a draw has so far are counted: sorting the draws takes 20 times as long.
    """
    order = np.argsort(values, kind="stable")
    size = len(values)
    so_far = np.zeros(counts.shape[1], dtype=np.int32)
    lower = np.zeros_like(so_far)  # places in the order of the two middle values
    upper = np.zeros_like(so_far)
    for launch in order:
        so_far += counts[launch]
        lower += so_far <= (size - 1) // 2
        upper += so_far <= size // 2
    ordered = values[order]
    medians: Values = (ordered[lower] + ordered[upper]) / 2
    return medians


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMean:
    """A mean over blocks, and half the width of its interval."""

    mean: float
    reach: float

    @property
    def interval(self) -> Interval:
        """The interval of the mean."""
        return Interval(low=self.mean - self.reach, high=self.mean + self.reach)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRatio:
    """A ratio over blocks: the mean of their log ratios, as a factor, and its interval."""

    ratio: float
    interval: Interval
    blocks: int


def mean_over_blocks(values: Sequence[float] | Values, *, level: float = LEVEL) -> BlockMean | None:
    """Return the mean of the blocks' `values` and the reach of Student's two-sided interval; None for fewer than 3."""
    if len(values) < FEWEST_BLOCKS:
        return None
    reach = _student_reach(float(np.std(values, ddof=1)), len(values), level)
    return BlockMean(mean=float(np.mean(values)), reach=reach)


def _student_reach(deviation: float, blocks: int, level: float = LEVEL) -> float:
    """Return half the width of Student's interval of the mean of so many `blocks`, of that standard `deviation`."""
    return _student_quantile(level, blocks - 1) * deviation / math.sqrt(blocks)


def expected_reach(reach: float, blocks: int, after: int) -> float:
    """Return half the width that an interval of `blocks` blocks is expected to have `after` so many, if it has `reach`.

    It falls with the root of their number, and with the degrees of freedom of the deviation.
    """
    return reach * _student_reach(1.0, after) / _student_reach(1.0, blocks)


def ratio_over_blocks(log_ratios: Sequence[float] | Values, *, level: float = LEVEL) -> BlockRatio | None:
    """Return the ratio of which `log_ratios` are the blocks' logarithms, one each; None for fewer than 3.

    The interval is Student's, of the logarithms; two-sided with probability `level`.
    """
    mean = mean_over_blocks(log_ratios, level=level)
    if mean is None:
        return None
    interval = Interval(low=math.exp(mean.mean - mean.reach), high=math.exp(mean.mean + mean.reach))
    return BlockRatio(ratio=math.exp(mean.mean), interval=interval, blocks=len(log_ratios))


def difference_of_means(first: Values, second: Values, *, level: float = LEVEL) -> BlockMean | None:
    """Return the mean of `first` less that of `second`, unrelated samples, and the reach of Welch's interval.

    None where either has fewer than 3 values.

    Welch, "The Generalization of 'Student's' Problem when Several Different Population Variances are Involved",
    Biometrika 34, 1947: the two may vary by different amounts.
    """
    if min(len(first), len(second)) < FEWEST_BLOCKS:
        return None
    squared_errors = [float(np.var(sample, ddof=1)) / len(sample) for sample in (first, second)]
    squared_error = sum(squared_errors)
    reach = 0.0
    if squared_error > 0:
        inverse_freedom = sum(
            (part / squared_error) ** 2 / (len(sample) - 1)
            for part, sample in zip(squared_errors, (first, second), strict=True)
        )
        reach = _student_quantile(level, 1 / inverse_freedom) * math.sqrt(squared_error)
    return BlockMean(mean=float(np.mean(first) - np.mean(second)), reach=float(reach))


@cache
def _student_quantile(level: float, freedom: float) -> float:
    return float(stdtrit(freedom, 0.5 + level / 2))
