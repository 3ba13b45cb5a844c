"""Shifts, noise floors and verdicts, recomputed by hand or against scipy."""

import itertools
import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.stats import SESSION_SPREAD
from harness.regression.checks import ALIKE, OPEN, WORSE, check_sessions, compare_measurements
from harness.regression.measurements import group_by_code
from harness.regression.noise import detectable_slowdowns, learn_noise
from harness.regression.quantities import (
    COHERENCY,
    CONTENTION,
    CURVE,
    EFFICIENCY,
    SKEW,
    TIME,
    WIRE,
    SampleSize,
    samples,
)
from harness.regression.significance import (
    IMPROVEMENT,
    INCONCLUSIVE,
    PASS,
    REGRESSION,
    needed_values,
    shift,
    shift_interval,
    tail_count,
)
from harness.report.compare_page import comparison_sentence
from harness.schema.measurement import Measurement
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


def later(measurement: Measurement, days: int) -> Measurement:
    """Return launches of another day, as fast as those of `measurement`."""
    by = timedelta(days=days)
    moved = [replace(one, started=one.started + by, ended=one.ended + by) for one in measurement.launches]
    return replace(measurement, launches=tuple(moved))


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
    assert needed_values(6, 0.95) == 6
    assert needed_values(6, 1 - 0.05 / 200) is not None and needed_values(6, 1 - 0.05 / 200) > 6


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


GROUP = np.array([0.0, 0.01, -0.01, 0.02, -0.02, 0.0])


def test_noise_is_learned_within_commits_and_not_between_them() -> None:
    near, far = learn_noise([[GROUP], [GROUP]]), learn_noise([[GROUP], [GROUP + 5]])
    assert near is not None and far is not None
    assert far.deviation == pytest.approx(near.deviation)
    assert far.between == near.between == SESSION_SPREAD
    assert near.freedom == far.freedom == 10
    assert learn_noise([[np.array([1.0])]]) is None


def test_what_lies_between_sessions_is_measured_from_five_on_and_assumed_before() -> None:
    offsets = (0.0, 0.05, -0.05, 0.05, -0.05)
    few, five = learn_noise([[GROUP + by for by in offsets[:2]]]), learn_noise([[GROUP + by for by in offsets]])
    calm = learn_noise([[GROUP + by / 100 for by in offsets]])
    assert few is not None and five is not None and calm is not None
    assert few.assumed and few.between == pytest.approx(0.05 / 2**0.5)  # larger than what would be assumed
    assert not five.assumed and five.between == pytest.approx(np.std(offsets, ddof=1))
    assert calm.between < SESSION_SPREAD / 10
    one, two = (SampleSize(launches=12, sessions=count) for count in (1, 2))
    assert five.floor(two, two, 3) < five.floor(one, one, 3)
    assert calm.floor(one, one, 3) < learn_noise([[GROUP]]).floor(one, one, 3)  # type: ignore[union-attr]


def test_a_wild_launch_does_not_hide_a_slowdown() -> None:
    calm = np.array(WIGGLE)
    wild = calm.copy()
    wild[3] = 0.8
    one, two = learn_noise([[calm]]), learn_noise([[wild]])
    assert one is not None and two is not None
    assert two.deviation < 2 * one.deviation
    assert np.std(wild, ddof=1) > 15 * np.std(calm, ddof=1)


def test_drift_raises_the_floor() -> None:
    random = np.random.default_rng(3)
    steady = random.normal(0, 0.01, 40)
    drifting = np.cumsum(random.normal(0, 0.005, 40))
    one, two = learn_noise([[steady]]), learn_noise([[drifting]])
    assert one is not None and two is not None
    assert one.inflation < 1.6 < 3 < two.inflation


def test_the_floor_falls_with_launches_and_rises_with_comparisons() -> None:
    noise = learn_noise([[np.array(WIGGLE)]])
    assert noise is not None
    six, twelve = (SampleSize(launches=count, sessions=1) for count in (6, 12))
    assert noise.floor(twelve, twelve, 3) < noise.floor(six, twelve, 3) < noise.floor(six, twelve, 30)


def test_efficiency_is_of_launches_of_one_block() -> None:
    """A launch without its partner in the block counts for the time, not for the efficiency."""
    whole = measured(6)
    partial = make_measurement(list(whole.launches[:-1]))
    by_key = {sample.quantity: sample for sample in samples(partial, whole, whole.layouts) if sample.layout}
    assert len(by_key[EFFICIENCY].costs) == 5
    one, two = whole.launches[0], whole.launches[1]
    assert by_key[EFFICIENCY].costs[0] == pytest.approx(math.log(2 * two.seconds / one.seconds))


def test_a_curve_of_four_points_has_usl_terms_that_are_recovered() -> None:
    a, b = 0.05, 0.01
    launches = [
        make_summary(p, block, (1 + a * (p - 1) + b * p * (p - 1)) / p * (1 + 0.001 * block), minutes=block)
        for block in range(6)
        for p in (1, 2, 4, 8)
    ]
    measurement = make_measurement(launches)
    found = {sample.quantity: sample.value for sample in samples(measurement, measurement, measurement.layouts)}
    assert found[CONTENTION] == pytest.approx(a)
    assert found[COHERENCY] == pytest.approx(b)
    efficiencies = [1 / (1 + a * (p - 1) + b * p * (p - 1)) for p in (2, 4, 8)]
    assert found[CURVE] == pytest.approx(math.prod(efficiencies) ** (1 / 3))


