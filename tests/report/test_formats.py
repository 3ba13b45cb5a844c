"""Answers in the formats of other tools, each read by the tool's own parser or held against its documented form."""

import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.report.answer import Answer, CaseOutcome, CaseResult, CaseSuite
from harness.report.formats import FORMATS
from harness.schema.layout import Layout
from harness.schema.record import Failure, encode
from harness.schema.sweep import Skipped
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_files import read_study
from tests.labs.factories import START, make_launch, make_point, write_run, write_study
from tests.labs.sentences import refuses

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"
COUNTS = (1, 2, 4, 8, 16)


def call(*words: object, folder: Path) -> Result:
    """Call the command line with `folder`'s results and reports."""
    places = ["--results", str(folder / "results"), "--reports", str(folder / "reports")]
    return CliRunner().invoke(main, [*map(str, words), *places], standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a folder with a sweep that has a valid launch, an invalid one, a failure and a layout that was skipped."""
    folder = tmp_path / "results" / "mixed"
    write_study(folder, ranks=(1, 2))
    study = read_study(SweepFolder(folder))
    skipped = Skipped(layout=Layout(nodes=4), reason="4 ranks need 4 cores, here are 2")
    SweepFolder(folder).study.write_bytes(encode(replace(study, skipped=(skipped,))))
    write_run(folder, make_launch(1, 0, 1.0))
    write_run(folder, replace(make_launch(2, 0, 0.6), invalid=("other work kept 1 core busy",)))
    failure = Failure(
        point=make_point(2, 1),
        ended=START,
        exit_code=139,
        reason="rank 1 ended by signal 11",
        tail="a <line> & \x1b[31mcolour\x1b[0m",
        seconds=3.5,
    )
    SweepFolder(folder).failures.mkdir()
    (SweepFolder(folder).failures / f"{failure.point.folder}.json").write_bytes(encode(failure))
    return tmp_path


def test_junit_has_every_launch_also_those_that_failed_or_were_skipped(mixed: Path) -> None:
    file = mixed / "sweep.xml"
    call("report", "mixed", "--format", "junit", "--output", file, folder=mixed)
    (suite,) = ElementTree.fromstring(file.read_text())
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "0", "2"]
    outcomes = {}
    for case in suite.iter("testcase"):
        outcomes[case.get("name")] = [child.tag for child in case if child.tag != "system-out"]
    assert outcomes == {
        "1 rank, launch 1": [],
        "2 ranks, launch 1": ["skipped"],
        "2 ranks, launch 2": ["failure"],
        "4 ranks": ["skipped"],
    }


@pytest.mark.slow  # whole commands
def test_junit_is_read_by_junitparser(mixed: Path) -> None:
    junitparser = pytest.importorskip("junitparser", reason="package junitparser")
    file = mixed / "sweep.xml"
    call("report", "mixed", "--format", "junit", "--output", file, folder=mixed)
    report = junitparser.JUnitXml.fromfile(str(file))
    (suite,) = report
    cases = {case.name: case for case in suite}
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 1, 0, 2)
    (failure,) = cases["2 ranks, launch 2"].result
    assert isinstance(failure, junitparser.Failure) and "139" in failure.message and "<line> &" in failure.text
    assert cases["2 ranks, launch 2"].time == 3.5 and cases["1 rank, launch 1"].is_passed


def test_junit_holds_any_character_of_an_output() -> None:
    case = CaseResult(group="g", name="n", outcome=CaseOutcome.FAILED, reason="\x00\ud800", output="\x1b")
    answer = Answer(sentence="s", suite=CaseSuite(name="x", cases=[case]), when=datetime(2026, 1, 1, tzinfo=UTC))
    ElementTree.fromstring(FORMATS["junit"].render(answer).encode())


def test_explain_has_the_names_of_talp_in_its_document(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / SWEEP.name).symlink_to(SWEEP)
    document = json.loads(call("explain", SWEEP.name, "--json", folder=tmp_path).stdout)
    names = document["talp"]["2 ranks"]
    product = names["mpiLoadBalance"] * names["mpiCommunicationEfficiency"]
    assert math.isclose(names["parallelEfficiency"], product)
    assert math.isclose(names["globalEfficiency"], product * names["computationScalability"])


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("explain", SWEEP.name, "--format", "junit"), ("does not fit `harness",)),
        (
            ("report", SWEEP.name, "--format", "junti"),
            ("did you mean", "junti"),
        ),
        (
            ("report", SWEEP.name, "--output", "x"),
            ("needs a format: add", "--format"),
        ),
        (
            ("report", SWEEP.name, "--format", "junit", "--json"),
            ("--json and --format both", "--output"),
        ),
        (
            ("report", SWEEP.name, "--format", "junit", "--format", "markdown", "--output", "x"),
            ("FILE for each --format", "--output"),
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(
    words: tuple[str, ...], refusal: str, tmp_path: Path
) -> None:
    with refuses(*refusal):
        call(*words, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_format_is_offered_by_the_commands_that_it_names() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        offers = any("--format" in parameter.opts for parameter in command.params)
        assert offers == any(name in fit.commands for fit in FORMATS.values()), name
