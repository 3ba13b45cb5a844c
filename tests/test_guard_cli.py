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

from harness.analysis.read_results import load_sweep
from harness.base.errors import UserError
from harness.cli import main
from harness.regression.measurements import measurements
from harness.regression.sequential_test import MoreLaunches, measure_until_decided
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement
from harness.schema.record import encode
from harness.schema.sweep import Sweep
from harness.sweep.plan import current
from tests.factories import START, make_point, make_provenance, make_run, make_workload, write_run, write_study

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
        "noise": ("results", "baselines"),
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


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a folder with a baseline of 12 launches and no other ones."""
    write_launches(tmp_path / "results", 12)
    assert code(harness("baseline", "save", "main", "--note", "first", folder=tmp_path)) == 0
    (tmp_path / "results/study").rename(tmp_path / "first")
    return tmp_path


def test_the_same_speed_passes_with_0(kept: Path) -> None:
    write_launches(kept / "results", 6, commit=NEW, first=20)
    result = harness("check", folder=kept)
    assert code(result) == 0
    assert "PASS: mnist-dnn at bbbbbbbbbbbb against 'main'" in result.output
    page = unescape(Path(result.output.splitlines()[-1]).read_text())
    assert "Did MNIST-DNN get worse since 'main'?" in page and "PASS: mnist-dnn" in page and "harness check" in page


def test_a_slowdown_fails_with_1_and_every_format_says_so(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=1.15, commit=NEW, first=20)
    markdown, junit = kept / "check.md", kept / "check.xml"
    result = harness("check", "--against", "main", "--markdown", markdown, "--junit", junit, folder=kept)
    assert code(result) == 1
    assert "REGRESSION: mnist-dnn at bbbbbbbbbbbb against 'main': 13" in result.output
    text = markdown.read_text()
    assert text.startswith("**REGRESSION: ")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {10}
    assert sum("| regression |" in line for line in rows) == 2
    suite = ElementTree.fromstring(junit.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "2", "0")
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed == ["epoch time on 2\u00a0ranks", "efficiency on 2\u00a0ranks"]


def test_a_gain_is_an_improvement_with_0(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=0.8, commit=NEW, first=20)
    result = harness("check", folder=kept)
    assert code(result) == 0
    assert "IMPROVEMENT: " in result.output


def test_three_launches_are_inconclusive_with_3_and_say_how_many_more(kept: Path) -> None:
    write_launches(kept / "results", 3, slower=1.5, commit=NEW, first=20)
    junit = kept / "check.xml"
    result = harness("check", "--junit", junit, folder=kept)
    assert code(result) == 3
    assert "INCONCLUSIVE: " in result.output
    assert "3 more launches of each layout can decide it" in " ".join(result.output.split())
    suite = ElementTree.fromstring(junit.read_text())
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "3")


def test_only_the_newest_commit_is_judged(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=1.5, commit="c" * 40, first=20)
    write_launches(kept / "results", 6, commit=NEW, first=30)
    assert code(harness("check", folder=kept)) == 0
    assert code(harness("check", "study@ccc", folder=kept)) == 1
    back = harness("check", "study@bbb", "--against", "study@ccc", folder=kept)
    assert (code(back), "IMPROVEMENT: " in back.output) == (0, True)
    wrong = harness("check", "study@ddd", folder=kept)
    assert "no valid launch of commit 'ddd'" in str(wrong.exception)


def test_what_cannot_be_compared_exits_with_2_and_the_reason(kept: Path) -> None:
    write_launches(kept / "results", 6, hostname="node2", first=20)
    other_machine = harness("check", folder=kept)
    assert code(other_machine) == 2
    assert "cannot compare: 'main' was measured on another machine (node1: Example CPU" in str(other_machine.exception)
    write_launches(kept / "results", 6, first=20, name="other", batch_per_rank=128)
    other_work = harness("check", "other", folder=kept)
    assert code(other_work) == 2
    assert "(batch per rank: 64 against 128)" in str(other_work.exception)
    unknown = harness("check", "--against", "mian", folder=kept)
    assert code(unknown) == 2
    assert "did you mean 'main'?" in str(unknown.exception)


def test_a_baseline_is_not_compared_with_its_own_launches(tmp_path: Path) -> None:
    write_launches(tmp_path / "results", 6)
    none = harness("check", folder=tmp_path)
    assert (code(none), "no baseline in" in str(none.exception)) == (2, True)
    assert code(harness("baseline", "save", "main", folder=tmp_path)) == 0
    itself = harness("check", folder=tmp_path)
    assert code(itself) == 2
    assert "are those of 'main' itself: measure again" in str(itself.exception)


def test_invalid_launches_are_left_out_and_said(kept: Path) -> None:
    sweep = write_launches(kept / "results", 6, commit=NEW, first=20)
    run = make_run(
        make_point(2, 40), seconds=[[9.0, 9.0]] * 3, provenance=make_provenance(commit=NEW), invalid=("other load",)
    )
    write_run(sweep, run)
    result = harness("check", folder=kept)
    assert code(result) == 0
    assert "Not valid, and left out: 1\u00a0launch of the current commit." in result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("save", "../x"), "NAME '../x' is not a name"),
        (("save", "main"), "baseline 'main' exists already"),
        (("save", "few", "few"), "needs 6 valid launches of each layout, and 1 x 1 ranks x 1 threads of"),
        (("show", "mian"), "did you mean 'main'?"),
        (("save", "new", "nothing"), "unknown SWEEP 'nothing'"),
    ],
)
def test_bad_baselines_are_one_sentence(kept: Path, words: tuple[str, ...], sentence: str) -> None:
    write_launches(kept / "results", 6, first=20)
    write_launches(kept / "results", 3, name="few", batch_per_rank=32)
    before = sorted((kept / "baselines").iterdir())
    result = harness("baseline", *words, folder=kept)
    assert code(result) == 2
    assert sentence in str(result.exception)
    assert sorted((kept / "baselines").iterdir()) == before


def test_a_baseline_can_be_reviewed_listed_and_replaced(kept: Path) -> None:
    content = json.loads((kept / "baselines/main.json").read_text())
    assert (content["name"], content["note"]) == ("main", "first")
    assert [round(one["seconds"], 3) for one in content["measurement"]["launches"]][:2] == [1.0, 0.539]
    assert "main" in harness("baseline", "list", folder=kept).output
    shown = harness("baseline", "show", "main", folder=kept).output
    assert "aaaaaaaaaaaa" in shown and "efficiency" in shown
    write_launches(kept / "results", 6, commit=NEW, first=20)
    assert code(harness("baseline", "save", "main", "--replace", folder=kept)) == 0
    assert json.loads((kept / "baselines/main.json").read_text())["measurement"]["software"]["commit"] == NEW


def test_a_damaged_baseline_names_the_file(kept: Path) -> None:
    path = kept / "baselines/main.json"
    path.write_bytes(path.read_bytes()[:500])
    write_launches(kept / "results", 6, commit=NEW, first=20)
    result = harness("check", folder=kept)
    assert code(result) == 2
    assert f"'{path}' is cut or damaged" in str(result.exception)


def test_noise_is_kept_with_its_age_and_used(kept: Path) -> None:
    write_launches(kept / "results", 12, first=2000)
    result = harness("noise", folder=kept)
    assert code(result) == 0
    assert "efficiency" in result.output
    assert "24\u00a0launches added" in result.output
    assert len(list((kept / "baselines/noise").iterdir())) == 1
    days = (datetime.now(UTC) - START - timedelta(minutes=10 * 2011 + 1)).days
    assert f"{days:,} days old" in harness("noise", "--list", folder=kept).output
    write_launches(kept / "results", 6, commit=NEW, first=4000)
    checked = harness("check", folder=kept)
    assert f"also learned from 24\u00a0launches of commit aaaaaaaaaaaa, {days:,}\u00a0days old" in checked.output


def test_noise_that_adds_nothing_is_not_kept_and_not_counted(tmp_path: Path) -> None:
    """The same launches as baseline and as A/A runs are one session, not two."""
    write_launches(tmp_path / "results", 12)
    assert code(harness("baseline", "save", "main", folder=tmp_path)) == 0
    result = harness("noise", folder=tmp_path)
    assert code(result) == 0
    assert "nothing added: all of these" in result.output
    assert not (tmp_path / "baselines/noise").exists()
    write_launches(tmp_path / "results", 6, commit=NEW, first=2000)
    checked = harness("check", folder=tmp_path)
    assert "learned from" not in checked.output
    assert "a deviation of 2\u00a0% is assumed" in " ".join(checked.output.split(" "))


def test_sessions_of_several_days_add_up_until_they_are_known(kept: Path) -> None:
    for day in range(1, 6):
        write_launches(kept / "results", 6, first=2000 * day)
        assert "12\u00a0launches added" in harness("noise", folder=kept).output
    assert "assumed" not in harness("noise", folder=kept).output
    write_launches(kept / "results", 6, slower=1.05, commit=NEW, first=20_000)
    checked = harness("check", folder=kept)
    assert "assumed" not in checked.output
    assert "REGRESSION" in checked.output  # 5 % is more than these calm days make


def test_compare_says_what_differs_and_by_how_much(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=1.3, commit=NEW, first=20)
    result = harness("compare", "main", "study", folder=kept)
    assert code(result) == 0
    assert "commit: aaaaaaaaaaaa against bbbbbbbbbbbb" in result.output
    assert "On 2 ranks study is slower than main: 0.77 times as fast (95 % interval" in result.output
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
    write_launches(kept / "results", 6, slower=1.15, commit=NEW, first=20)
    found = json.loads(harness("check", "--json", folder=kept).stdout)
    assert (found["verdict"], found["against"]) == ("regression", "main")
    assert found["answer"].startswith("REGRESSION: ") and found["rows"][0]["interval"].keys() == {"low", "high"}
    quiet = harness("check", "--quiet", folder=kept)
    assert (code(quiet), quiet.stdout) == (1, found["answer"] + "\n")


def test_a_plain_check_takes_the_sweep_of_the_baselines_study_and_says_so(kept: Path) -> None:
    """The newest sweep was another study's, or one that was only planned: the check could not compare."""
    write_launches(kept / "results", 6, commit=NEW, first=20)
    write_launches(kept / "results", 2, commit=NEW, first=900, name="other", sync="weights:epoch")
    write_study(kept / "results/planned")
    result = harness("check", folder=kept)
    assert (code(result), "PASS: " in result.output) == (0, True), result.output
    assert "compared with 'main': study, 12\u00a0valid launches, the only sweep" in result.output


