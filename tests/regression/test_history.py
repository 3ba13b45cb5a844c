"""Histories: a point for every session, the limits of the baseline, changes of the stack and of the level."""

from dataclasses import replace

import numpy as np

from harness.regression.history import History, history_of
from harness.regression.measurement import Measurement
from harness.regression.session_model import level_change
from harness.report.answer import plain
from harness.report.history_answer import history_answer, history_sentence
from harness.report.html_pages import write_page
from tests.labs.histories import make_measurement, make_summary
from tests.labs.page_text import Text
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
    sentence = plain(history_sentence(history))
    assert "MPICH 5.0" in sentence and str(history.sessions[8].started.date()) in sentence


def test_a_level_that_stays_is_no_change() -> None:
    random = np.random.default_rng(1)
    found = sum(level_change(list(random.normal(0, 1, 12)), error=0.05) is not None for _ in range(100))
    assert found <= 11  # 5 on average, three standard deviations more


def test_few_sessions_tell_no_change() -> None:
    assert level_change([0.0, 0.0, 1.0, 1.0], error=0.05) is None
    assert level_change([1.0] * 10, error=0.05) is None


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
