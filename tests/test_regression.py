"""Shifts, noise floors and verdicts, recomputed by hand or against scipy."""

import itertools
import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.regression.baselines import Measurement
from harness.regression.checks import (
    ALIKE,
    CURVE,
    EFFICIENCY,
    IMPROVEMENT,
    INCONCLUSIVE,
    OPEN,
    PASS,
    REGRESSION,
    SKEW,
    TIME,
    WIRE,
    WORSE,
    check_launches,
    compare_measurements,
    samples,
    shift,
    shift_interval,
    tail_count,
)
from harness.report.compare_page import comparison_sentence
from tests.histories import make_measurement, make_summary

WIGGLE = (0.0, 0.01, -0.01, 0.02, -0.02, 0.005, -0.005, 0.015, -0.015, 0.003, -0.003, 0.008)


def measured(
    launches: int, *, slower: float = 1.0, ranks: tuple[int, ...] = (1, 2), sync: float = 0.1, **changes: str
) -> Measurement:
    """Return interleaved launches with a fixed wiggle; those on more than one rank take `slower` times as long."""
    found = []
    for block in range(launches):
        for place, count in enumerate(ranks):
            wiggle = math.exp(WIGGLE[(block + 5 * place) % len(WIGGLE)])
            seconds = 1.0 / count**0.9 * wiggle * (slower if count > 1 else 1.0)
            found.append(make_summary(count, block, seconds, minutes=block * 10 + place, sync=sync))
    return make_measurement(found, **changes)


def verdict(checked, quantity: str, ranks: int | None = 2) -> str:
    """Return the verdict on one row."""
    rows = [
        row for row in checked.rows if row.quantity == quantity and (row.layout.ranks if row.layout else None) == ranks
    ]
    assert len(rows) == 1
    return rows[0].verdict


@pytest.mark.parametrize(
    ("n", "m", "critical"), [(6, 6, 5), (5, 9, 7), (12, 6, 14), (10, 10, 23), (20, 20, 127), (3, 3, None)]
)
def test_the_tail_of_u_is_that_of_the_tables(n: int, m: int, critical: int | None) -> None:
    """The critical values of U for a two-sided test at 5 %, as statistics books print them."""
    assert tail_count(n, m, 0.025) == critical


@pytest.mark.parametrize(("n", "m"), [(4, 5), (6, 6), (3, 8)])
def test_the_tail_of_u_is_that_of_all_orders(n: int, m: int) -> None:
    """Count U over every choice of places for the first sample."""
    values = []
    for places in itertools.combinations(range(n + m), n):
        values.append(sum(place - rank for rank, place in enumerate(places)))
    for tail in (0.001, 0.01, 0.05, 0.2):
        allowed = [u for u in range(n * m + 1) if sum(value <= u for value in values) / len(values) <= tail]
        assert tail_count(n, m, tail) == (max(allowed) if allowed else None)


def test_more_values_than_are_counted_exactly_use_the_normal_tail() -> None:
    exact, normal = tail_count(60, 60, 0.025), tail_count(61, 61, 0.025)
    assert exact is not None and normal is not None and 0 < normal - exact < 80


def test_three_against_three_have_no_interval_at_95_percent() -> None:
    assert shift_interval(np.array([1.0, 2, 3]), np.array([4.0, 5, 6]), 0.95) is None
    assert shift_interval(np.arange(6.0), np.arange(6.0), 0.95) is not None


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=12), st.floats(-5, 5))
@settings(max_examples=50)
def test_the_shift_follows_a_shift(values: list[float], by: float) -> None:
    one = np.array(values)
    moved = shift(one + by, one)
    assert moved == pytest.approx(by, abs=1e-9) or abs(moved - by) <= np.ptp(one)
    interval = shift_interval(one + by, one, 0.95)
    assert interval is not None and interval.low <= moved <= interval.high


def test_shift_interval_covers_at_its_level() -> None:
    random = np.random.default_rng(5)
    inside = 0
    for _ in range(2000):
        interval = shift_interval(random.standard_t(3, 6) + 1, random.standard_t(3, 8), 0.95)
        assert interval is not None
        inside += interval.low <= 1 <= interval.high
    assert 0.94 <= inside / 2000 <= 0.98  # exact, so at least 95 %


def test_efficiency_is_of_launches_of_one_block() -> None:
    """A launch without its partner in the block counts for the time, not for the efficiency."""
    whole = measured(6)
    partial = make_measurement(list(whole.launches[:-1]))
    by_key = {sample.quantity: sample for sample in samples(partial, whole, whole.layouts) if sample.layout}
    assert len(by_key[EFFICIENCY].costs) == 5
    one, two = whole.launches[0], whole.launches[1]
    assert by_key[EFFICIENCY].costs[0] == pytest.approx(math.log(2 * two.seconds / one.seconds))


def test_a_curve_is_the_geometric_mean_of_its_efficiencies() -> None:
    a, b = 0.05, 0.01
    launches = [
        make_summary(p, block, (1 + a * (p - 1) + b * p * (p - 1)) / p * (1 + 0.001 * block), minutes=block)
        for block in range(6)
        for p in (1, 2, 4, 8)
    ]
    measurement = make_measurement(launches)
    found = {sample.quantity: sample.value for sample in samples(measurement, measurement, measurement.layouts)}
    efficiencies = [1 / (1 + a * (p - 1) + b * p * (p - 1)) for p in (2, 4, 8)]
    assert found[CURVE] == pytest.approx(math.prod(efficiencies) ** (1 / 3))


