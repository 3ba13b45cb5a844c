"""The promise, by simulation: false alarms at most 1 % on every kind of machine, and the losses that are found.

The quick tests are of 150 histories and see a broken promise; those marked `slow` are of 1,000 and make the table of
docs/regression.md.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from scipy.stats import binomtest

from harness.regression.checks import check_duet, check_sessions
from harness.regression.duet import LOOKS
from harness.regression.history import history_of
from harness.regression.measurements import join, last_sessions
from harness.regression.significance import IMPROVEMENT, PASS, REGRESSION
from tests.histories import MachineNoise, machines, simulate, simulate_duet

QUICK, SLOW = 150, 1000
PROMISE = 0.01
HISTORIES = 0.05  # each commit is measured on a day of its own: drift between days cannot be told from a commit
LAUNCHES = 12  # of each layout, on each side
RANKS = (1, 2)

Trial = Callable[[np.random.Generator, MachineNoise, float], str]


def other_day(kept: int, *, now: int = LAUNCHES, reference: int = LAUNCHES, ranks: tuple[int, ...] = RANKS) -> Trial:
    """Return a check of another day against a baseline, with `kept` more sessions of the baseline's commit."""

    def trial(random: np.random.Generator, machine: MachineNoise, loss: float) -> str:
        sessions = [simulate(random, machine, blocks=LAUNCHES, ranks=ranks, day=1 + day) for day in range(kept)]
        baseline = simulate(random, machine, blocks=reference, ranks=ranks)
        current = simulate(random, machine, blocks=now, ranks=ranks, day=2 + kept, loss=loss, commit="b" * 40)
        return check_sessions(baseline, current, [reduce(join, sessions)] if sessions else ()).verdict

    return trial


def duet(random: np.random.Generator, machine: MachineNoise, loss: float) -> str:
    """Return the verdict on two versions launched in turn, at the first of the looks that there may be."""
    return check_duet(*simulate_duet(random, machine, blocks=LAUNCHES, ranks=RANKS, loss=loss), looks=LOOKS).verdict


TRIALS: dict[str, Trial] = {"nothing kept": other_day(0), "6 sessions kept": other_day(6), "duet": duet}


def verdicts(trial: Trial, machine: MachineNoise, loss: float, histories: int, seed: int = 1) -> Counter[str]:
    """Return the verdicts on simulated histories, each on a noisier or calmer machine."""
    random = np.random.default_rng(seed)
    calmer = (replace(machine, scale=float(random.lognormal(0, 0.2))) for _ in range(histories))
    return Counter(trial(random, one, loss) for one in calmer)


def keeps(alarms: int, of: int, promise: float = PROMISE) -> bool:
    """Tell whether `alarms` do not refute that at most `promise` of all are false."""
    return float(binomtest(alarms, of, promise, alternative="greater").pvalue) > 0.01


@pytest.mark.parametrize("kind", TRIALS)
@pytest.mark.parametrize("machine", machines())
def test_no_machine_makes_more_false_alarms_than_promised(kind: str, machine: str) -> None:
    found = verdicts(TRIALS[kind], machines()[machine], 0.0, QUICK)
    assert keeps(found[REGRESSION], QUICK), found
    assert keeps(found[IMPROVEMENT], QUICK), found


def test_what_was_promised_of_one_session_alone_is_broken_by_another() -> None:
    """The simulated offset is large enough to tell: with launches counted as of one session it alarms too often."""
    random = np.random.default_rng(1)
    machine = machines()["offset of 2 % between sessions"]
    alarms = 0
    for _ in range(QUICK):
        one = simulate(random, machine, blocks=LAUNCHES, ranks=RANKS)
        two = simulate(random, machine, blocks=LAUNCHES, ranks=RANKS, commit="b" * 40)
        alarms += check_duet(one, two).verdict == REGRESSION  # pairs that were never launched as pairs
    assert not keeps(alarms, QUICK)


