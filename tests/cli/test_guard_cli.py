"""Baselines, checks and comparisons as users call them: exit codes, files, one sentence for what cannot be done."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from harness.base.errors import UserError
from harness.cli import main
from harness.schema.record import encode
from tests.labs.factories import START, make_point, make_provenance, make_run, write_run, write_study

WIGGLE = (0.0, 0.01, -0.01, 0.02, -0.02, 0.005, -0.005, 0.015, -0.015, 0.003, -0.003, 0.008)
OLD, NEW = "a" * 40, "b" * 40


def write_launches(
    results: Path,
    launches: int,
    *,
    slower: float = 1.0,
    commit: str = OLD,
    hostname: str = "node1",
    first: int = 0,
    name: str = "study",
    ranks: Sequence[int] = (1, 2),
    dirty: bool = False,
    code: str = "",
    **workload: object,
) -> Path:
    """Write a sweep of `launches` blocks from repeat `first` on, and return its folder."""
    sweep = results / name
    write_study(sweep, ranks=ranks, **workload)
    for repeat in range(first, first + launches):
        for place, count in enumerate(ranks):
            base = (1 + WIGGLE[(repeat + 5 * place) % len(WIGGLE)]) / count**0.9 * (slower if count > 1 else 1.0)
            run = make_run(
                replace(make_point(count, repeat, **workload), code=code),
                seconds=[[base] * count] * 3,
                provenance=make_provenance(commit=commit, hostname=hostname, dirty=dirty),
                started=START + timedelta(minutes=10 * repeat + place),
            )
            write_run(sweep, run)
    return sweep


def harness(*words: object, folder: Path) -> Result:
    """Call the command line with `folder`'s results, baselines and reports."""
    places = {"results": folder / "results", "baselines": folder / "baselines", "reports": folder / "reports"}
    taken = {
        "baseline": ("results", "baselines") if "save" in words else ("baselines",),
    }
    taken |= dict.fromkeys(("check", "compare", "history"), tuple(places))
    options = [word for name in taken[str(words[0])] for word in (f"--{name}", str(places[name]))]
    return CliRunner().invoke(main, [*map(str, words), *options], standalone_mode=False)


def code(result: Result) -> int:
    """Return the exit code that `python -m harness` makes of the result."""
    if isinstance(result.exception, UserError):
        return 2
    assert result.exception is None, result.exception
    return result.return_value or 0


def said(result: Result) -> str:
    """Return what the command printed, in one line."""
    return " ".join(result.output.split())


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a folder with a baseline of 12 launches and no other ones."""
    write_launches(tmp_path / "results", 12)
    assert code(harness("baseline", "save", "main", "--note", "first", folder=tmp_path)) == 0
    (tmp_path / "results/study").rename(tmp_path / "first")
    return tmp_path


DAY = 144  # repeats, ten minutes each


def test_every_format_has_the_verdict_and_the_exit_code_is_that_of_it(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=4, commit=NEW, first=DAY)
    markdown, junit = kept / "check.md", kept / "check.xml"
    formats = ["--format", "markdown", "--output", markdown, "--format", "junit", "--output", junit]
    result = harness("check", "study", "--against", "main", *formats, folder=kept)
    assert code(result) == 1, result.output
    assert "REGRESSION: mnist-dnn against 'main'" in result.output
    page = unescape(Path(result.output.splitlines()[-1]).read_text())
    assert "Did MNIST-DNN get worse since 'main'?" in page and "REGRESSION: mnist-dnn" in page
    text = markdown.read_text()
    assert text.startswith("**REGRESSION: ")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {10}
    (suite,) = ElementTree.fromstring(junit.read_text())
    failures = int(suite.get("failures") or 0)
    assert failures >= 2 and int(suite.get("tests") or 0) > failures


def test_one_session_of_a_baseline_cannot_tell_a_small_change_and_says_what_would(kept: Path) -> None:
    write_launches(kept / "results", 6, commit=NEW, first=DAY)
    result = harness("check", "study", folder=kept)
    assert code(result) == 3
    assert "CANNOT TELL: mnist-dnn against 'main'" in result.output and "baseline save" in said(result)


def test_only_the_newest_commit_is_judged(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=1.5, commit="c" * 40, first=DAY)
    write_launches(kept / "results", 6, commit=NEW, first=2 * DAY)
    assert "Now: commit bbbbbbbbbbbb" in harness("check", "study", folder=kept).output
    assert "Now: commit cccccccccccc" in harness("check", "study@ccc", folder=kept).output
    back = harness("check", "study@bbb", "--against", "study@ccc", folder=kept)
    assert "against 'study@ccc'" in said(back), back.output
    wrong = harness("check", "study@ddd", folder=kept)
    assert "no valid launch of commit 'ddd'" in str(wrong.exception)


def test_what_cannot_be_compared_exits_with_2_and_the_reason(kept: Path) -> None:
    write_launches(kept / "results", 6, hostname="node2", first=DAY)
    other_machine = harness("check", "study", "--threshold", 5, folder=kept)
    assert code(other_machine) == 2
    assert "cannot compare: 'main' was measured on another machine (node1: Example CPU" in str(other_machine.exception)
    alike = harness("check", "study", "--other-machine", folder=kept)
    assert code(alike) == 3 and "host changed: node1 to node2" in said(alike)
    write_launches(kept / "results", 6, first=DAY, name="other", batch_per_rank=128)
    other_work = harness("check", "other", folder=kept)
    assert code(other_work) == 2
    assert "(batch per rank: 64 against 128)" in str(other_work.exception)
    unknown = harness("check", "study", "--against", "mian", folder=kept)
    assert code(unknown) == 2
    assert "did you mean 'main'?" in str(unknown.exception)


def test_a_baseline_is_not_compared_with_its_own_launches(tmp_path: Path) -> None:
    write_launches(tmp_path / "results", 6)
    none = harness("check", "study", folder=tmp_path)
    assert (code(none), "no baseline in" in str(none.exception)) == (2, True)
    assert code(harness("baseline", "save", "main", folder=tmp_path)) == 0
    itself = harness("check", "study", folder=tmp_path)
    assert code(itself) == 2
    assert "are those of 'main' itself: measure again" in str(itself.exception)


def test_a_study_of_another_machine_is_not_measured_again_here(kept: Path) -> None:
    """The baseline of the factories' machine: nothing is launched."""
    refused = harness("check", folder=kept)
    assert code(refused) == 2
    assert "--other-machine" in str(refused.exception) and not (kept / "results/checks").exists()


