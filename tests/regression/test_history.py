"""Histories: a point for every session, the limits of the baseline, changes of the stack and of the level."""

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.regression.history import History, history_of
from harness.regression.measurement import Measurement
from harness.regression.session_model import level_change, limit_run
from harness.report.answer import plain
from harness.report.history_answer import history_answer, history_details, history_sentence
from harness.report.html_pages import write_page
from tests.labs.histories import make_measurement, make_summary
from tests.labs.page_text import Text
from tests.labs.sentences import says
from tests.labs.simulated_sessions import SimulatedMachine, simulate_sessions

MACHINE = SimulatedMachine(between=0.01, within=0.01, time_between=0.02)


def sessions(count: int, *, first_day: int = 0, **changes: object) -> Measurement:
    random = np.random.default_rng(first_day)
    return replace(
        simulate_sessions(random, MACHINE, count, first_day=first_day, **changes),  # type: ignore[arg-type]
        label=f"day {first_day}",
    )


def transfer_loss() -> History:
    before = sessions(8)
    after = sessions(6, first_day=8, losses={"transfer efficiency": 0.2})
    after = replace(after, software=replace(after.software, mpi_library="MPICH 5.0"))
    return history_of([before, after], replace(before, label="main"))


def test_no_launch_counts_twice() -> None:
    first = sessions(3)
    history = history_of([first, first])
    assert len(history.sessions) == 3
    assert {len(chart.points) for chart in history.charts} == {3}


def test_the_first_session_after_a_change_of_level_is_named_with_what_changed() -> None:
    history = transfer_loss()
    (chart,) = (chart for chart in history.charts if chart.quantity == "transfer efficiency")
    assert chart.change is not None and chart.change.first == 8
    assert [point.session for point in chart.outside] == list(range(8, 14))
    others = {chart.quantity for chart in history.charts if chart.change}
    assert not others & {"load balance", "computation scaling"}
    assert [number for number, session in enumerate(history.sessions) if session.changes] == [8]
    says(plain(history_sentence(history)), "transfer efficiency on 2 ranks", 6, str(history.sessions[8].started.date()))
    says(plain(" ".join(history_details(history))), "MPICH 5.0", "a change of level")


def test_a_level_that_stays_is_no_change() -> None:
    random = np.random.default_rng(1)
    found = sum(level_change(list(random.normal(0, 1, 12)), error=0.05) is not None for _ in range(100))
    assert found <= 11  # 5 on average, three standard deviations more


def test_few_sessions_beyond_the_limits_are_named_though_a_change_of_level_is_not_sure() -> None:
    before = sessions(6)
    after = sessions(4, first_day=6, losses={"transfer efficiency": 0.2})
    history = history_of([before, after], replace(before, label="main"))
    assert not any(chart.change for chart in history.charts)
    (chart,) = (chart for chart in history.charts if chart.quantity == "transfer efficiency")
    assert chart.beyond is not None and (chart.beyond.first, chart.beyond.sessions) == (6, 4)
    assert math.exp(-chart.beyond.step) == pytest.approx(0.8, abs=0.02)
    since = str(history.sessions[6].started.date())
    says(plain(history_sentence(history)), "transfer efficiency on 2 ranks", "all 4 sessions", since)
    says(plain(" ".join(history_details(history))), "on average", "not sure")


@pytest.mark.parametrize(
    ("means", "run"),
    [
        ([0.0, 0.0, 2.0, 2.0], None),
        ([0.0, 2.0, 3.0, 4.0], (1, 3, 3.0)),
        ([0.0, -2.0, 2.0, 2.0, 2.0], (2, 3, 2.0)),
        ([2.0, 2.0, 2.0, 0.0], None),
        ([-2.0, -2.0, -2.0], (0, 3, -2.0)),
        ([], None),
    ],
)
def test_a_run_is_of_three_newest_sessions_at_least_on_one_side(
    means: list[float], run: tuple[int, int, float] | None
) -> None:
    found = limit_run(means, 0.0, 1.0)
    assert (found and (found.first, found.sessions, found.step)) == run


