"""Speedups of launches one after the other against planted ones."""

import pytest

from tests.truth.launch_simulation import LAUNCHES, MACHINES, LaunchMachine, estimate, medians, paired, unrelated

_TRIALS = 1000
_FEW_TRIALS = 200  # of medians, whose bootstrap is slow
_SLACK = 0.01  # what the chance of so few trials adds


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("launches", LAUNCHES)
def test_an_interval_of_95_percent_covers_92_to_98(noise: float, launches: int) -> None:
    for estimator in (paired, unrelated):
        coverage = estimate(LaunchMachine(noise=noise), launches, _TRIALS, estimator).coverage
        assert 0.92 - _SLACK <= coverage <= 0.98 + _SLACK


@pytest.mark.parametrize("title", MACHINES)
def test_outliers_and_drift_widen_an_interval_and_take_no_coverage(title: str) -> None:
    for estimator in (paired, unrelated):
        for launches in LAUNCHES:
            assert estimate(MACHINES[title], launches, _TRIALS, estimator).coverage >= 0.92 - _SLACK


def test_what_drifts_for_both_layouts_falls_out_of_a_paired_ratio_alone() -> None:
    machine = MACHINES["1 %, two speeds that differ by 20 %"]
    assert estimate(machine, 12, _TRIALS, paired).coverage <= 0.99
    assert estimate(machine, 12, _TRIALS, unrelated).coverage > 0.99
    assert (
        estimate(machine, 12, _FEW_TRIALS, paired).scatter < 0.6 * estimate(machine, 12, _FEW_TRIALS, medians).scatter
    )


def test_means_scatter_less_than_medians_without_outliers_and_more_with_them() -> None:
    """Outliers count like all other launches: a slow launch is a fact about the machine."""
    calm = MACHINES["noise of 3 %"]
    assert estimate(calm, 12, _FEW_TRIALS, paired).scatter < estimate(calm, 12, _FEW_TRIALS, medians).scatter
    rough = MACHINES["1 %, one launch in ten slower by 50 %"]
    assert estimate(rough, 12, _FEW_TRIALS, paired).scatter > estimate(rough, 12, _FEW_TRIALS, medians).scatter