def test_one_launch_can_be_compared(kept: Path) -> None:
    sweep = write_launches(kept / "results", 6, first=20)
    launch = next(sweep.glob("n2x1x1-r20-*"))
    result = harness("compare", "main", launch, folder=kept)
    assert code(result) == 0
    assert "1 against 12" in result.output
    assert "6 launches of each are needed to judge" in " ".join(result.output.split())


def test_a_window_of_sessions_is_a_reference_without_a_baseline(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for day in range(4):
        write_launches(results, 6, first=200 * day, commit=OLD)
    both = harness("check", "--window", 3, "--against", "main", folder=tmp_path)
    assert "leave out --decide and --against" in str(both.exception)
    calm = harness("check", "--window", 3, folder=tmp_path)
    assert code(calm) == 0 and "the 3 sessions before" in " ".join(calm.output.split())
    write_launches(results, 6, first=800, commit=NEW, slower=1.4)
    assert code(harness("check", "--window", 9, folder=tmp_path)) == 1
    two = tmp_path / "two"
    for day in range(2):
        write_launches(two / "results", 6, first=200 * day)
    few = harness("check", "--window", 3, folder=two)
    assert "needs 3 sessions of mnist-dnn, an hour apart or more, and there are 2" in str(few.exception)


def test_history_draws_every_commit_of_the_study(kept: Path) -> None:
    write_launches(kept / "results", 6, slower=1.4, commit=NEW, first=20)
    result = harness("history", "--markdown", str(kept / "history.md"), folder=kept)
    comment = (kept / "history.md").read_text()
    assert comment.startswith("**") and "\n| --- |" in comment and comment.count("\n| ") >= 3
    assert code(result) == 0
    assert "at bbbbbbbbbbbb after aaaaaaaaaaaa" in result.output
    page = Path(result.output.splitlines()[-1])
    assert page.read_text().count("<figure") == 3


class Bench:
    """Stands in for the launches of `measure_until_decided`: each block appears in the sweep's folder at once."""

    def __init__(self, folder: Path, slower: float) -> None:
        self.folder = folder / "results/study"
        self.asked: list[int] = []
        self._results = folder / "results"
        self._slower = slower

    def measured(self) -> Measurement | None:
        found = measurements(load_sweep(self.folder), "study") if self.folder.is_dir() else ()
        return next((one for one in found if one.software.commit == NEW), None)

    def add(self, blocks: int) -> int:
        first = 100 + sum(self.asked)
        self.asked.append(blocks)
        write_launches(self._results, blocks, slower=self._slower, commit=NEW, first=first)
        return blocks


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "pass"), (1.2, "regression")])
def test_deciding_measures_what_is_missing_and_stops(kept: Path, slower: float, verdict: str) -> None:
    from harness.cli.select import find_measurement

    reference = find_measurement("main", results=kept / "results", baselines=kept / "baselines")
    bench, said = Bench(kept, slower), []
    result = measure_until_decided(reference, [], bench, machine=reference.machine, say=said.append)  # type: ignore[arg-type]
    assert result.verdict == verdict
    assert bench.asked == [6]
    assert said == ["measuring: 6 launches of each layout"]


