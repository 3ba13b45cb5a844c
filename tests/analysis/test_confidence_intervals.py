"""Intervals: what they cover in simulation, how blocks are paired, which launches stand out."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, ttest_ind

from harness.analysis import confidence_intervals
from harness.analysis.confidence_intervals import (
    Interval,
    difference_of_means,
    median_interval,
    percentiles,
    ratio_interval,
    resamples,
)
from harness.analysis.launch_frames import between, outliers
from harness.analysis.scaling import scale
from harness.schema.record import RunRecord
from tests.labs.factories import (
    launch_frame,
    make_launch,
    make_point,
    make_run,
)

POSITIVE = st.floats(min_value=1e-3, max_value=1e3)

TRIALS = 1500
Pairs = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def lognormal(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.lognormal(0, 0.03, n), rng.lognormal(0, 0.03, n)


def drifting(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Both points slow down together by 4 % over the sweep."""
    drift = np.linspace(0, 0.04, n)
    return np.exp(drift + rng.normal(0, 0.02, n)), np.exp(drift + rng.normal(0, 0.02, n))


def heavy(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.exp(0.02 * rng.standard_t(2.5, n)), np.exp(0.02 * rng.standard_t(2.5, n))


@pytest.mark.parametrize(
    ("sample", "launches"), [(lognormal, 6), (drifting, 6), (heavy, 6), (lognormal, 10), (lognormal, 20)]
)
def test_nominal_95_percent_of_a_ratio_covers_93_to_97(
    sample: Pairs, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confidence_intervals, "RESAMPLES", 699)  # the error of a percentile, not its place
    rng = np.random.default_rng(launches)
    covered = 0
    for trial in range(TRIALS):
        interval = ratio_interval(*sample(rng, launches), paired=True, seed=trial)
        assert interval is not None
        covered += interval.low <= 1 <= interval.high
    assert 0.93 <= covered / TRIALS <= 0.97


@pytest.mark.parametrize("launches", [6, 9, 20])
def test_interval_of_a_median_covers_what_the_binomial_says(launches: int) -> None:
    ranks = median_interval(np.arange(launches) + 1)
    assert ranks is not None
    exact = 1 - 2 * binom.cdf(ranks.low - 1, launches, 0.5)
    assert 0.95 <= exact <= 0.97
    values = np.random.default_rng(launches).exponential(1, (4000, launches))
    found = [median_interval(row) for row in values]
    covered = np.mean([i is not None and i.low <= np.log(2) <= i.high for i in found])
    assert covered == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 4000))


def test_rows_that_share_the_error_rarely_name_a_cause_of_nothing() -> None:
    """Nine causes that cost nothing, over 12 launches: alone one of them seems to cost in most tables, together few."""
    drawn, _ = resamples(12, 12, paired=True)
    costs = np.random.default_rng(7).normal(size=(60, 9, 12))

    def named(table: np.ndarray, rows: int) -> bool:
        found = [percentiles(np.median(cause[drawn[:1999]], axis=1), 12, rows=rows) for cause in table]
        return any(one.low > 0 or one.high < 0 for one in found)

    assert np.mean([named(table, 9) for table in costs]) < 0.12
    assert np.mean([named(table, 1) for table in costs]) > 0.25


@pytest.mark.parametrize(("first", "second", "paired"), [(6, 6, True), (7, 7, True), (6, 9, False), (13, 8, False)])
def test_a_ratio_of_medians_has_the_bounds_of_its_draws(first: int, second: int, paired: bool) -> None:
    rng = np.random.default_rng(first)
    upper, lower = (np.round(rng.uniform(1, 2, size), 1) for size in (first, second))  # some values are equal
    of_upper, of_lower = resamples(first, second, paired=paired)
    ratios = np.median(upper[of_upper], axis=1) / np.median(lower[of_lower], axis=1)
    assert ratio_interval(upper, lower, paired=paired) == percentiles(ratios, min(first, second))


