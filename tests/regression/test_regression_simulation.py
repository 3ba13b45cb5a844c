"""Histories on five kinds of machine: which differ from session to session, drift, or have two speeds.

Verdicts of versions in turns are simulated in tests/regression/test_verdicts.py.
"""

import numpy as np
import pytest
from scipy.stats import binomtest

from harness.regression.history import history_of
from tests.labs.histories import MachineNoise, machines, simulate

HISTORIES = 0.05  # each commit is measured on a day of its own: drift between days cannot be told from a commit


def keeps(alarms: int, of: int, promise: float = HISTORIES) -> bool:
    """Tell whether `alarms` do not refute that at most `promise` of all are false."""
    return float(binomtest(alarms, of, promise, alternative="greater").pvalue) > 0.01


def blamed(machine: MachineNoise, histories: int, *, commits: int = 10) -> int:
    """Return how many histories of `commits`, each measured on a day of its own, blame one of them wrongly."""
    random = np.random.default_rng(2)
    found = 0
    for _ in range(histories):
        days = [simulate(random, machine, blocks=6, commit=f"{n:040x}"[::-1], day=n) for n in range(commits)]
        found += any(change.blamed for change in history_of(days).changes)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("machine", machines())
def test_a_history_blames_no_commit_for_another_session(machine: str) -> None:
    assert keeps(blamed(machines()[machine], 60), 60)