def test_deciding_on_another_machine_measures_nothing(kept: Path) -> None:
    from harness.cli.select import find_measurement

    reference = find_measurement("main", results=kept / "results", baselines=kept / "baselines")
    other = make_provenance(hostname="node9").machine
    bench = Bench(kept, 1.0)
    with pytest.raises(UserError, match="another machine"):
        measure_until_decided(reference, [], bench, machine=other, say=print)  # type: ignore[arg-type]
    assert bench.asked == []


def test_baselines_of_another_schema_are_refused(kept: Path) -> None:
    path = kept / "baselines/main.json"
    path.write_bytes(encode(json.loads(path.read_bytes()) | {"schema": 99}))
    result = harness("baseline", "show", "main", folder=kept)
    assert "has schema 99" in str(result.exception)


def test_launches_of_an_earlier_edit_are_not_those_of_the_code_as_it_is_now(tmp_path: Path) -> None:
    """Six launches of one uncommitted edit said nothing of the next edit, and were judged in its place."""
    sweep = Sweep(workload=make_workload(), layouts=(Layout(nodes=1), Layout(nodes=2)))
    measuring = MoreLaunches(sweep, results=tmp_path, data_dir=None, budget_s=0)
    assert measuring.measured() is None
    write_launches(tmp_path, 6, name=sweep.name, dirty=True, code="of-an-earlier-edit")
    assert measuring.measured() is None
    write_launches(tmp_path, 2, name=sweep.name, dirty=True, code=current(sweep).code, first=10)
    found = measuring.measured()
    assert found is not None and [one.repeat for one in found.launches] == [10, 10, 11, 11]