def test_what_slows_whole_blocks_cancels_in_a_paired_ratio() -> None:
    rng = np.random.default_rng(3)
    block = rng.uniform(1, 2, 8)
    one, two = 2 * block * rng.uniform(0.99, 1.01, 8), block * rng.uniform(0.99, 1.01, 8)
    paired, apart = ratio_interval(one, two, paired=True), ratio_interval(one, two)
    assert paired is not None and apart is not None
    assert paired.low <= 2 <= paired.high
    assert (paired.high - paired.low) < (apart.high - apart.low) / 3


@given(st.lists(POSITIVE, min_size=3, max_size=12), st.lists(POSITIVE, min_size=3, max_size=12))
def test_the_difference_of_unrelated_samples_is_welchs(first: list[float], second: list[float]) -> None:
    difference = difference_of_means(np.array(first), np.array(second))
    assert difference is not None and difference.mean == pytest.approx(np.mean(first) - np.mean(second))
    if min(np.std(values) / np.mean(values) for values in (first, second)) > 1e-6:  # else scipy warns
        expected = ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
        assert difference.interval.low == pytest.approx(expected.low)
        assert difference.interval.high == pytest.approx(expected.high)


def test_few_unrelated_values_have_no_difference_and_equal_ones_no_width() -> None:
    equal = np.full(3, 2.0)
    assert difference_of_means(equal[:2], equal) is None and difference_of_means(equal, equal[:2]) is None
    difference = difference_of_means(equal, equal / 2)
    assert difference is not None and (difference.mean, difference.reach) == (1.0, 0.0)


def test_the_table_pairs_by_repeat_and_leaves_strangers_unpaired() -> None:
    slow = (1.0, 1.5, 1.2, 2.0, 1.7, 1.1)
    blocks = [make_launch(ranks, k, t / ranks) for ranks in (1, 2) for k, t in enumerate(slow)]
    scaling = scale(launch_frame(blocks))
    assert scaling is not None and scaling.points[1].speedup_interval is not None
    paired = scaling.points[1].speedup_interval
    assert (paired.low, paired.high) == pytest.approx((2.0, 2.0)) and scaling.points[1].blocks == 6
    moved = [make_launch(1, k, t) for k, t in enumerate(slow)]
    moved += [make_launch(2, 10 + k, t / 2) for k, t in enumerate(slow)]  # minutes later, in the same sitting
    apart = scale(launch_frame(moved))
    assert apart is not None and apart.points[1].speedup_interval is not None
    assert apart.points[1].speedup_interval.low < 1.5 < 2.5 < apart.points[1].speedup_interval.high
    assert apart.points[1].blocks == 0


def at(run: RunRecord, day: int) -> RunRecord:
    return replace(run, started=run.started + timedelta(days=day), ended=run.ended + timedelta(days=day))


def test_a_layout_added_a_week_later_has_a_speedup_without_an_interval() -> None:
    """Between sittings the machine changes by 2 %: no launch's scatter tells that, so no interval can cover it."""
    rng = np.random.default_rng(14)
    covered = told = 0
    for _ in range(8):
        shift = np.exp(rng.normal(0, 0.02, 2))
        first = [make_launch(1, k, float(shift[0] * rng.lognormal(0, 0.01))) for k in range(6)]
        added = [at(make_launch(2, k, float(shift[1] / 2 * rng.lognormal(0, 0.01))), 7) for k in range(6)]
        scaling = scale(launch_frame([*first, *added]))
        assert scaling is not None and scaling.points[1].speedup is not None
        interval = scaling.points[1].speedup_interval
        told += interval is not None
        covered += interval is not None and interval.low <= 2 <= interval.high
        assert scaling.points[1].other_session and any("session" in flag for flag in scaling.points[1].flags)
    assert covered == told == 0


@pytest.mark.slow
def test_whole_blocks_of_several_sittings_cover_the_speedup() -> None:
    rng = np.random.default_rng(15)
    covered = 0
    for _ in range(80):
        runs = []
        for day in range(3):
            shift = np.exp(rng.normal(0, 0.02))
            for k in range(3 * day, 3 * day + 3):
                times = shift * rng.lognormal(0, 0.01, 2) / (1, 2)
                runs += [at(make_launch(ranks, k, float(t)), day) for ranks, t in zip((1, 2), times, strict=True)]
        lost = [run for run in runs if (run.point.repeat, run.point.layout.ranks) != (4, 2)]
        scaling = scale(launch_frame(lost))  # one launch is missing: what is left of its block tells nothing
        assert scaling is not None and scaling.points[1].launches == 8
        interval = scaling.points[1].speedup_interval
        assert interval is not None
        covered += interval.low <= 2 <= interval.high
    assert covered >= 0.9 * 80