def test_a_sweep_that_ended_within_the_hour_is_judged_and_not_measured_again(kept: Path) -> None:
    minutes = (datetime.now(UTC) - START) // timedelta(minutes=1)
    write_launches(kept / "results", 3, commit=NEW, first=minutes // 10 - 4)
    result = harness("check", folder=kept)
    assert code(result) == 3, result.output
    assert "judged: 'study', whose last launch ended within the hour" in said(result)


def test_invalid_launches_are_left_out_and_said(kept: Path) -> None:
    sweep = write_launches(kept / "results", 6, commit=NEW, first=DAY)
    run = make_run(
        make_point(2, 40), seconds=[[9.0, 9.0]] * 3, provenance=make_provenance(commit=NEW), invalid=("other load",)
    )
    write_run(sweep, run)
    result = harness("check", "study", folder=kept)
    assert code(result) == 3
    assert "1 of 13 launches of the new sessions are left out: not valid, or all beside other work." in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("save", "../x"), "NAME '../x' is not a name"),
        (("save", "main", "few"), "(batch per rank: 64 against 32)"),
        (("save", "few", "few"), "needs 3 valid launches of each layout, and 1 rank of"),
        (("show", "mian"), "did you mean 'main'?"),
        (("save", "new", "nothing"), "unknown sweep 'nothing'"),
    ],
)
def test_bad_baselines_are_one_sentence(kept: Path, words: tuple[str, ...], sentence: str) -> None:
    write_launches(kept / "results", 6, first=13)
    write_launches(kept / "results", 2, name="few", batch_per_rank=32)
    before = sorted((kept / "baselines").iterdir())
    result = harness("baseline", *words, folder=kept)
    assert code(result) == 2
    assert sentence in str(result.exception)
    assert sorted((kept / "baselines").iterdir()) == before


def test_a_baseline_can_be_reviewed_listed_and_replaced(kept: Path) -> None:
    content = json.loads((kept / "baselines/main.json").read_text())
    assert (content["name"], content["note"]) == ("main", "first")
    assert [round(one["seconds"], 3) for one in content["measurements"][0]["launches"]][:2] == [1.0, 0.539]
    assert "main" in harness("baseline", "list", folder=kept).output
    shown = harness("baseline", "show", "main", folder=kept).output
    assert "aaaaaaaaaaaa" in shown and "efficiency" in shown
    write_launches(kept / "results", 6, commit=NEW, first=13)
    assert code(harness("baseline", "save", "main", "--replace", folder=kept)) == 0
    assert json.loads((kept / "baselines/main.json").read_text())["measurements"][0]["software"]["commit"] == NEW


def test_a_damaged_baseline_names_the_file(kept: Path) -> None:
    path = kept / "baselines/main.json"
    path.write_bytes(path.read_bytes()[:500])
    write_launches(kept / "results", 6, commit=NEW, first=13)
    result = harness("check", "study", folder=kept)
    assert code(result) == 2
    assert f"'{path}' is cut or damaged" in str(result.exception)


