"""Change points and histories: found where they were made, not where there is noise only."""

import math

import numpy as np
import pytest

from harness.regression.baselines import Measurement
from harness.regression.checks import EFFICIENCY, TIME
from harness.regression.history import best_split, change_points, history_of, lasting_chance
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


def two_speeds(random: np.random.Generator, keeps: float, offset: float, order: list[int]) -> list[Measurement]:
    """Return a session of 6 launches of the commit `order[n]` on day n; a speed is kept with the chance `keeps`.

    The chance is from session to session in one half of the histories, in the other from launch to launch.
    """
    slow, by_launch, found = random.random() < 0.5, random.random() < 0.5, []
    for day, number in enumerate(order):
        slow ^= random.random() > keeps
        launches = []
        for block in range(6):
            slow ^= by_launch and random.random() > keeps
            seconds = math.exp(offset * slow + random.normal(0, 0.005))
            launches.append(make_summary(1, block, seconds, minutes=1440 * day + block))
        found.append(make_measurement(launches, commit=commit(number)))
    return found


@pytest.mark.parametrize(("keeps", "offset"), [(0.8, 0.03), (0.8, 0.15), (0.95, 0.05), (0.95, 0.3)])
def test_speeds_that_last_are_seldom_blamed_on_a_commit(keeps: float, offset: float) -> None:
    random = np.random.default_rng(7)
    orders = [[0, 1, 2, 3], [0] * 3 + [1] * 3, [0] * 5 + [1] * 5, [0, 1] * 3]
    found = [history_of(two_speeds(random, keeps, offset, orders[n % 4])) for n in range(20)]
    assert sum(any(change.blamed for change in one.changes) for one in found) <= 1
    assert any(change.doubt for one in found for change in one.changes)  # steps there are, and they are shown


def test_a_step_is_found_where_it_is() -> None:
    random = np.random.default_rng(1)
    values = np.concatenate([random.normal(0, 1, 20), random.normal(4, 1, 15), random.normal(0, 1, 20)])
    assert change_points(values) == pytest.approx((20, 35), abs=1)


def test_noise_alone_is_seldom_split() -> None:
    random = np.random.default_rng(2)
    assert sum(bool(change_points(random.standard_t(3, 24))) for _ in range(100)) <= 10  # 5 are expected


def test_histories_without_a_change_have_none_beyond_the_noise() -> None:
    assert sum(bool(history_of(commits([0.0] * 4, seed=seed)).changes) for seed in range(40)) <= 1


def test_one_session_of_each_commit_cannot_tell() -> None:
    found = history_of(commits([0, 0, 0.15, 0.15]))
    assert found.changes and not any(change.blamed for change in found.changes)
    words = change_sentence(found, found.changes[0])
    assert "cannot tell whether by the code, for 1 and 1 sessions of the two commits are too few" in words
    assert "0 by a commit" in history_sentence(found)


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


def test_a_history_names_the_commit_that_lost() -> None:
    found = history_of(commits([0, 0.15], sessions=5))
    assert len(found.states) == 2
    efficiency = [change for change in found.changes if change.series.quantity == EFFICIENCY]
    assert [(change.state, change.blamed) for change in efficiency] == [(1, True)]
    assert efficiency[0].slowdown == pytest.approx(0.15, abs=0.04)
    assert not [change for change in found.changes if change.series.layout.ranks == 1]
    words = change_sentence(found, efficiency[0])
    assert words.startswith("Efficiency on 2\u00a0ranks: ")
    assert words.endswith(f"at {found.states[1].state} after {found.states[0].state}")


def test_sessions_of_two_commits_in_turn_tell_more_than_as_many_one_after_the_other() -> None:
    """A speed of the machine that lasts does not follow the commits back and forth."""
    assert lasting_chance([False] * 3 + [True] * 3) > 0.05 > lasting_chance([False, True] * 3)
    assert lasting_chance([False] * 5 + [True] * 5) == pytest.approx((8 / 9) ** 8 / 9)


def test_a_step_inside_a_commit_is_not_blamed_on_the_code() -> None:
    seconds = [1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.99, 1.3, 1.31, 1.29, 1.3, 1.32, 1.28, 1.3, 1.31]
    launches = [make_summary(1, block, time, minutes=block) for block, time in enumerate(seconds)]
    other = make_measurement([make_summary(1, 0, 1.3, minutes=99)], commit="b" * 40)
    found = history_of([make_measurement(launches), other])
    assert [(change.index, change.state) for change in found.changes] == [(8, None)]
    assert "not the code, so look at the machine" in change_sentence(found, found.changes[0])


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
