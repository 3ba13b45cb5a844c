"""Times of what trained in turns, without contended rounds and with interference: one number a block, Student's t."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.analysis.confidence_intervals import mean_over_blocks, ratio_over_blocks
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import load_sweep, read_rounds
from harness.analysis.scaling import scale
from harness.analysis.turn_blocks import (
    block_steps,
    mean_step_times,
    read_turn_block,
    slowest_core_excess,
    undisturbed_rounds,
    undisturbed_step_times,
)
from harness.base.errors import UserError
from harness.report.sweep_warnings import sweep_warnings
from harness.schema.sweep_folder import SweepFolder
from tests.labs.factories import make_launch, write_run

ONE, TWO = "n1x1x1", "n2x1x1"
ONE_LAUNCH, TWO_LAUNCH = f"{ONE}-r0-0123456789ab", f"{TWO}-r0-ba9876543210"


def turns(
    rng: np.random.Generator, ratio: float, *, rounds: int = 60, start: float = 0.009, spread: float = 0.05
) -> pd.DataFrame:
    """Return a block's turns: one rank takes `ratio` times as long as two; each start has a speed of its own."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.02, rounds)))  # the machine moves, both with it
    rows = []
    for launch, factor, bound in ((ONE_LAUNCH, ratio, "0"), (TWO_LAUNCH, 1.0, "0;1")):
        of_start = factor * math.exp(rng.normal(0, start / math.sqrt(2)))
        steps = 0.001 * drift * of_start * np.exp(rng.normal(0, spread / math.sqrt(2), rounds))
        rows += [(number, launch, 0, 50, 50 * step, 0.99, 0.1 * number, bound) for number, step in enumerate(steps)]
    return pd.DataFrame(rows, columns=["round", "launch", "place", "steps", "seconds", "cores", "at_s", "bound"])


def test_the_interval_over_blocks_covers_the_truth_as_often_as_it_says() -> None:
    """Six blocks of 60 rounds, each start with a speed of its own (0.9 %): 1.6 is settled to within 1.5 %."""
    rng, count = np.random.default_rng(1), 2000
    ratios = math.log(1.6) + rng.normal(0, 0.009, (count, 6, 1)) + rng.normal(0, 0.05, (count, 6, 60))
    over = [ratio_over_blocks(list(means)) for means in np.mean(ratios, axis=2)]
    intervals = [ratio.interval for ratio in over if ratio]
    assert len(intervals) == count
    assert 0.94 <= np.mean([interval.low <= 1.6 <= interval.high for interval in intervals]) <= 0.96
    assert np.median([(interval.high - interval.low) / 2 / 1.6 for interval in intervals]) < 0.015


def test_a_block_s_number_is_the_ratio_whatever_the_machine_does_to_both() -> None:
    block = read_turn_block(turns(np.random.default_rng(1), 1.6, rounds=400, start=0.0))
    assert block.undisturbed[ONE_LAUNCH] / block.undisturbed[TWO_LAUNCH] == pytest.approx(1.6, abs=0.015)
    assert block.as_it_ran[ONE_LAUNCH] / block.as_it_ran[TWO_LAUNCH] == pytest.approx(1.6, abs=0.015)


def test_fewer_than_three_blocks_have_no_interval() -> None:
    assert ratio_over_blocks([0.1, 0.2]) is None


def test_a_round_that_other_work_met_is_left_out_as_a_whole() -> None:
    """Another process has a core of two ranks in a third of the rounds: what is left is as without it."""
    rng = np.random.default_rng(2)
    table = turns(rng, 1.6, rounds=300, start=0.0)
    met = (table["launch"] == TWO_LAUNCH) & (rng.random(len(table)) < 0.35)
    table.loc[met, "seconds"] *= 2.0
    table.loc[met, "cores"] = 0.5
    calm = undisturbed_rounds(table)
    assert set(calm["round"]) == set(table["round"]) - set(table.loc[met, "round"])
    assert len(calm) == 2 * calm["round"].nunique()
    block = read_turn_block(table)
    assert block.undisturbed[ONE_LAUNCH] / block.undisturbed[TWO_LAUNCH] == pytest.approx(1.6, abs=0.02)
    assert block.as_it_ran[ONE_LAUNCH] / block.as_it_ran[TWO_LAUNCH] == pytest.approx(1.6 / 1.35, abs=0.06)
    assert block.left_out == pytest.approx(met.sum() / 300)


def test_a_core_that_others_use_all_the_time_leaves_no_undisturbed_round() -> None:
    """Its share is usual for the launch that never leaves it, but not for launches of this kind."""
    table = turns(np.random.default_rng(2), 1.6)
    table.loc[table["launch"] == TWO_LAUNCH, "cores"] = 0.5
    assert undisturbed_rounds(table).empty
    assert read_turn_block(table).undisturbed == {} and not read_turn_block(table).is_short
    assert read_turn_block(table).step_seconds(TWO_LAUNCH) == read_turn_block(table).as_it_ran[TWO_LAUNCH]


def test_what_is_left_out_does_not_depend_on_the_times() -> None:
    rng = np.random.default_rng(3)
    table = turns(rng, 1.6)
    table["cores"] = rng.uniform(0.9, 1.0, len(table))
    others = table.assign(seconds=rng.permutation(table["seconds"].to_numpy()))
    assert list(undisturbed_rounds(table).index) == list(undisturbed_rounds(others).index)


