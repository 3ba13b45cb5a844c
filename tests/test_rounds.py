"""Ratios of what trained in turns: undisturbed rounds, one value a block, Student's t over blocks."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.analysis.read_results import read_rounds
from harness.analysis.stats import BlockRatio, block_rounds, layout_ratio, over_blocks, ratio_over_blocks
from harness.cli.sweeps import next_repeats
from harness.schema.sweep import ROUNDS

ONE, TWO = "n1x1x1", "n2x1x1"


def turns(
    rng: np.random.Generator, ratio: float, *, rounds: int = 60, start: float = 0.009, spread: float = 0.05
) -> pd.DataFrame:
    """Return a block's turns: `a` takes `ratio` times as long as `b`; each start has a speed of its own."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.02, rounds)))  # the machine moves, both with it
    rows = []
    for name, factor in (("a", ratio), ("b", 1.0)):
        own = factor * math.exp(rng.normal(0, start / math.sqrt(2)))
        steps = 0.001 * drift * own * np.exp(rng.normal(0, spread / math.sqrt(2), rounds))
        rows += [(number, name, 0, 50, 50 * step, 0.99, 0.1 * number) for number, step in enumerate(steps)]
    return pd.DataFrame(rows, columns=["round", "launch", "place", "steps", "seconds", "cores", "at_s"])


def test_the_interval_over_blocks_covers_the_truth_as_often_as_it_says() -> None:
    """Six blocks of 60 rounds, each start with a speed of its own (0.9 %): 1.6 is settled to within 1.5 %."""
    rng, count = np.random.default_rng(1), 2000
    ratios = math.log(1.6) + rng.normal(0, 0.009, (count, 6, 1)) + rng.normal(0, 0.05, (count, 6, 60))
    found = [ratio_over_blocks(list(medians)) for medians in np.median(ratios, axis=2)]
    intervals = [one.interval for one in found if one]
    assert len(intervals) == count
    assert 0.94 <= np.mean([one.low <= 1.6 <= one.high for one in intervals]) <= 0.96
    assert np.median([(one.high - one.low) / 2 / 1.6 for one in intervals]) < 0.015


@pytest.mark.parametrize("spread", [0.01, 0.02, 0.03, 0.04, 0.06])
def test_a_sweep_that_goes_on_until_its_interval_is_narrow_still_covers_the_truth(spread: float) -> None:
    """Blocks that differ by 1 to 6 %, 5 s each: it ends within 2 %, or after 24 of them."""
    rng, held, reaches = np.random.default_rng(3), [], []
    for _ in range(2000):
        blocks, wanted = rng.normal(0, spread, 24), 6
        while (found := over_blocks(blocks[:wanted])) and (
            more := next_repeats(found.reach, wanted, 5 * wanted)
        ) > wanted:
            wanted = more
        assert found
        held.append(abs(found.mean) <= found.reach)
        reaches.append(found.reach)
        assert found.reach <= 0.02 or wanted == 24
    assert 0.92 <= np.mean(held) <= 0.96
    assert np.median(reaches) <= 0.02 or spread > 0.04


@pytest.mark.parametrize(("there", "seconds", "wanted"), [(6, 200, 9), (6, 300, 6), (23, 100, 24), (30, 1, 30)])
def test_an_uncertain_sweep_ends_by_its_time_or_its_number_of_blocks(there: int, seconds: float, wanted: int) -> None:
    assert next_repeats(0.05, there, seconds) == wanted


def test_a_block_s_median_is_the_ratio_whatever_the_machine_does_to_both() -> None:
    ratios = block_rounds(turns(np.random.default_rng(1), 1.6, rounds=400, start=0.0)).log_ratios("a", "b")
    assert float(np.median(ratios)) == pytest.approx(math.log(1.6), abs=0.01)