def false_runs(baseline: int, machine: SimulatedMachine, *, draws: int) -> float:
    """Return how often one chart of eight has a run after three new sessions of the same level."""
    random = np.random.default_rng(4)
    found = 0
    for _ in range(draws):
        reference = simulate_sessions(random, machine, baseline)
        new = simulate_sessions(random, machine, 3, first_day=100)
        found += any(chart.beyond for chart in history_of([reference, new], reference).charts)
    return found / draws


def test_a_run_where_the_level_stays_is_rare() -> None:
    assert false_runs(6, MACHINE, draws=40) <= 0.1


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("baseline", [3, 8])
@pytest.mark.parametrize(("between", "within"), [(0.0, 0.03), (0.01, 0.01), (0.03, 0.01)])
def test_false_runs_on_all_machines(baseline: int, between: float, within: float) -> None:
    """Prints what docs/regression.md says of a run."""
    share = false_runs(baseline, SimulatedMachine(between=between, within=within), draws=400)
    print(f"{baseline} sessions, {between:.0%} between, {within:.0%} within: {share:.1%}")
    assert share <= 0.05


def test_few_sessions_tell_no_change() -> None:
    assert level_change([0.0, 0.0, 1.0, 1.0], error=0.05) is None
    assert level_change([1.0] * 10, error=0.05) is None


def test_the_same_sessions_on_the_same_sides_count_as_alike_in_whatever_order_they_are_added() -> None:
    """Of 462 ways to choose 5 of 11 sessions, 2 give a clear change: 5 stand first or last. Its chance is not less."""
    chances = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        change = level_change([*random.normal(0, 0.01, 6), *random.normal(1, 0.01, 5)], error=0.05)
        assert change is not None and change.first == 6
        chances.append(change.chance)
    assert 0.8 * 2 / 462 < np.mean(chances) < 1.2 * 2 / 462


def test_a_change_is_found_at_the_error_of_one_of_very_many_charts() -> None:
    assert level_change([*range(20), *range(1000, 1020)], error=0.05 / 200) is not None


def test_a_baseline_without_the_base_gives_no_limits_of_efficiency() -> None:
    """Its efficiencies are over another base; its times of a step are those of the history."""

    def on(ranks: tuple[int, ...], day: int) -> Measurement:
        launches = [
            make_summary(count, block, (1 + 0.01 * block) / count**0.5, minutes=1440 * day + block)
            for block in range(3)
            for count in ranks
        ]
        return make_measurement(launches)

    baseline = replace(on((2, 4), 0), label="main")
    history = history_of([on((1, 2, 4), 1), baseline], baseline)
    charts = {(chart.quantity, chart.layout.ranks): chart for chart in history.charts}
    assert charts["efficiency", 4].limits is None and charts["efficiency", 4].level is None
    for ranks in (2, 4):
        assert charts["step time", ranks].limits is not None and len(charts["step time", ranks].points) == 2


def test_gaps_of_a_layout_are_gaps(tmp_path) -> None:
    single = make_measurement(
        [make_summary(1, block, 1 + 0.01 * block, minutes=100_000 + block) for block in range(3)], commit="c" * 40
    )
    history = history_of([sessions(2), single])
    on_two = next(chart for chart in history.charts if chart.quantity == "step time" and chart.layout.ranks == 2)
    assert [point.session for point in on_two.points] == [0, 1]
    path = write_page(history_answer(history), tmp_path).page
    page = path.read_text()
    seen = " ".join(plain(str(Text(page))).split())
    assert " ".join(plain(history_sentence(history)).replace("`", "").split()) in seen.replace(" ,", ",")
    assert page.count("<figure") == len(history.charts) == len(list(path.parent.glob("*.csv")))
