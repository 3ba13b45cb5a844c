"""Histories: the states of the code, and a series of every quantity through them."""

import math

import numpy as np

from harness.regression.history import history_of
from harness.regression.measurement import TIME, Measurement
from harness.report.answer import plain
from harness.report.history_answer import history_answer, history_sentence
from harness.report.html_pages import write_page
from tests.labs.histories import MachineNoise, make_measurement, make_summary, real_rests, simulate
from tests.labs.page_text import Text


def commits(losses: list[float], *, seed: int = 0, blocks: int = 6, sessions: int = 1) -> list[Measurement]:
    """Return so many sessions of each of `losses` of efficiency, a day apart, with the noise of real launches."""
    random = np.random.default_rng(seed)
    machine = MachineNoise(rests=real_rests(), drift=0.005, burst=0.0)
    return [
        simulate(random, machine, blocks=blocks, loss=losses[day // sessions], commit=commit(day // sessions), day=day)
        for day in range(len(losses) * sessions)
    ]


def commit(number: int) -> str:
    return f"{number:040x}"[::-1]


def test_one_commit_measured_twice_is_one_state_and_no_launch_counts_twice() -> None:
    (first,) = commits([0.0])
    found = history_of([first, first])
    assert len(found.states) == 1
    times = [series for series in found.series if series.quantity == TIME]
    assert [len(series.costs) for series in times] == [6, 6]


def test_gaps_of_a_layout_are_gaps(tmp_path) -> None:
    both = commits([0.0, 0.0])
    single = make_measurement(
        [make_summary(1, block, math.exp(0.01 * (block % 3)), minutes=10_000 + block) for block in range(6)],
        commit="c" * 40,
    )
    found = history_of([*both, single])
    on_two = next(series for series in found.series if series.quantity == TIME and series.layout.ranks == 2)
    assert set(on_two.states) == {0, 1}
    path = write_page(history_answer(found), tmp_path).page
    page = path.read_text()
    seen = " ".join(plain(str(Text(page))).split())
    assert " ".join(plain(history_sentence(found)).replace("`", "").split()) in seen.replace(" ,", ",")
    assert page.count("<figure") == len(found.series)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert len(list(path.parent.glob("*.csv"))) == len(found.series) == 3
