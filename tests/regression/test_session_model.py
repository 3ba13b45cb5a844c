"""Sessions simulated with known levels: how often intervals hold them, and verdicts are right."""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from harness.analysis.sessions import DEFAULT_DEVIATION, SAME_DAY_DEVIATION
from harness.regression.change_threshold import DEFAULT_THRESHOLD
from harness.regression.measurement import as_cost
from harness.regression.session_check import (
    Verdict,
    check_sessions,
    default_scatter,
    judge,
)
from harness.regression.session_model import (
    ScatterSource,
    Sessions,
    difference,
    holm,
    needed,
    scatter_between,
)
from tests.labs.simulated_sessions import SimulatedMachine, simulate_sessions

TRANSFER = "transfer efficiency"


def drawn(random: np.random.Generator, sessions: int, between: float, within: float, blocks: int = 3) -> Sessions:
    return [random.normal(random.normal(0, between), within, blocks) for _ in range(sessions)]


def coverage(baseline: int, between: float, within: float, *, draws: int, blocks: int = 3) -> float:
    """Return how often the interval of one new session holds the true difference, none."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(draws):
        reference = drawn(random, baseline, between, within)
        current = drawn(random, 1, between, within, blocks)
        scatter = scatter_between((reference, current), ScatterSource.COMPARED)
        if scatter is None:  # one session in the baseline: four of other sweeps of the machine
            scatter = scatter_between((drawn(random, 4, between, within),), ScatterSource.MACHINE)
        assert scatter is not None
        interval = difference(reference, current, scatter).interval()
        held += interval.low <= 0 <= interval.high
    return held / draws


@pytest.mark.parametrize("baseline", [1, 3, 8])
@pytest.mark.parametrize(("between", "within"), [(0.0, 0.02), (0.01, 0.06), (0.04, 0.01)])
def test_intervals_hold_the_true_difference(baseline: int, between: float, within: float) -> None:
    assert 0.92 <= coverage(baseline, between, within, draws=1000) <= 0.98


@pytest.mark.campaign
@pytest.mark.slow
def test_intervals_hold_the_true_difference_on_all_machines() -> None:
    for baseline, between, within in itertools.product((1, 3, 8), (0, 0.01, 0.02, 0.04), (0.01, 0.03, 0.06)):
        assert 0.92 <= coverage(baseline, between, within, draws=4000) <= 0.98


@pytest.mark.campaign
@pytest.mark.slow
def test_more_blocks_than_the_baseline_has_do_not_make_intervals_too_short() -> None:
    for baseline, between, within in itertools.product((3, 8), (0, 0.01, 0.04), (0.01, 0.06)):
        assert coverage(baseline, between, within, draws=3000, blocks=12) >= 0.92


@pytest.mark.parametrize("same_day", [False, True])
def test_a_default_holds_where_sessions_differ_by_no_more(same_day: bool) -> None:
    random = np.random.default_rng(2)
    deviations = SAME_DAY_DEVIATION if same_day else DEFAULT_DEVIATION
    for quantity in (TRANSFER, "efficiency"):
        held = 0
        for _ in range(500):
            deviation = deviations[quantity]
            sides = drawn(random, 1, deviation, 0.02), drawn(random, 1, deviation, 0.02)
            interval = difference(*sides, default_scatter(quantity, same_day=same_day)).interval()
            held += interval.low <= 0 <= interval.high
        assert held >= 0.95 * 500


def verdicts(
    machine: SimulatedMachine,
    baseline: int,
    *,
    checks: int,
    losses: dict[str, float] | None = None,
    days_later: float = 100,
) -> tuple[Counter[Verdict], Counter[str]]:
    """Return the verdicts of `checks` of one new session, and how often each quantity is a regression."""
    random = np.random.default_rng(3)
    counted: Counter[Verdict] = Counter()
    named: Counter[str] = Counter()
    for _ in range(checks):
        reference = simulate_sessions(random, machine, baseline)
        current = simulate_sessions(random, machine, 1, losses=losses, first_day=days_later)
        check = check_sessions(reference, current)
        counted[check.verdict] += 1
        named.update({row.quantity for row in check.of(Verdict.REGRESSION)})
    return counted, named


def held(random: np.random.Generator, draw: Callable[[int], Sessions], baseline: int, draws: int) -> float:
    """Return how often the interval of one session of `draw` beside so many others holds no difference."""
    inside = 0
    for _ in range(draws):
        sessions = draw(baseline + 1)
        scatter = scatter_between((sessions[:-1], sessions[-1:]), ScatterSource.COMPARED)
        assert scatter is not None
        interval = difference(sessions[:-1], sessions[-1:], scatter).interval()
        inside += interval.low <= 0 <= interval.high
    return inside / draws


@pytest.mark.parametrize("baseline", [3, 8])
def test_intervals_hold_it_where_the_noise_is_not_normal_or_sessions_have_unequal_blocks(baseline: int) -> None:
    random = np.random.default_rng(2)

    def heavy_tails(sessions: int) -> Sessions:
        return [random.normal(0, 0.005) + 0.02 * random.standard_t(3, 3) for _ in range(sessions)]

    def unequal(sessions: int) -> Sessions:
        earlier = [drawn(random, 1, 0.01, 0.04, blocks=int(random.integers(1, 13)))[0] for _ in range(sessions - 1)]
        return [*earlier, *drawn(random, 1, 0.01, 0.04)]

    for draw in (heavy_tails, unequal):
        assert held(random, draw, baseline, 1000) >= 0.92


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("baseline", [3, 8])
def test_intervals_are_too_short_where_sessions_are_not_independent_as_the_page_says(baseline: int) -> None:
    """Prints the second table of docs/regression.md."""
    random = np.random.default_rng(2)

    def of_one_day(sessions: int) -> Sessions:
        day, new_day = random.normal(0, 0.8**0.5 * 0.02, 2)
        noise = drawn(random, sessions, 0.2**0.5 * 0.02, 0.02)
        return [*(blocks + day for blocks in noise[:-1]), noise[-1] + new_day]

    def disturbed(sessions: int) -> Sessions:
        excess = np.where(random.random(sessions) < 0.1, random.exponential(0.1, sessions), 0.0)
        return [blocks + more for blocks, more in zip(drawn(random, sessions, 0.01, 0.01), excess, strict=True)]

    shares = {draw.__name__: held(random, draw, baseline, 4000) for draw in (of_one_day, disturbed)}
    print(f"{baseline} sessions: {shares}")
    assert 0.7 <= shares["of_one_day"] <= 0.9 and 0.88 <= shares["disturbed"] <= 0.94


@pytest.mark.parametrize(("baseline", "between"), [(1, 0.0), (1, 0.04), (3, 0.02), (8, 0.04)])
def test_the_same_stack_is_no_regression(baseline: int, between: float) -> None:
    counted, _ = verdicts(SimulatedMachine(between=between, within=0.02), baseline, checks=100)
    assert counted[Verdict.REGRESSION] <= 0.05 * 100 + 4  # two standard deviations of the count


def test_one_session_of_the_same_day_finds_a_large_loss_and_calls_no_other_session_a_regression() -> None:
    """The machine of docs/regression.md: its sessions of one day differ by no more."""
    machine = SimulatedMachine(between=0.015, within=0.015, time_between=0.035)
    equal, _ = verdicts(machine, 1, checks=300, days_later=0.1)
    assert equal[Verdict.REGRESSION] <= 0.05 * 300
    slower, named = verdicts(machine, 1, checks=100, losses={TRANSFER: 0.14}, days_later=0.1)
    assert slower[Verdict.REGRESSION] >= 0.9 * 100 and named[TRANSFER] >= 0.9 * 100


def test_a_loss_of_transfer_is_named_where_the_sessions_are_many() -> None:
    machine = SimulatedMachine(between=0.01, within=0.01)
    counted, named = verdicts(machine, 8, checks=60, losses={TRANSFER: 0.1})
    assert counted[Verdict.REGRESSION] >= 0.9 * 60
    assert named[TRANSFER] >= 0.9 * 60 and named["computation scaling"] <= 6 and named["load balance"] <= 6


@pytest.mark.campaign
@pytest.mark.slow
def test_false_regressions_are_rare_on_all_machines() -> None:
    """Prints the table of docs/regression.md."""
    for baseline, between, within in itertools.product((1, 3, 8), (0, 0.01, 0.02, 0.04), (0.01, 0.03, 0.06)):
        machine = SimulatedMachine(between=between, within=within)
        false = verdicts(machine, baseline, checks=400)[0][Verdict.REGRESSION] / 400
        power = [
            verdicts(machine, baseline, checks=100, losses={TRANSFER: loss})[1][TRANSFER] / 100 for loss in (0.05, 0.1)
        ]
        print(f"{baseline} sessions, {between:.0%} between, {within:.0%} within: {false:.1%} false, found {power}")
        assert false <= 0.07


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize(("between", "within"), [(0.0, 0.03), (0.01, 0.01)])
def test_several_looks_make_few_wrong_verdicts(between: float, within: float) -> None:
    """A check that may measure more blocks looks after 3, 6, 12 and 24, and ends with the first verdict."""
    random = np.random.default_rng(5)
    limit = as_cost(DEFAULT_THRESHOLD)
    ended: Counter[tuple[float, Verdict]] = Counter()
    for loss, _ in itertools.product((0.0, limit), range(2000)):
        reference = drawn(random, 8, between, within)
        (blocks,) = drawn(random, 1, between, within, blocks=24)
        verdict = Verdict.CANNOT_TELL
        for look in (3, 6, 12, 24):
            current = [blocks[:look] + loss]
            scatter = scatter_between((reference, current), ScatterSource.COMPARED)
            assert scatter is not None
            (verdict,) = judge([difference(reference, current, scatter)], limit, 0.05 / 4)
            if verdict != Verdict.CANNOT_TELL:
                break
        ended[loss, verdict] += 1
    assert ended[0.0, Verdict.REGRESSION] <= 0.05 * 2000
    assert ended[limit, Verdict.PASS] + ended[limit, Verdict.SMALL] <= 0.06 * 2000


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize(("between", "expected"), [(0.06, 0.14), (0.08, 0.26)])
def test_a_single_session_is_too_few_where_sessions_differ_by_more_than_the_default(
    between: float, expected: float
) -> None:
    """The two numbers below the table of docs/regression.md."""
    machine = SimulatedMachine(between=between, within=0.01)
    against_one, against_three = (verdicts(machine, count, checks=300)[0][Verdict.REGRESSION] / 300 for count in (1, 3))
    assert against_one == pytest.approx(expected, abs=0.05)
    assert against_three <= 0.07


def test_what_is_missing_is_blocks_where_blocks_are_the_noise_and_sessions_where_these_are() -> None:
    random = np.random.default_rng(4)
    noisy_blocks = drawn(random, 8, 0.0001, 0.03, blocks=30), drawn(random, 1, 0.0001, 0.03)
    scatter = scatter_between(noisy_blocks, ScatterSource.COMPARED)
    assert scatter is not None
    assert needed(*noisy_blocks, scatter, 0.03).blocks > 0
    one_each = drawn(random, 1, 0.0, 0.005), drawn(random, 1, 0.0, 0.005)
    lacking = needed(*one_each, default_scatter("parallel efficiency"), 0.03)
    assert lacking.blocks == 0 and lacking.sessions > 0


def test_the_error_is_shared_by_holms_steps() -> None:
    assert holm([0.02, 0.001, 0.024, 0.9], 0.05) == (False, True, False, False)
    assert holm([0.012, 0.001, 0.016, 0.9], 0.05) == (True, True, True, False)