def test_spread_between_launches_and_within_them_is_told_apart() -> None:
    steady = [make_run(make_point(1, k), seconds=[[t]] * 4) for k, t in enumerate((1.0, 2.0, 3.0))]
    point = scale(launch_frame(steady)).base  # type: ignore[union-attr]
    assert point.between == pytest.approx(0.5) and point.within == 0
    restless = [make_run(make_point(1, k), seconds=[[1.0], [2.0], [3.0]]) for k in range(3)]
    point = scale(launch_frame(restless)).base  # type: ignore[union-attr]
    assert point.between == 0 and point.within == pytest.approx(0.5)
    single = scale(launch_frame([make_run(seconds=[[1.0]])])).base  # type: ignore[union-attr]
    assert single.between is None and single.within is None


def test_step_time_is_the_epoch_over_its_steps() -> None:
    runs = [make_launch(1, k, t) for k, t in enumerate((1.0, 1.1, 1.2, 1.3, 1.4, 1.5))]  # 6,400 rows, 64 a step
    point = scale(launch_frame(runs)).base  # type: ignore[union-attr]
    assert point.step_seconds == pytest.approx(point.seconds / 100)
    assert point.step_interval is not None and point.seconds_interval is not None
    times = point.seconds_interval
    assert (point.step_interval.low, point.step_interval.high) == pytest.approx((times.low / 100, times.high / 100))


def test_outliers_are_marked_and_count_all_the_same() -> None:
    times = (1.0, 1.01, 1.02, 0.99, 1.0, 3.0)
    launches = launch_frame([make_launch(1, k, t) for k, t in enumerate(times)])
    assert list(launches["outlier"]) == [False] * 5 + [True]
    point = scale(launches).base  # type: ignore[union-attr]
    assert point.outliers == 1 and point.launches == 6
    assert point.seconds == pytest.approx(np.exp(np.log(times).mean()))
    busy = make_launch(1, 6, 99.0, invalid=("busy",))
    assert list(launch_frame([make_launch(1, k, 1.0) for k in range(6)] + [busy])["outlier"]) == [False] * 7


@given(st.lists(st.floats(0.1, 10), min_size=0, max_size=4))
def test_few_launches_have_no_outliers(values: list[float]) -> None:
    assert not outliers(values).any()
    assert (between(values) is None) == (len(values) < 2)


@pytest.mark.parametrize(
    ("launches", "ranks"), [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (20, (6, 15)), (0, None)]
)
def test_the_order_statistics_of_a_median_are_the_exact_ones(launches: int, ranks: tuple[int, int] | None) -> None:
    interval = median_interval(np.arange(launches, 0, -1))
    assert (interval and (interval.low, interval.high)) == ranks


def test_median_interval_takes_the_order_statistics() -> None:
    interval = median_interval([10.0, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    assert interval is not None and (interval.low, interval.high) == (2, 9)
    assert median_interval([1, 2, 3, 4, 5]) is None


@given(st.lists(POSITIVE, min_size=6, max_size=40))
def test_median_interval_contains_the_median(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval is not None and interval.low <= np.median(values) <= interval.high


@settings(max_examples=20)
@given(st.lists(POSITIVE, min_size=6, max_size=12), st.lists(POSITIVE, min_size=6, max_size=12))
def test_ratio_interval_lies_within_the_extremes(top: list[float], bottom: list[float]) -> None:
    interval = ratio_interval(top, bottom)
    assert interval is not None
    assert min(top) / max(bottom) * (1 - 1e-9) <= interval.low <= interval.high <= max(top) / min(bottom) * (1 + 1e-9)
    assert ratio_interval(top, bottom) == interval  # seeded
    assert ratio_interval(top[:5], bottom) is None


def test_the_reach_of_a_ratio_is_half_the_width_of_its_logarithm() -> None:
    assert Interval(low=1.9, high=1.9 * math.exp(0.02)).log_reach == pytest.approx(0.01)