def test_launches_of_checks_have_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were added to the study, whose page moved from 6 to 10 launches."""
    sweep = Sweep(workload=make_workload(), layouts=(Layout(nodes=1), Layout(nodes=2)))
    now = current(sweep).code

    def launch(asked: Sweep, *, results: Path, **_: object) -> None:
        write_launches(results, 1, name=asked.name, code=now, first=500 + asked.repeats - 1)

    monkeypatch.setattr("harness.regression.sequential_test.run_sweep", launch)
    study = write_launches(tmp_path, 3, name=sweep.name, code=now)
    before = sorted(study.rglob("*"))
    measuring = MoreLaunches(sweep, results=tmp_path, data_dir=None, budget_s=60)
    assert measuring.add(1) == 1
    assert sorted(study.rglob("*")) == before
    assert len(list((tmp_path / "checks" / sweep.name).glob("n*"))) == 2
    found = measuring.measured()
    assert found is not None and [len(found.of(layout)) for layout in found.layouts] == [4, 4]


def test_two_edits_of_one_commit_are_two_states_for_check_and_history(kept: Path) -> None:
    write_launches(kept / "results", 6, commit=NEW, dirty=True, code="aaaaaa-0", first=20)
    write_launches(kept / "results", 6, commit=NEW, dirty=True, code="cccccc-0", first=30, slower=1.4)
    checked = harness("check", folder=kept)
    assert (code(checked), "bbbbbbbbbbbb+cccccc" in checked.output) == (1, True)
    assert code(harness("check", f"study@{NEW[:12]}+aaa", folder=kept)) == 0
    assert "at bbbbbbbbbbbb+cccccc after" in harness("history", folder=kept).output


def test_edits_of_a_users_script_are_compared_over_time(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("first = 1\n")
    workload = {"dataset": "script", "preset": "script", "model": "train", "data_file": str(script)}
    write_launches(tmp_path / "results", 12, code="aaaaaa-0", **workload)
    assert code(harness("baseline", "save", "main", folder=tmp_path)) == 0
    write_launches(tmp_path / "results", 6, code="cccccc-0", first=20, slower=1.3, **workload)
    checked = harness("check", folder=tmp_path)
    assert code(checked) == 1
    assert "at aaaaaaaaaaaa+cccccc against 'main'" in checked.output
    assert "+cccccc after aaaaaaaaaaaa+aaaaaa" in harness("history", folder=tmp_path).output