def test_compare_says_what_differs_and_by_how_much(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=1.3, commit=NEW, first=13)
    result = harness("compare", "main", "study", folder=kept)
    assert code(result) == 0
    assert "commit: aaaaaaaaaaaa against bbbbbbbbbbbb" in result.output
    assert "On 2 ranks study is slower than main: 0.77 times as fast (95 % CI" in result.output
    page = Path(result.output.splitlines()[-1])
    assert "Is study faster than main?" in page.read_text() and "harness compare main study" in page.read_text()
    assert 'data-sides="main|study"' in (page.parents[1] / "index.html").read_text()
    alone = harness("compare", "main", folder=kept)
    assert (code(alone), "two or more" in str(alone.exception)) == (2, True)


def test_the_same_launches_are_not_compared_with_themselves(tmp_path: Path) -> None:
    write_launches(tmp_path / "results", 12)
    assert code(harness("baseline", "save", "main", folder=tmp_path)) == 0
    same = harness("compare", "main", "study", folder=tmp_path)
    assert (code(same), "'study' and 'main' are the same launches" in str(same.exception)) == (2, True)
    write_launches(tmp_path / "results", 6, first=12)
    more = harness("compare", "main", "study", folder=tmp_path)
    assert (code(more), "study: 24 launches that are in main too are left out" in more.output) == (0, True)


def test_a_check_is_one_json_document(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=1.15, commit=NEW, first=DAY)
    found = json.loads(harness("check", "study", "--json", folder=kept).stdout)
    assert (found["verdict"], found["against"]) == ("cannot tell", "main")
    assert found["answer"].startswith("CANNOT TELL: ") and found["rows"][0]["interval"].keys() == {"low", "high"}
    quiet = harness("check", "study", "--quiet", folder=kept)
    assert (code(quiet), quiet.stdout) == (3, found["answer"] + "\n")


def test_one_launch_can_be_compared(kept: Path) -> None:
    sweep = write_launches(kept / "results", 6, first=13)
    launch = next(sweep.glob("n2x1x1-r13-*"))
    result = harness("compare", "main", launch, folder=kept)
    assert code(result) == 0
    assert "3 launches of each are needed to judge" in " ".join(result.output.split())
    found = json.loads(harness("compare", "main", launch, "--json", folder=kept).stdout)
    assert [row["launches"] for row in found["comparisons"][0]["rows"]] == [[12, 1]]


def test_history_draws_every_commit_of_the_study(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=1.4, commit=NEW, first=13)
    result = harness("history", "--format", "markdown", "--output", str(kept / "history.md"), folder=kept)
    comment = (kept / "history.md").read_text()
    assert comment.startswith("**") and "\n| --- |" in comment and comment.count("\n| ") >= 3
    assert code(result) == 0
    assert "bbbbbbbbbbbb" in comment and "aaaaaaaaaaaa" in comment
    page = Path(result.output.splitlines()[-1])
    assert page.read_text().count("<figure") == 3


def test_baselines_of_another_schema_are_refused(kept: Path) -> None:
    path = kept / "baselines/main.json"
    path.write_bytes(encode(json.loads(path.read_bytes()) | {"schema": 99}))
    result = harness("baseline", "show", "main", folder=kept)
    assert "has schema 99" in str(result.exception)


def test_two_edits_of_one_commit_are_two_states_for_check_and_history(kept: Path) -> None:
    write_launches(kept / "results", 6, commit=NEW, dirty=True, code="aaaaaa-0", first=13)
    write_launches(kept / "results", 6, commit=NEW, dirty=True, code="cccccc-0", first=14, slower=1.4)
    assert "bbbbbbbbbbbb+cccccc" in harness("check", "study", folder=kept).output
    assert "bbbbbbbbbbbb+aaaaaa" in harness("check", f"study@{NEW[:12]}+aaa", folder=kept).output
    shown = harness("history", "--json", folder=kept).output
    assert "bbbbbbbbbbbb+cccccc" in shown and "bbbbbbbbbbbb+aaaaaa" in shown


def test_edits_of_a_users_script_are_compared_over_time(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("first = 1\n")
    workload = {"dataset": "script", "preset": "script", "model": "train", "data_file": str(script)}
    write_launches(tmp_path / "results", 12, code="aaaaaa-0", **workload)
    assert code(harness("baseline", "save", "main", folder=tmp_path)) == 0
    write_launches(tmp_path / "results", 6, code="cccccc-0", first=13, slower=1.3, **workload)
    checked = harness("check", "study", folder=tmp_path)
    assert "Now: commit aaaaaaaaaaaa+cccccc" in checked.output
    shown = said(harness("history", "--json", folder=tmp_path))
    assert "aaaaaaaaaaaa+cccccc" in shown and "aaaaaaaaaaaa+aaaaaa" in shown