@pytest.mark.parametrize("machine", machines())
def test_a_duet_finds_a_slowdown_of_a_tenth_on_every_machine(machine: str) -> None:
    found = verdicts(duet, machines()[machine], 0.1, QUICK)
    assert found[REGRESSION] >= 0.9 * QUICK, found
    assert found[PASS] == 0, found


def test_a_duet_without_a_change_mostly_passes() -> None:
    found = verdicts(duet, machines()["offset of 2 % between sessions"], 0.0, QUICK)
    assert found[PASS] >= 0.8 * QUICK, found


def test_a_slowdown_too_small_to_matter_never_fails_however_sure_it_is() -> None:
    calm = MachineNoise(rests=np.zeros(1), drift=0.002, burst=0.0)
    random = np.random.default_rng(2)
    for _ in range(20):
        old, new = simulate_duet(random, calm, blocks=40, loss=0.015)
        found = check_duet(old, new)
        row = next(row for row in found.rows if row.quantity == "efficiency")
        assert row.interval is not None and row.interval.low > 0  # it is sure
        assert found.verdict == PASS


def test_a_gain_of_a_tenth_is_an_improvement_and_no_alarm() -> None:
    found = verdicts(duet, machines()["one session"], -0.12, QUICK)
    assert found[REGRESSION] == 0, found
    assert found[IMPROVEMENT] >= 0.85 * QUICK, found


def test_a_longer_curve_shares_out_the_same_error() -> None:
    found = verdicts(other_day(0, ranks=(1, 2, 4, 8)), machines()["one session"], 0.0, QUICK)
    assert keeps(found[REGRESSION], QUICK), found


def blamed(machine: MachineNoise, histories: int, *, commits: int = 10) -> int:
    """Return how many histories of `commits`, each measured on a day of its own, blame one of them wrongly."""
    random = np.random.default_rng(2)
    found = 0
    for _ in range(histories):
        days = [simulate(random, machine, blocks=6, commit=f"{n:040x}"[::-1], day=n) for n in range(commits)]
        found += any(change.blamed for change in history_of(days).changes)
    return found


@pytest.mark.slow
def test_a_history_blames_no_commit_for_another_session() -> None:
    assert keeps(blamed(machines()["offset of 2 % between sessions"], 40), 40)


@pytest.mark.slow
@pytest.mark.parametrize("machine", machines())
def test_the_table_of_the_promise(machine: str) -> None:
    """Print false alarms and power of every kind of check, and compare the false alarms with the promise."""
    found = machines()[machine]
    for kind, trial in TRIALS.items():
        counts = {loss: verdicts(trial, found, loss, SLOW if not loss else SLOW // 2) for loss in (0.0, 0.05, 0.1)}
        alarms, gains = counts[0.0][REGRESSION], counts[0.0][IMPROVEMENT]
        power = [100 * counts[loss][REGRESSION] / counts[loss].total() for loss in (0.05, 0.1)]
        print(
            f"{machine}; {kind}: {100 * alarms / SLOW:.2f} % false alarms, {100 * gains / SLOW:.2f} % false gains, "
            f"{100 * counts[0.0][PASS] / SLOW:.0f} % passed; 5 % lost: {power[0]:.0f} % found, 10 %: {power[1]:.0f} %"
        )
        assert keeps(alarms, SLOW) and keeps(gains, SLOW)
    histories = SLOW // 5
    wrong = blamed(found, histories)
    print(f"{machine}; history of 10 commits: {100 * wrong / histories:.1f} % blame one")
    assert keeps(wrong, histories, HISTORIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(machines()))
def test_a_window_of_sessions_has_few_false_alarms_and_finds_losses(name: str) -> None:
    """Six sessions of six launches, each of a code of its own, then one more."""
    random, found = np.random.default_rng(0), {0.0: 0, 0.1: 0}
    for loss in found:
        for _ in range(60):
            days = [
                simulate(random, machines()[name], blocks=6, day=day, commit=f"{day:x}" * 40, loss=loss * (day == 6))
                for day in range(7)
            ]
            found[loss] += check_sessions(*last_sessions(days, 6)).verdict == REGRESSION
    assert found[0.0] <= 2 and found[0.1] >= 42