def test_the_same_times_pass() -> None:
    checked = check_launches(measured(12), measured(6, commit="b" * 40), practical=0.05)
    assert checked.verdict == PASS
    assert all(row.verdict == PASS for row in checked.rows)


def test_a_slowdown_on_two_ranks_is_a_regression_there_and_nowhere_else() -> None:
    checked = check_launches(measured(12), measured(6, slower=1.12, commit="b" * 40))
    assert checked.verdict == REGRESSION
    assert verdict(checked, EFFICIENCY) == verdict(checked, TIME) == REGRESSION
    assert verdict(checked, TIME, ranks=1) == PASS
    row = next(row for row in checked.rows if row.quantity == EFFICIENCY)
    assert row.slowdown == pytest.approx(1 - 1 / 1.12, abs=0.02)
    assert row.interval is not None and row.interval.low > 0


def test_a_gain_is_an_improvement() -> None:
    assert check_launches(measured(12), measured(6, slower=0.85, commit="b" * 40)).verdict == IMPROVEMENT


def test_waiting_explains_and_decides_nothing() -> None:
    """The synchronised part of an epoch grew, the epoch itself did not: no build fails for it."""
    checked = check_launches(measured(12), measured(6, sync=0.5, commit="b" * 40), practical=0.05)
    assert verdict(checked, SKEW) == verdict(checked, WIRE) == REGRESSION
    assert checked.verdict == PASS


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_three_launches_are_inconclusive(slower: float) -> None:
    checked = check_launches(measured(12), measured(3, slower=slower, commit="b" * 40))
    assert checked.verdict == INCONCLUSIVE
    assert all(row.interval is None for row in checked.rows)


def test_a_reference_of_three_launches_judges_nothing() -> None:
    checked = check_launches(measured(3), measured(12, slower=2.0, commit="b" * 40))
    assert checked.verdict == INCONCLUSIVE


def test_a_layout_that_was_not_measured_is_no_pass() -> None:
    checked = check_launches(measured(12, ranks=(1, 2, 4)), measured(12, commit="b" * 40))
    assert [layout.ranks for layout in checked.unmeasured] == [4]
    assert checked.verdict == INCONCLUSIVE


def test_noise_as_large_as_the_loss_is_inconclusive_not_a_pass() -> None:
    def noisy(launches: int, seed: int, **changes: str) -> Measurement:
        random = np.random.default_rng(seed)
        return make_measurement(
            [
                make_summary(ranks, block, float(np.exp(random.normal(0, 0.2))), minutes=block)
                for block in range(launches)
                for ranks in (1, 2)
            ],
            **changes,
        )

    checked = check_launches(noisy(12, 1), noisy(6, 2, commit="b" * 40))
    assert checked.verdict == INCONCLUSIVE


def test_comparing_finds_a_slower_side_and_says_so_in_words() -> None:
    first = measured(8)
    found = compare_measurements(first, measured(8, slower=1.2, commit="b" * 40))
    at_two = next(one for one in found if one.quantity == TIME and one.layout and one.layout.ranks == 2)
    assert at_two.verdict == WORSE
    assert at_two.ratio == pytest.approx(1 / 1.2, rel=1e-6)
    words = comparison_sentence("new", "old", found)
    assert words.startswith("On 2 ranks new is slower than old: 0.83 times as fast (95 % interval")
    at_one = next(one for one in found if one.quantity == TIME and one.layout and one.layout.ranks == 1)
    assert at_one.ratio == 1 and at_one.verdict == ALIKE


def test_launches_of_different_sessions_cannot_tell() -> None:
    """On a shared machine sessions differ by more than the slowdowns that matter."""
    by = timedelta(days=1)
    slower = measured(12, slower=1.5, commit="b" * 40)
    moved = [replace(one, started=one.started + by, ended=one.ended + by) for one in slower.launches]
    other_day = replace(slower, launches=tuple(moved))
    checked = check_launches(measured(12), other_day)
    assert checked.apart and checked.verdict == INCONCLUSIVE
    assert {(row.verdict, row.interval) for row in checked.rows} == {(INCONCLUSIVE, None)}
    found = compare_measurements(measured(12), other_day)
    assert {row.verdict for row in found} == {OPEN}
    assert "of different sessions, which cannot tell" in comparison_sentence("new", "old", found)


def test_comparing_few_launches_leaves_it_open() -> None:
    found = compare_measurements(measured(3), measured(3, slower=2.0, commit="b" * 40))
    assert {one.verdict for one in found} == {OPEN}
    assert "6 launches of each are needed" in comparison_sentence("new", "old", found)


def test_other_rows_cannot_be_compared() -> None:
    other = make_measurement([make_summary(4, block, 1.0, minutes=block) for block in range(6)])
    assert compare_measurements(measured(6), other) == ()
    assert (
        comparison_sentence("new", "old", ()) == "new and old share no layout with the same rows: nothing to compare."
    )