def test_the_same_times_pass() -> None:
    checked = check_sessions(measured(12), measured(6, commit="b" * 40))
    assert checked.verdict == PASS
    assert all(row.verdict == PASS for row in checked.rows)


def test_a_slowdown_on_two_ranks_is_a_regression_there_and_nowhere_else() -> None:
    checked = check_sessions(measured(12), measured(6, slower=1.12, commit="b" * 40))
    assert checked.verdict == REGRESSION
    assert verdict(checked, EFFICIENCY) == verdict(checked, TIME) == REGRESSION
    assert verdict(checked, TIME, ranks=1) == PASS
    row = next(row for row in checked.rows if row.quantity == EFFICIENCY)
    assert row.slowdown == pytest.approx(1 - 1 / 1.12, abs=0.02)
    assert row.interval is not None and row.floor is not None
    assert row.interval.low > 0 and row.slowdown > row.floor


def test_a_gain_is_an_improvement() -> None:
    assert check_sessions(measured(12), measured(6, slower=0.85, commit="b" * 40)).verdict == IMPROVEMENT


def test_waiting_explains_and_decides_nothing() -> None:
    """The synchronised part of an epoch grew, the epoch itself did not: no build fails for it."""
    checked = check_sessions(measured(12), measured(6, sync=0.5, commit="b" * 40))
    assert verdict(checked, SKEW) == verdict(checked, WIRE) == REGRESSION
    assert checked.verdict == PASS


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_three_launches_are_inconclusive_and_say_how_many_more(slower: float) -> None:
    checked = check_sessions(measured(12), measured(3, slower=slower, commit="b" * 40))
    assert checked.verdict == INCONCLUSIVE
    assert checked.more == 3
    assert all(row.interval is None for row in checked.rows)


def test_a_reference_of_three_launches_judges_nothing() -> None:
    checked = check_sessions(measured(3), measured(12, slower=2.0, commit="b" * 40))
    assert checked.verdict == INCONCLUSIVE
    assert checked.more is None


def test_a_layout_that_was_not_measured_is_no_pass() -> None:
    checked = check_sessions(measured(12, ranks=(1, 2, 4)), measured(12, commit="b" * 40))
    assert [layout.ranks for layout in checked.unmeasured] == [4]
    assert checked.verdict == INCONCLUSIVE
    assert checked.more == 6


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

    checked = check_sessions(noisy(12, 1), noisy(6, 2, commit="b" * 40))
    assert checked.verdict == INCONCLUSIVE


def test_noise_of_the_same_commit_joins_its_side_and_own_launches_count_once() -> None:
    reference, current = measured(12), measured(6, commit="b" * 40)
    assert check_sessions(reference, current, [reference]).rows == check_sessions(reference, current).rows
    more = check_sessions(
        reference, current, [later(reference, days=9)]
    )  # twice the launches, two sessions: a surer floor
    floor = {row.quantity: row.floor for row in more.rows}
    alone = {row.quantity: row.floor for row in check_sessions(reference, current).rows}
    assert floor[EFFICIENCY] < alone[EFFICIENCY]


def test_more_looks_need_more_evidence() -> None:
    once, thrice = (check_sessions(measured(12), measured(6, commit="b" * 40), looks=looks) for looks in (1, 3))
    for one, three in zip(once.rows, thrice.rows, strict=True):
        assert one.interval is not None and three.interval is not None
        assert three.interval.low <= one.interval.low and one.interval.high <= three.interval.high
        assert one.floor < three.floor


def test_floors_say_which_losses_can_be_seen() -> None:
    found = {
        (floor.quantity, floor.layout.ranks): floor for floor in detectable_slowdowns(measured(12)) if floor.layout
    }
    efficiency = found[EFFICIENCY, 2]
    assert efficiency.launches == 12
    assert efficiency.launches_for[0.10] == 6
    assert 0 < efficiency.noise.deviation < efficiency.floor < 0.10


def test_comparing_finds_a_slower_side_and_says_so_in_words() -> None:
    first = measured(8)
    found = compare_measurements(first, measured(8, slower=1.2, commit="b" * 40))
    at_two = next(one for one in found if one.quantity == TIME and one.layout and one.layout.ranks == 2)
    assert at_two.verdict == WORSE
    assert at_two.ratio == pytest.approx(1 / 1.2, rel=1e-6)
    words = comparison_sentence("new", "old", found)
    assert words.startswith("On 2 ranks new is slower than old: 0.83 times as fast (95 % interval")
    at_one = next(one for one in found if one.quantity == TIME and one.layout and one.layout.ranks == 1)
    assert at_one.ratio == 1 and at_one.verdict == OPEN  # of one session each, which may differ by 2 %
    known = [later(first, days=day) for day in range(1, 9)]
    found = [one.verdict for one in compare_measurements(first, later(first, days=9), group_by_code(known))]
    assert set(found) == {ALIKE}


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
