"""The promise, by simulation: false alarms at most 1 %, a loss of 10 % found at 6 launches at least 95 %."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binomtest

from harness.regression.verdict import IMPROVEMENT, PASS, REGRESSION, check
from tests.histories import Weather, real_rests, simulate

HISTORIES = 1000
REFERENCE = 12  # launches of each layout in a baseline, and of `harness noise`
NOW = 6


def verdicts(
    loss: float,
    *,
    ranks: tuple[int, ...] = (1, 2),
    reference: int = REFERENCE,
    histories: int = HISTORIES,
    seed: int = 1,
) -> Counter:
    """Return the verdicts on the newest commit of simulated histories, each with a noisier or calmer machine.

    A history is a baseline, an A/A run on another day and the launches of a commit on a third day.
    """
    random = np.random.default_rng(seed)
    rests = real_rests()
    found: Counter = Counter()
    for _ in range(histories):
        weather = Weather(rests=rests, scale=float(random.lognormal(0, 0.2)))
        baseline = simulate(random, weather, blocks=reference, ranks=ranks)
        noise = simulate(random, weather, blocks=REFERENCE, ranks=ranks, day=1)
        current = simulate(random, weather, blocks=NOW, ranks=ranks, day=2, loss=loss, commit="b" * 40)
        found[check(baseline, current, noise).verdict] += 1
    return found


def test_false_alarms_are_at_most_one_in_a_hundred() -> None:
    found = verdicts(0.0)
    assert found[REGRESSION] <= HISTORIES // 100, found
    assert found[IMPROVEMENT] <= HISTORIES // 100, found
    assert found[PASS] >= 0.8 * HISTORIES, found  # a check that is always inconclusive alarms nobody either


def test_a_loss_of_a_tenth_is_found_with_six_launches() -> None:
    found = verdicts(0.1)
    assert found[REGRESSION] >= 0.95 * HISTORIES, found
    assert found[PASS] == 0, found


def test_a_baseline_of_six_is_enough_where_the_noise_floor_is_known() -> None:
    """The rate is 95.8 % over 8,000 histories, so 2,000 may show a little less than 95 %; not clearly less."""
    found = verdicts(0.1, reference=6, histories=2 * HISTORIES, seed=3)
    assert binomtest(found[REGRESSION], 2 * HISTORIES, 0.95, alternative="less").pvalue > 0.01, found
    quiet = verdicts(0.0, reference=6)
    assert quiet[REGRESSION] <= HISTORIES // 100, quiet


def test_a_gain_of_a_tenth_is_an_improvement_and_no_alarm() -> None:
    found = verdicts(-0.12, histories=200)
    assert found[REGRESSION] <= 2, found
    assert found[IMPROVEMENT] >= 180, found


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_longer_curve_shares_out_the_same_error(loss: float) -> None:
    found = verdicts(loss, ranks=(1, 2, 4, 8), histories=300)
    assert found[REGRESSION] >= 285 if loss else found[REGRESSION] <= 3, found
