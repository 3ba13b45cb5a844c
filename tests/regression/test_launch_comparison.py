"""What launches beside each other show: means, and their ratio with an interval."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from harness.analysis.sessions import EFFICIENCY
from harness.regression.launch_comparison import ALIKE, OPEN, WORSE, compare_measurements
from harness.regression.measurement import CURVE, TIME, Measurement, samples
from harness.report.compare_answer import comparison_sentence
from tests.labs.histories import make_measurement, make_summary
from tests.labs.sentences import says

WIGGLE = (0.0, 0.01, -0.01, 0.02, -0.02, 0.005, -0.005, 0.015, -0.015, 0.003, -0.003, 0.008)


def measured(launches: int, *, slower: float = 1.0, ranks: tuple[int, ...] = (1, 2), **changes: str) -> Measurement:
    """Return interleaved launches with a fixed wiggle; those on more than one rank take `slower` times as long."""
    found = []
    for block in range(launches):
        for place, count in enumerate(ranks):
            wiggle = math.exp(WIGGLE[(block + 5 * place) % len(WIGGLE)])
            seconds = 1.0 / count**0.9 * wiggle * (slower if count > 1 else 1.0)
            found.append(make_summary(count, block, seconds, minutes=block * 10 + place))
    return make_measurement(found, **changes)


def test_efficiency_is_of_launches_of_one_block() -> None:
    """A launch without its partner in the block counts for the time, not for the efficiency."""
    whole = measured(6)
    partial = make_measurement(list(whole.launches[:-1]))
    by_key = {sample.quantity: sample for sample in samples(partial, whole.layouts) if sample.layout}
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
    found = {sample.quantity: sample.value for sample in samples(measurement, measurement.layouts)}
    efficiencies = [1 / (1 + a * (p - 1) + b * p * (p - 1)) for p in (2, 4, 8)]
    assert found[CURVE] == pytest.approx(math.prod(efficiencies) ** (1 / 3))


def test_the_gain_is_the_ratio_of_the_means() -> None:
    first, other = measured(7), measured(8, slower=1.1, commit="b" * 40)
    (at_one, at_two) = (row for row in compare_measurements(first, other) if row.quantity == TIME)
    for row in (at_one, at_two):
        assert row.ratio == pytest.approx(row.values[0] / row.values[1])
        assert row.ratio_interval is not None and row.ratio_interval.low <= row.ratio <= row.ratio_interval.high


def test_comparing_finds_a_slower_side_and_says_so_in_words() -> None:
    first = measured(8)
    found = compare_measurements(first, measured(8, slower=1.2, commit="b" * 40))
    at_two = next(one for one in found if one.quantity == TIME and one.layout and one.layout.ranks == 2)
    assert at_two.verdict == WORSE
    assert at_two.ratio == pytest.approx(1 / 1.2, rel=1e-6)
    words = comparison_sentence("new", "old", found)
    says(words, "ranks", 2, "new", "slower", "old", "0.83", "95 % CI")
    at_one = next(one for one in found if one.quantity == TIME and one.layout and one.layout.ranks == 1)
    assert at_one.ratio == pytest.approx(1) and at_one.verdict == ALIKE


def test_launches_of_different_sessions_cannot_tell() -> None:
    """On a shared machine sessions differ by more than the slowdowns that matter."""
    by = timedelta(days=1)
    slower = measured(12, slower=1.5, commit="b" * 40)
    moved = [replace(one, started=one.started + by, ended=one.ended + by) for one in slower.launches]
    other_day = replace(slower, launches=tuple(moved))
    found = compare_measurements(measured(12), other_day)
    assert {row.verdict for row in found} == {OPEN}
    sentence = comparison_sentence("new", "old", found)
    assert "sessions" in sentence and "slower" not in sentence


def test_comparing_few_launches_leaves_it_open() -> None:
    found = compare_measurements(measured(2), measured(2, slower=2.0, commit="b" * 40))
    assert {one.verdict for one in found} == {OPEN}
    sentence = comparison_sentence("new", "old", found)
    says(sentence, "ranks", "new", "old", 3)
    assert "sessions" not in sentence and "interval" not in sentence


def test_other_rows_cannot_be_compared() -> None:
    other = make_measurement([make_summary(4, block, 1.0, minutes=block) for block in range(6)])
    assert compare_measurements(measured(6), other) == ()
    says(
        comparison_sentence("new", "old", ()),
        "the same rows: nothing",
        "new",
        "old",
        "layout",
        "rows",
    )
