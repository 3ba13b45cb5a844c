"""When a sweep ends that is asked for no number of launches, what it says then, and what BUDGET and WIDTH refuse."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from harness.analysis.block_plan import LONGEST_S, SHORTEST_S, EndRule
from harness.cli import main
from harness.cli.command_sweep import parse_width
from harness.cli.sweep_end import SweepEnd, measure_width
from harness.schema.sweep_folder import SweepFolder
from tests.labs.factories import make_launch, write_run
from tests.labs.sentences import refuses, says

_ROUNDS = 60
_ROUND_S = 0.1


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


def test_the_width_and_the_variances_are_those_of_the_blocks(tmp_path: Path) -> None:
    write_blocks(tmp_path, [1.5, 1.6, 1.7, 1.6])
    width = measure_width(tmp_path)
    logs = np.log([1.5, 1.6, 1.7, 1.6])
    assert width.repeats == 4
    assert width.reach == pytest.approx(3.182 * logs.std(ddof=1) / 2, rel=0.05)
    assert width.repeat_s == pytest.approx(32.1)  # from the start of TensorFlow to the end of a launch
    assert width.rounds_s == pytest.approx((_ROUNDS - 1) * _ROUND_S)
    assert width.spread is not None
    assert math.sqrt(width.spread.within / _ROUND_S) == pytest.approx(math.sqrt(2) * 0.01, rel=0.5)


def test_a_sweep_of_one_layout_has_nothing_that_could_be_wide(tmp_path: Path) -> None:
    write_run(tmp_path, make_launch(1, 0, 1.0))
    assert measure_width(tmp_path).reach == 0


def test_a_sweep_that_ends_says_its_width_and_what_more_blocks_would_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_blocks(tmp_path, [1.50, 1.60, 1.70, 1.60])
    wanted = SweepEnd(EndRule(width=0.02, budget_s=20.0), with_lengths=True).wanted_repeats(tmp_path)
    assert wanted == 4
    said = says(capsys.readouterr().out, "after 4 blocks", "2 % would take about", "minutes")
    blocks = int(said.split(" would take about ")[1].split()[0])
    assert EndRule(width=0.02).blocks_for_width(measure_width(tmp_path).reach, 4) == blocks


def test_a_narrow_sweep_says_what_twice_the_blocks_would_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_blocks(tmp_path, [1.6] * 5)
    assert SweepEnd(EndRule(width=0.05), with_lengths=True).wanted_repeats(tmp_path) == 5
    says(capsys.readouterr().out, "after 5 blocks", "twice the blocks")


def test_a_wide_sweep_goes_on_with_blocks_of_a_length_that_it_chooses(tmp_path: Path) -> None:
    write_blocks(tmp_path, [1.5, 1.6, 1.7])
    end = SweepEnd(EndRule(budget_s=1e4), with_lengths=True)
    assert end.block_seconds() == 0
    assert end.wanted_repeats(tmp_path) == 6
    assert SHORTEST_S <= end.block_seconds() <= LONGEST_S


def test_a_script_trains_what_it_trains(tmp_path: Path) -> None:
    write_blocks(tmp_path, [1.5, 1.6, 1.7])
    end = SweepEnd(EndRule(budget_s=1e4), with_lengths=False)
    assert end.wanted_repeats(tmp_path) == 6
    assert end.block_seconds() == 0


@pytest.mark.parametrize(("text", "width"), [("2%", 0.02), ("0.5 %", 0.005), (" 50%", 0.5), (None, 0.02)])
def test_a_width_is_a_percentage(text: str | None, width: float) -> None:
    assert parse_width(text) == pytest.approx(width)


@pytest.mark.parametrize("text", ["2", "0%", "-1%", "51%", "nan%", "two%", "2%%", "2% 3", "", "inf%"])
def test_what_is_none_is_refused(text: str) -> None:
    with refuses("WIDTH=", text, "2%"):
        parse_width(text)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--repeats", "3", "--budget", "5"], ("REPEATS=3", "BUDGET=5")),
        (["--repeats", "3", "--width", "1%"], ("REPEATS=3", "WIDTH=1%")),
        (["--mode", "jobs", "--width", "1%"], ("WIDTH=1%", "REPEATS=")),
        (["--width", "1"], ("WIDTH=1", "2%")),
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
