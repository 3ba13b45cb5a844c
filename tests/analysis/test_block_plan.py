"""How many blocks a sweep makes and how long they are: by width, time and variances, and never by the estimate."""

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.block_plan import (
    LONGEST_S,
    SHORTEST_S,
    BlockSpread,
    EndRule,
    RatioSample,
    best_seconds,
    spread_of,
)
from harness.analysis.confidence_intervals import expected_reach, mean_over_blocks
from tests.truth.block_lengths import Machine, coverage, machines, median_reach

_BLOCK_S = 5.0


@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02, 0.03, 0.04, 0.06])
def test_a_sweep_that_goes_on_until_its_interval_is_narrow_still_covers_the_truth(spread: float) -> None:
    """Blocks that differ by 0.5 to 6 %, 5 s each: it ends within about 2 %, or after 6 minutes of them."""
    random, held, reaches = np.random.default_rng(3), [], []
    for _ in range(3000):
        blocks, wanted = random.normal(0, spread, 80), 3
        while (mean := mean_over_blocks(blocks[:wanted])) and (
            more := EndRule().next_repeats(mean.reach, wanted, _BLOCK_S * wanted, repeat_s=_BLOCK_S)
        ) > wanted:
            wanted = more
        assert mean
        held.append(abs(mean.mean) <= mean.reach)
        reaches.append(mean.reach)
    assert 0.92 <= np.mean(held) <= 0.96
    assert np.median(reaches) <= 0.021


@pytest.mark.parametrize(
    ("repeats", "seconds", "wanted"),
    [(3, 60, 6), (6, 200, 9), (6, 300, 7), (6, 355, 6), (12, 100, 18), (18, 180, 24), (192, 1, 192)],
)
def test_an_uncertain_sweep_is_looked_at_again_as_far_as_its_time_goes(
    repeats: int, seconds: float, wanted: int
) -> None:
    assert EndRule().next_repeats(0.05, repeats, seconds, repeat_s=seconds / repeats) == wanted


@pytest.mark.parametrize(("repeats", "reach", "wanted"), [(3, 0.005, 5), (3, 0.015, 6), (6, 0.015, 8), (5, 0.015, 5)])
def test_a_sweep_whose_interval_is_narrow_makes_two_more_blocks_and_the_same_command_makes_none(
    repeats: int, reach: float, wanted: int
) -> None:
    rule = EndRule()
    assert rule.next_repeats(reach, repeats, 10.0 * repeats, repeat_s=10.0) == wanted
    assert rule.next_repeats(reach, wanted, 10.0 * wanted, repeat_s=10.0) == wanted or wanted == 6


def test_what_ends_first_ends_it() -> None:
    assert EndRule(width=0.001).next_repeats(0.005, 6, 60.0, repeat_s=10.0) == 9
    assert EndRule(width=0.001, budget_s=60.0).next_repeats(0.005, 6, 60.0, repeat_s=10.0) == 6
    assert EndRule(width=0.01, budget_s=1e6).next_repeats(0.005, 6, 60.0, repeat_s=10.0) == 8


def test_a_job_without_a_budget_is_ended_by_its_time_limit_alone() -> None:
    assert EndRule().next_repeats(0.05, 6, seconds=1e6) == 9


def test_the_blocks_that_a_width_needs_give_that_width() -> None:
    rule = EndRule(width=0.01)
    more = rule.blocks_for_width(0.03, 6)
    assert more is not None
    assert expected_reach(0.03, 6, 6 + more) <= 0.01 < expected_reach(0.03, 6, 5 + more)
    assert rule.blocks_for_width(0.005, 6) == 0
    assert rule.blocks_for_width(2.0, 6) is None


def test_an_expected_reach_is_what_simulated_intervals_have() -> None:
    random = np.random.default_rng(4)
    few = [mean_over_blocks(random.normal(0, 0.02, 6)) for _ in range(4000)]
    many = [mean_over_blocks(random.normal(0, 0.02, 24)) for _ in range(4000)]
    of_few = math.sqrt(np.mean([mean.reach**2 for mean in few if mean]))
    of_many = math.sqrt(np.mean([mean.reach**2 for mean in many if mean]))
    assert expected_reach(of_few, 6, 24) == pytest.approx(of_many, rel=0.03)


def length(spread: BlockSpread, *, start_s: float = 13.0, left_s: float = 1e6) -> float:
    return best_seconds(spread, start_s=start_s, left_s=left_s, blocks=3, seconds_so_far=6.0)


def test_with_much_time_a_block_is_as_long_as_cochran_has_it() -> None:
    spread = BlockSpread(within=0.03**2, between=0.008**2)
    assert length(spread) == pytest.approx(math.sqrt(13.0) * 0.03 / 0.008, rel=0.1)


def test_the_noise_and_the_cost_of_a_start_decide_how_long_a_block_is() -> None:
    spread = BlockSpread(within=0.03**2, between=0.008**2)
    noisy_rounds = replace(spread, within=0.1**2)
    assert length(noisy_rounds, left_s=200.0) > length(spread, left_s=200.0)
    assert length(spread, start_s=4.0, left_s=200.0) < length(spread, left_s=200.0)
    assert length(noisy_rounds, left_s=200.0) < length(noisy_rounds)  # few blocks have a wide interval by themselves
    assert length(BlockSpread(within=0.001**2, between=0.05**2)) == pytest.approx(SHORTEST_S)
    assert length(BlockSpread(within=0.2**2, between=0.0)) == pytest.approx(LONGEST_S)


def test_variances_are_found_again_and_do_not_depend_on_the_estimate() -> None:
    random = np.random.default_rng(5)
    machine = Machine(between=0.02, within=0.03)
    samples = [machine.block(random, 6.0) for _ in range(400)]
    spread = spread_of(samples)
    assert spread is not None
    assert math.sqrt(spread.between) == pytest.approx(0.02, rel=0.1)
    assert math.sqrt(spread.within) == pytest.approx(0.03, rel=0.1)
    moved = [replace(sample, log_ratio=sample.log_ratio + 1.0) for sample in samples]
    other = spread_of(moved)
    assert other is not None
    assert other.between == pytest.approx(spread.between)
    assert other.within == spread.within


def test_few_blocks_or_rounds_without_scatter_have_no_spread() -> None:
    block = RatioSample(log_ratio=0.1, error=0.0, seconds=6.0)
    assert spread_of([replace(block, error=1e-4)] * 2) is None
    assert spread_of([block] * 3) is None


@pytest.mark.parametrize(
    "machine", [Machine(between=0.008, within=0.03), Machine(between=0.03, within=0.05, start_s=5.0)]
)
def test_blocks_of_chosen_lengths_still_cover_the_truth(machine: Machine) -> None:
    assert 0.91 <= coverage(machine, 300) <= 0.98


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("machine", list(machines()), ids=str)
def test_blocks_of_chosen_lengths_cover_the_truth_on_every_machine_and_are_not_wider(machine: Machine) -> None:
    assert 0.92 <= coverage(machine, 2000) <= 0.98
    fixed = replace(machine, chooses=False, epochs_s=6.6)
    assert median_reach(machine, 500, 6.0) <= 1.05 * median_reach(fixed, 500, 6.0)
