"""How commands end: a table and a sentence for people, one JSON document for programs."""

import io
import json
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.base.errors import RunError
from harness.cli import COMMANDS, main
from harness.cli.answer_output import WIDTH, answering, print_table
from harness.cli.command_make import settings_of
from harness.report.answer import Answer, Table
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_files import read_study

SENTENCE = "2\u00a0ranks train MNIST-DNN 1.70 times as fast as 1\u00a0rank, 95 % CI 1.65 to 1.75, 6 each."


@click.command()
@click.option("--fail", is_flag=True)
@answering
def ask(fail: bool) -> Answer:
    """Answer."""
    click.echo("launch 1 of 2")
    click.echo("a remark", err=True)
    return Answer(
        sentence=SENTENCE,
        table=Table(
            title="", headings=("Ranks", "Epoch", "What is to be said of it"), rows=[("2", "216\u00a0ms", "word " * 30)]
        ),
        data={"speedup": np.float64(1.7), "ranks": np.int64(2), "folder": Path("results/x"), "unknown": float("nan")},
        page=Path("reports/x/index.html"),
        problem="1 of 12 launches failed" if fail else "",
    )


def test_people_get_a_table_a_sentence_and_the_page_within_80_columns() -> None:
    said = CliRunner().invoke(ask).stdout
    lines = said.splitlines()
    assert lines[0] == "launch 1 of 2" and lines[-1] == "reports/x/index.html"
    assert max(map(len, lines)) <= WIDTH and "\x1b" not in said and "\u00a0" not in said
    assert " ".join(said.split()).count(SENTENCE.replace("\u00a0", " ")) == 1


def test_columns_of_numbers_stand_to_the_right_and_texts_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ("mnist: 2 ranks", "1.70 (1.65 to 1.75)", "3f2a", "9"),
        ("all", "−0.2 %", "1e9f", "12"),
        ("x", "–", "", "1"),
    ]
    print_table(("Claim", "Gain", "Commit", "Launches"), rows)
    head, first, second, last = capsys.readouterr().out.rstrip().splitlines()
    assert head.startswith("Claim") and second.startswith("all ") and last.endswith("       1")
    ends = [line.index(text) + len(text) for line, text in ((head, "Gain"), (first, "1.75)"), (second, "%"))]
    assert len(set(ends)) == 1
    assert first.index("3f2a") == second.index("1e9f") == head.index("Commit")


def test_no_word_of_a_heading_is_cut_in_the_table_of_a_sweep_with_predictions() -> None:
    headings = ["Ranks", "Epoch", "Speedup", "95 % CI", "Efficiency", "Speedup, all rounds", "Test accuracy"]
    headings += ["Launches", "Predicted"]
    measured = ("2", "2.06\u00a0s", "1.92", "1.90 to 1.93", "96\u00a0%", "1.91", "68.40\u00a0%", "8", "–")
    predicted = ("8", "–", "–", "–", "–", "–", "–", "0", "6.7 (5.9 to 7.3)")
    output = io.StringIO()
    print_table(headings, [measured, predicted], console=Console(width=WIDTH, file=output))
    lines = output.getvalue().splitlines()
    words = {word for line in lines for word in line.split()}
    assert words >= {word for heading in headings for word in heading.split()}
    assert max(map(len, lines)) <= WIDTH


def test_programs_get_one_document_and_nothing_else() -> None:
    told = CliRunner().invoke(ask, ["--json"])
    found = json.loads(told.stdout)
    assert found["answer"] == SENTENCE.replace("\u00a0", " ")
    assert (found["speedup"], found["ranks"], found["unknown"]) == (1.7, 2, None)
    assert (found["folder"], found["page"]) == ("results/x", "reports/x/index.html")
    assert "launch 1 of 2" in told.stderr


def test_quiet_is_the_sentence() -> None:
    told = CliRunner().invoke(ask, ["--quiet"])
    assert told.stdout == SENTENCE.replace("\u00a0", " ") + "\n"
    assert told.stderr == "a remark\n"


@pytest.mark.parametrize("flags", [[], ["--json"], ["--quiet"]])
def test_what_went_wrong_comes_after_the_answer_and_sets_the_exit_code(flags: list[str]) -> None:
    told = CliRunner().invoke(ask, ["--fail", *flags], standalone_mode=False)
    assert isinstance(told.exception, RunError) and "1.70 times" in told.stdout
    if flags == ["--json"]:
        assert json.loads(told.stdout)["problem"] == "1 of 12 launches failed"


@pytest.mark.parametrize("name", ["sweep", "check", "compare", "probe", "run", "claims", "paper", "history", "status"])
def test_every_command_that_answers_has_both_flags_for_make_too(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None and name in COMMANDS
    assert {"JSON", "QUIET"} <= set(settings_of(command))


def test_the_main_jobs_default_gives_an_interval(tmp_path: Path) -> None:
    words = ("--dataset", "adult", "--data-kind", "synthetic", "--scheduler", "local", "--nodes", "1", "--dry-run")
    planned = CliRunner().invoke(main, ["sweep", *words, "--results", str(tmp_path)])
    assert planned.exit_code == 0, planned.output
    assert read_study(SweepFolder(next(tmp_path.glob("adult*")))).sweep.repeats == FEWEST_BLOCKS
