"""Speedups in turns against planted ones, with noise on everything that is measured; the whole table is a campaign."""

import pytest

from tests.truth.turn_simulation import Machine, estimate, machines

_MOST_BIAS = 0.005
_COVERAGE = (0.92, 0.98)


def check(machine: Machine, blocks: int, *, slack: float) -> None:
    """Compare both estimators with the truth; `slack` is what the chance of so few simulated blocks adds."""
    for finding in estimate(machine, blocks):
        assert abs(finding.bias) <= _MOST_BIAS + 2 * finding.error
        assert _COVERAGE[0] - slack <= finding.coverage <= _COVERAGE[1] + slack


@pytest.mark.parametrize(
    "machine",
    [
        Machine(noise=0.135),
        pytest.param(Machine(ranks=4, speedup=3.2, noise=0.2, disturbed=0.2), marks=pytest.mark.slow),
        Machine(ranks=2, slow=1.4, noise=0.1),
    ],
    ids=["as noisy as two cores are", "four cores, others on one", "cores that are slow for seconds"],
)
def test_speedups_are_what_was_planted(machine: Machine) -> None:
    check(machine, 100, slack=0.04)


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("machine", [machine for _, machine in machines()], ids=[title for title, _ in machines()])
def test_every_machine_of_the_table(machine: Machine) -> None:
    check(machine, 800, slack=0.015)
