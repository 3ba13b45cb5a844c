"""When a sweep ends that is asked for no number of launches, what it says, and what a budget and a width refuse."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from harness.analysis.confidence_intervals import FEWEST_BLOCKS, expected_reach, mean_over_blocks
from harness.cli import main
from harness.cli.command_sweep import parse_width
from harness.cli.sweep_end import EndRule, measure_width, until_known
from harness.schema.sweep_folder import SweepFolder
from tests.labs.factories import make_launch, write_run
from tests.labs.sentences import refuses, says

_ROUNDS = 60
_ROUND_S = 0.1
_BLOCK_S = 5.0


def write_blocks(folder: Path, ratios: list[float], *, noise: float = 0.01) -> None:
    """Write a sweep of a block for each of the `ratios`, which one rank takes times as long as two in it."""
    random = np.random.default_rng(1)
    SweepFolder(folder).rounds.mkdir(parents=True)
    for number, ratio in enumerate(ratios):
        runs = [make_launch(ranks, number, 1.0 / ranks, block=f"b{number}") for ranks in (1, 2)]
        tables = []
        for run, factor, cores in zip(runs, (ratio, 1.0), ("0", "0;1"), strict=True):
            write_run(folder, run)
            seconds = 0.05 * factor * np.exp(random.normal(0, noise, _ROUNDS))
            columns = {"round": np.arange(_ROUNDS), "launch": run.point.folder, "place": 0, "steps": 50}
            columns |= {"seconds": seconds, "cores": 0.99, "at_s": _ROUND_S * np.arange(_ROUNDS), "bound": cores}
            tables.append(pd.DataFrame(columns))
        pd.concat(tables).to_parquet(SweepFolder(folder).block_turns(f"b{number}"))


def test_the_width_is_that_of_the_blocks(tmp_path: Path) -> None:
    write_blocks(tmp_path, [1.5, 1.6, 1.7, 1.6])
    width = measure_width(tmp_path)
    logs = np.log([1.5, 1.6, 1.7, 1.6])
    assert width.repeats == 4
    assert width.reach == pytest.approx(3.182 * logs.std(ddof=1) / 2, rel=0.05)
    assert width.repeat_s == pytest.approx(32.1)  # from the start of TensorFlow to the end of a launch


def test_a_sweep_of_one_layout_has_nothing_that_could_be_wide(tmp_path: Path) -> None:
    write_run(tmp_path, make_launch(1, 0, 1.0))
    assert measure_width(tmp_path).reach == 0


def test_a_sweep_that_ends_says_its_width_and_what_more_blocks_would_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_blocks(tmp_path, [1.50, 1.60, 1.70, 1.60])
    rule = EndRule(width=0.02, budget_s=20.0)
    assert until_known(rule)(tmp_path) == 4
    said = says(capsys.readouterr().out, "after 4 blocks", "2 % would take about", "minutes")
    blocks = int(said.split(" would take about ")[1].split()[0])
    assert rule.blocks_for_width(measure_width(tmp_path).reach, 4) == blocks


def test_a_narrow_sweep_says_what_twice_the_blocks_would_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_blocks(tmp_path, [1.6] * 5)
    assert until_known(EndRule(width=0.05))(tmp_path) == 5
    says(capsys.readouterr().out, "after 5 blocks", "twice the blocks")


def test_a_sweep_that_ended_goes_on_when_a_smaller_width_is_asked_for(tmp_path: Path) -> None:
    write_blocks(tmp_path, [1.58, 1.60, 1.62, 1.60, 1.61])
    assert until_known(EndRule(width=0.05))(tmp_path) == 5
    assert until_known(EndRule(width=0.005, budget_s=1e4))(tmp_path) == 6


@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02, 0.03, 0.04, 0.06])
def test_a_sweep_that_goes_on_until_its_interval_is_narrow_still_covers_the_truth(spread: float) -> None:
    """Blocks that differ by 0.5 to 6 %, 5 s each: it ends within 2 %, or after 6 minutes of them."""
    random = np.random.default_rng(3)
    rule = EndRule()
    held = []
    reaches = []
    for _ in range(3000):
        blocks = random.normal(0, spread, 80)
        wanted = FEWEST_BLOCKS
        repeats = 0
        while wanted > repeats:
            repeats = wanted
            mean = mean_over_blocks(blocks[:repeats])
            assert mean is not None
            wanted = rule.next_repeats(mean.reach, repeats)
            wanted = rule.within_budget(wanted, repeats, _BLOCK_S * repeats, _BLOCK_S)
        held.append(abs(mean.mean) <= mean.reach)
        reaches.append(mean.reach)
    assert 0.92 <= np.mean(held) <= 0.96
    assert np.median(reaches) <= 0.02


@pytest.mark.parametrize(
    ("repeats", "reach", "wanted"),
    [(3, 0.005, 5), (3, 0.015, 6), (5, 0.005, 5), (5, 0.015, 6), (6, 0.015, 8), (8, 0.015, 8), (8, 0.025, 9)],
)
def test_two_more_blocks_confirm_that_an_interval_is_narrow(repeats: int, reach: float, wanted: int) -> None:
    assert EndRule().next_repeats(reach, repeats) == wanted


def test_a_narrow_sweep_of_any_number_of_blocks_makes_a_few_more_and_ends() -> None:
    rule = EndRule()
    for repeats in range(FEWEST_BLOCKS, 200):
        wanted = rule.next_repeats(0.001, repeats)
        while wanted != (following := rule.next_repeats(0.001, wanted)):
            wanted = following
        assert repeats <= wanted <= 1.5 * repeats + 2


@pytest.mark.parametrize(("seconds", "wanted"), [(60, 12), (300, 10), (340, 9), (355, 9), (1000, 9)])
def test_no_block_begins_that_would_end_after_the_budget(seconds: float, wanted: int) -> None:
    assert EndRule(budget_s=360).within_budget(12, 9, seconds, repeat_s=40.0) == wanted


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


@pytest.mark.parametrize(("text", "width"), [("2%", 0.02), ("0.5 %", 0.005), (" 50%", 0.5), (None, 0.02)])
def test_a_width_is_a_percentage(text: str | None, width: float) -> None:
    assert parse_width(text) == pytest.approx(width)


@pytest.mark.parametrize("text", ["2", "0%", "-1%", "51%", "nan%", "two%", "2%%", "2% 3", "", "inf%"])
def test_what_is_none_is_refused(text: str) -> None:
    with refuses("--width", text, "2%"):
        parse_width(text)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--repeats", "3", "--budget", "5"], ("--repeats 3", "--budget 5")),
        (["--repeats", "3", "--width", "1%"], ("--repeats 3", "--width 1%")),
        (["--mode", "jobs", "--width", "1%"], ("--width 1%", "--repeats")),
        (["--width", "1"], ("--width 1", "2%")),
    ],
)
def test_what_cannot_mean_anything_is_refused_before_work_begins(
    words: list[str], named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "--dataset", "mnist", "--scheduler", "local", *words]
    with refuses(*named):
        CliRunner().invoke(main, command, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "soon"])
def test_a_budget_is_a_number_of_minutes(minutes: str) -> None:
    ended = CliRunner().invoke(main, ["sweep", "--dataset", "mnist", "--budget", minutes])
    assert ended.exit_code == 2
    says(ended.output, "--budget", minutes)
