"""Change points and histories: found where they were made, not where there is noise only."""

import math

import numpy as np
import pytest

from harness.analysis.confidence_intervals import best_split, change_points
from harness.regression.cost_samples import EFFICIENCY, TIME
from harness.regression.history import history_of
from harness.regression.measurement import Measurement
from harness.report.history_page import change_sentence, history_answer, history_sentence
from harness.report.publish import write_page
from tests.labs.histories import MachineNoise, make_measurement, make_summary, real_rests, simulate


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


def test_a_step_is_found_where_it_is() -> None:
    random = np.random.default_rng(1)
    values = np.concatenate([random.normal(0, 1, 20), random.normal(4, 1, 15), random.normal(0, 1, 20)])
    assert change_points(values) == pytest.approx((20, 35), abs=1)


def test_noise_alone_is_seldom_split() -> None:
    random = np.random.default_rng(2)
    assert sum(bool(change_points(random.standard_t(3, 24))) for _ in range(100)) <= 10  # 5 are expected


def test_histories_without_a_change_have_none_beyond_the_noise() -> None:
    assert sum(bool(history_of(commits([0.0] * 4, seed=seed)).changes) for seed in range(40)) <= 1


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 7, [2.0] * 30])
def test_short_and_constant_series_have_no_change(values: list[float]) -> None:
    assert change_points(np.array(values)) == ()


def test_the_gain_is_the_energy_distance() -> None:
    """Every split of a short series by the definition, with loops."""
    values = np.array([0.0, 1, 0.5, 0.2, 5, 6, 5.5, 5.2, 5.1])

    def energy(before: np.ndarray, after: np.ndarray) -> float:
        n, m = len(before), len(after)
        between = sum(abs(x - y) for x in before for y in after) * 2 / (n * m)
        within = [
            sum(abs(x - y) for x in part for y in part) / (len(part) * (len(part) - 1)) for part in (before, after)
        ]
        return n * m / (n + m) * (between - sum(within))

    gains = {split: energy(values[:split], values[split:]) for split in range(2, 8)}
    best = max(gains, key=lambda split: gains[split])
    assert best_split(np.abs(np.subtract.outer(values, values)), 2) == (best, pytest.approx(gains[best]))


def test_a_history_names_the_commit_at_which_it_changed() -> None:
    found = history_of(commits([0, 0.15], sessions=2))
    assert len(found.states) == 2
    efficiency = [change for change in found.changes if change.series.quantity == EFFICIENCY]
    assert [change.state for change in efficiency] == [1]
    assert efficiency[0].slowdown == pytest.approx(0.15, abs=0.04)
    assert not [change for change in found.changes if change.series.layout.ranks == 1]
    words = change_sentence(found, efficiency[0])
    assert words.startswith("Efficiency on 2\u00a0ranks: ")
    assert words.endswith(f"at {found.states[1].state} after {found.states[0].state}")


def test_one_commit_measured_twice_is_one_state_and_no_launch_counts_twice() -> None:
    (first,) = commits([0.0])
    found = history_of([first, first])
    assert len(found.states) == 1
    times = [series for series in found.series if series.quantity == TIME]
    assert [len(series.costs) for series in times] == [6, 6]
    assert found.changes == ()


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
    assert history_sentence(found) in page
    assert page.count("<figure") == len(found.series)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert len(list(path.parent.glob("*.csv"))) == len(found.series) == 3
