"""Verdicts on variants in turns against planted slowdowns, with noise on everything; the whole table is a campaign."""

import pytest

from harness.regression.launch_comparison import WORSE
from tests.truth.turn_simulation import Machine
from tests.truth.variant_simulation import examine, machines

_MOST_BIAS = 0.005
_FALSE_ALARMS = 0.05
_FOUND = 0.95


def check(machine: Machine, *, blocks: int, slack: float) -> None:
    """Compare estimates and decisions with what was planted; `slack` is what the chance of so few blocks adds."""
    same = examine(machine, 0.0, blocks=blocks)
    slower = examine(machine, 0.05, blocks=blocks)
    for finding in (same, slower):
        assert all(abs(bias) <= _MOST_BIAS + 2 * finding.error for bias in finding.bias.values())
        assert 0.92 - slack <= finding.coverage <= 0.98 + slack
    assert same.verdicts.get(WORSE, 0) <= _FALSE_ALARMS + slack
    assert slower.verdicts.get(WORSE, 0) >= _FOUND - slack


@pytest.mark.slow  # many simulated comparisons
def test_a_slowdown_is_what_was_planted_and_the_same_code_is_none() -> None:
    check(Machine(), blocks=60, slack=0.04)


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("machine", machines().values(), ids=machines())
def test_every_machine_of_the_table(machine: Machine) -> None:
    check(machine, blocks=400, slack=0.015)