def on_two_cores(rng: np.random.Generator, *, shared: float = 0.0, rounds: int = 60, near: float = 1.0) -> pd.DataFrame:
    """Return a block's turns: one rank, on two cores in turn, takes 1.06 times as long a step as two ranks.

    A neighbour slows each core, two fifths of the time, by a third; in a part of the rounds, `shared`, two ranks have
    one physical core. Cores that share a cache take `near` times as long. States last for five rounds, about half a
    second.
    """
    slowed = 1 + 0.35 * np.repeat(rng.random((rounds // 5, 2)) < 0.4, 5, axis=0)
    together = np.repeat(rng.random(rounds // 5) < shared, 5)
    noise = np.exp(rng.normal(0, 0.02, (rounds, 2)))
    rows = []
    for number in range(rounds):
        core = number % 2
        one = 1.06 * slowed[number, core] * noise[number, 0]
        two = (2.0 if together[number] else slowed[number].max()) * noise[number, 1]
        ns = 75.0 if together[number] else rng.choice([110.0, 400.0])
        two *= near if ns == 110.0 else 1.0
        rows += [(number, ONE, 0, 50, 50 * one, 0.99, 0.1 * number, 0.0, str(core))]
        rows += [(number, TWO, 1, 50, 50 * two, 0.99, 0.1 * number, ns, "0;1")]
    columns = ["round", "launch", "place", "steps", "seconds", "cores", "at_s", "core_ns", "bound"]
    return pd.DataFrame(rows, columns=columns)


def speedup(blocks: list[pd.DataFrame]) -> BlockRatio:
    frames = [
        pd.DataFrame({"run": f"{layout}-r0-0", "steps": 1, "rounds": [block_rounds(block) for block in blocks]}).assign(
            ranks=ranks, global_batch=64 * ranks
        )
        for layout, ranks in ((ONE, 1), (TWO, 2))
    ]
    found = layout_ratio(frames[0], frames[1])
    assert found is not None
    return found


def test_neighbours_of_either_core_leave_a_speedup_what_it_is() -> None:
    """Of six blocks it is known to 2 %, where the mean of the rounds' ratios is 5 % off."""
    rng = np.random.default_rng(4)
    found = [speedup([on_two_cores(rng) for _ in range(6)]) for _ in range(40)]
    assert abs(np.mean([one.ratio for one in found]) - 1.06) < 0.015
    assert np.median([one.interval.high / one.interval.low - 1 for one in found]) < 0.04
    assert all(one.left_out == 0 for one in found)
    means = [block_rounds(on_two_cores(rng)).log_ratios(ONE, TWO).mean() for _ in range(100)]
    assert np.mean(means) < math.log(1.06) - 0.05


@pytest.mark.parametrize("shared", [0.1, 0.5])
def test_rounds_in_which_two_ranks_had_one_physical_core_are_left_out(shared: float) -> None:
    rng = np.random.default_rng(6)
    found = [speedup([on_two_cores(rng, shared=shared) for _ in range(6)]) for _ in range(20)]
    assert abs(np.mean([one.ratio for one in found]) - 1.06) < 0.02
    assert abs(np.mean([one.left_out for one in found]) - shared) < 0.05


def test_near_cores_that_are_slower_for_a_network_count() -> None:
    """A large network on two cores of one cache takes 1.3 times as long: half of the rounds, none left out."""
    rng = np.random.default_rng(8)
    found = [speedup([on_two_cores(rng, near=1.3) for _ in range(6)]) for _ in range(20)]
    assert all(one.left_out == 0 for one in found)
    assert abs(np.mean([math.log(one.ratio) for one in found]) - math.log(1.06 / math.sqrt(1.3))) < 0.02


def test_a_machine_that_never_has_two_cores_says_what_it_is() -> None:
    found = speedup([on_two_cores(np.random.default_rng(number), shared=1.0) for number in range(3)])
    assert found.ratio < 0.75 and found.left_out == 0


def test_blocks_without_cores_in_their_record_have_the_ratio_of_their_rounds() -> None:
    before = on_two_cores(np.random.default_rng(7)).drop(columns=["core_ns", "bound"])
    assert 0.9 < speedup([before] * 3).ratio < 1.06


def test_fewer_than_three_blocks_have_no_interval() -> None:
    assert ratio_over_blocks([0.1, 0.2]) is None


def test_turns_that_other_work_met_are_left_out() -> None:
    """Another process has the core of `a` in a third of the rounds: what is left is as without it."""
    rng = np.random.default_rng(2)
    table = turns(rng, 1.0, rounds=300, start=0.0)
    met = (table["launch"] == "a") & (rng.random(len(table)) < 0.45)
    table.loc[met, "seconds"] *= 2.0
    table.loc[met, "cores"] = 0.5
    ratios = block_rounds(table).log_ratios("a", "b")
    assert abs(np.median(ratios)) < 0.01
    assert 100 < len(ratios) < 220
    assert abs(np.median(block_rounds(table.assign(cores=1.0)).log_ratios("a", "b"))) > 0.03


def test_turns_of_a_rank_that_waits_asleep_all_count() -> None:
    """A parameter server's coordinator uses a tenth of its core, more or less."""
    rng = np.random.default_rng(5)
    table = turns(rng, 1.0, rounds=50)
    asleep = table["launch"] == "a"
    table.loc[asleep, "cores"] = rng.uniform(0.05, 0.15, asleep.sum())
    assert len(block_rounds(table).log_ratios("a", "b")) == 50


def test_turns_of_few_steps_do_not_count() -> None:
    table = turns(np.random.default_rng(3), 1.0, rounds=10)
    table.loc[table["round"] < 4, "steps"] = 2
    assert len(block_rounds(table).log_ratios("a", "b")) == 6


def test_rounds_are_read_by_layout_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    (tmp_path / ROUNDS).mkdir()
    table = turns(np.random.default_rng(4), 1.2).replace({"a": "n1x1x1-r0-0123456789ab", "b": "n2x1x1-r0-ba9876543210"})
    table.to_parquet(tmp_path / ROUNDS / "whole.parquet")
    found = read_rounds(tmp_path, "whole")
    assert found is not None
    assert np.median(found.log_ratios("n1x1x1", "n2x1x1")) == pytest.approx(math.log(1.2), abs=0.05)
    assert len(found.log_ratios("n1x1x1", "n4x1x1")) == 0
    (tmp_path / ROUNDS / "cut.parquet").write_bytes(b"PAR1")
    assert read_rounds(tmp_path, "cut") is None
    assert read_rounds(tmp_path, "absent") is None