def test_turns_of_a_rank_that_waits_asleep_all_count() -> None:
    """A parameter server's coordinator uses a tenth of its core, more or less."""
    rng = np.random.default_rng(5)
    table = turns(rng, 1.0, rounds=50)
    asleep = table["launch"] == ONE_LAUNCH
    table.loc[asleep, "cores"] = rng.uniform(0.05, 0.15, asleep.sum())
    assert undisturbed_rounds(table, alike=False)["round"].nunique() == 50


def test_turns_of_few_steps_have_no_time_but_count_as_they_ran() -> None:
    table = turns(np.random.default_rng(3), 1.0, rounds=10)
    table.loc[table["round"] < 4, "steps"] = 2
    table.loc[table["round"] < 4, "seconds"] /= 25
    assert len(block_steps(table)) == 6
    whole = table[table["launch"] == ONE_LAUNCH]
    assert mean_step_times(table)[ONE_LAUNCH] == pytest.approx(whole["seconds"].sum() / whole["steps"].sum())


def test_a_block_in_which_a_launch_has_hardly_a_whole_turn_has_times_as_it_ran() -> None:
    table = turns(np.random.default_rng(3), 1.6, rounds=30)
    table = table[(table["launch"] == ONE_LAUNCH) | (table["round"] < 3)]
    block = read_turn_block(table)
    assert block.undisturbed == {} and set(block.as_it_ran) == {ONE_LAUNCH, TWO_LAUNCH}
    assert block.is_short and block.left_out == 0
    assert block.has(TWO_LAUNCH) and block.step_seconds(TWO_LAUNCH) == block.as_it_ran[TWO_LAUNCH]


def on_cores(core_seconds: tuple[float, ...], *, rounds: int = 60, noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Return the turns of a single rank that trains on cores of these seconds a step, one after the other."""
    rng, number = np.random.default_rng(seed), np.arange(rounds)
    core = number % len(core_seconds)
    steps = np.array(core_seconds)[core] * np.exp(rng.normal(0, noise, rounds))
    columns = {"round": number, "launch": ONE, "place": 0, "steps": 50, "seconds": 50 * steps, "cores": 0.99}
    return pd.DataFrame(columns | {"at_s": 0.1 * number, "bound": core.astype(str)})


def test_a_single_rank_counts_by_the_mean_over_its_cores() -> None:
    table = on_cores((0.001, 0.002), rounds=61)  # one turn more on the first core
    assert mean_step_times(table)[ONE] == pytest.approx(0.0015)
    assert undisturbed_step_times(table, ONE)[ONE] == pytest.approx(0.001 * math.sqrt(2))


def test_the_slowest_core_is_measured_on_other_turns_than_those_that_chose_it() -> None:
    assert slowest_core_excess(on_cores((0.001, 0.001 * math.exp(0.1)))) == pytest.approx(0.05)
    assert slowest_core_excess(on_cores((0.001,))) is None
    excesses = [slowest_core_excess(on_cores((0.001,) * 4, noise=0.135, seed=seed)) for seed in range(300)]
    mean = mean_over_blocks([excess for excess in excesses if excess is not None])
    assert mean is not None and abs(mean.mean) < mean.reach * 1.5


def test_rounds_are_read_by_launch_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    turns(np.random.default_rng(4), 1.2).to_parquet(tmp_path / "whole.parquet")
    block = read_rounds(tmp_path / "whole.parquet")
    assert block.base == ONE_LAUNCH
    assert block.undisturbed[ONE_LAUNCH] / block.undisturbed[TWO_LAUNCH] == pytest.approx(1.2, abs=0.05)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"cut\.parquet"):
        read_rounds(tmp_path / "cut.parquet")


def test_a_damaged_file_of_turns_is_listed_and_its_launches_are_read(tmp_path: Path) -> None:
    SweepFolder(tmp_path).rounds.mkdir()
    for ranks in (1, 2):
        write_run(tmp_path, make_launch(ranks, 0, 1.0 / ranks, block="b0"))
    SweepFolder(tmp_path).block_turns("b0").write_bytes(b"PAR1")
    loaded = load_sweep(tmp_path)
    assert len(loaded.runs) == 2
    assert [("b0.parquet" in sentence) for sentence in loaded.damaged] == [True]


def test_a_launch_without_turns_is_not_compared_with_those_that_have_them(tmp_path: Path) -> None:
    """Where every layout has launches in turns, one without is no valid launch; where one has none, nobody has."""
    SweepFolder(tmp_path).rounds.mkdir()
    blocks = [(make_launch(1, k, 1.0, block=f"b{k}"), make_launch(2, k, 0.6, block=f"b{k}")) for k in range(3)]
    for number, pair in enumerate(blocks):
        for run in pair:
            write_run(tmp_path, run)
        if number:  # the first block was killed before its turns were written
            names = {ONE_LAUNCH: pair[0].point.folder, TWO_LAUNCH: pair[1].point.folder}
            table = turns(np.random.default_rng(number), 1.2).replace({"launch": names})
            table.to_parquet(SweepFolder(tmp_path).block_turns(f"b{number}"))
    loaded = load_sweep(tmp_path)
    assert [bool(run.invalid) for run in loaded.runs] == [True, False, False, True, False, False]
    scaling = scale(launch_frame(loaded.runs, loaded.epochs))
    assert scaling is not None and [point.launches for point in scaling.points] == [2, 2]
    assert scaling.points[1].blocks == 2
    assert loaded.untimed_layouts == ()
    on_four = make_launch(4, 0, 0.4)
    write_run(tmp_path, on_four)
    loaded = load_sweep(tmp_path)
    assert not any(run.invalid for run in loaded.runs)
    assert loaded.untimed_layouts == (on_four.point.layout,)
    assert any(str(on_four.point.layout) in warning.text for warning in sweep_warnings(loaded))
