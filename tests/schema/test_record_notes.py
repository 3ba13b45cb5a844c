"""NOTE=, the reason given for a sweep: in every record and on the page, and no part of what a launch is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.schema.command_lines import harness_command
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.presets import resolve, script_workload
from harness.schema.setting_words import distinguishing_names, study_name
from harness.schema.sweep import Sweep
from tests.labs.asked import asked
from tests.labs.factories import make_launch, make_point, make_workload, write_report, write_run, write_study
from tests.labs.sentences import refuses
from tests.labs.sweep_lab import Lab

WORDS = 'it\'s "new" $HOME $(false) `false` <b> % \\ | ; #'


def noted(point: Point, note: str | None) -> Point:
    return replace(point, workload=replace(point.workload, note=note))


def test_the_same_launch_with_another_note_is_the_same(tmp_path: Path) -> None:
    from harness.regression.baselines import study_differences  # it loads pandas
    from tests.labs.histories import make_measurement

    plain, one = make_point(), noted(make_point(), WORDS)
    assert one == plain and one.key == plain.key and hash(one) == hash(plain)
    sides = [replace(make_measurement([]), workload=side.workload) for side in (one, plain)]
    assert study_differences(*sides) == ()
    assert distinguishing_names([one.workload, plain.workload]) == ("", "")
    script = tmp_path / "train.py"
    both = [script_workload(script, [], sync="gradients", batch="global", note=note) for note in (None, WORDS)]
    assert both[0] == both[1]


@pytest.mark.parametrize("note", ["", " ", "two\nlines", "\t", "\0", "\x1b[31m", "\udc80"])
def test_what_is_no_line_of_words_is_refused(note: str) -> None:
    with refuses("a line of text"):
        make_workload(note=note)


def test_it_reaches_the_record_by_no_way_of_the_shell_and_runs_nothing_again(lab: Lab) -> None:
    first = lab.sweep(nodes=(1,), repeats=1)
    noted = replace(first, workload=replace(first.workload, note=WORDS))
    assert noted.name == first.name
    lab.run(noted)
    assert len(lab.launched()) == 1
    (record,) = (lab.results / first.name).glob("n*/run.json")
    assert json.loads(record.read_text())["point"]["workload"]["note"] == WORDS
    (script,) = (lab.results / first.name / "jobs").glob("*.sh")
    assert "$(false)" not in script.read_text()
    lab.run(replace(first, workload=replace(first.workload, note="another")))
    lab.run(first)
    assert lab.launched() == []


def test_the_page_shows_the_notes_of_its_launches_and_its_command_gives_them(tmp_path: Path) -> None:
    folder, runs = tmp_path / "results/s", [make_launch(ranks, 0, 1.0 / ranks) for ranks in (1, 2)]
    write_study(folder)
    for run, note in zip(runs, (WORDS, "later"), strict=True):
        write_run(folder, replace(run, point=noted(run.point, note)))
    page = write_report(folder, tmp_path / "reports").read_text()
    assert "&lt;b&gt; % \\ | ; #; later" in page and "<b> %" not in page


@pytest.mark.parametrize("script", [True, False])
def test_the_command_gives_the_note_again_and_the_name_of_the_study_does_not(script: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    workload = script_workload(tmp_path / "train.py", [], sync="gradients", batch="global")
    workload = workload if script else resolve(dataset="mnist", model="dnn")
    sweep = Sweep(workload=replace(workload, note=WORDS), layouts=(Layout(nodes=1),), repeats=6)
    again = asked(harness_command(sweep))
    assert again.workload.note == WORDS and again.name == sweep.name
    assert study_name(sweep) == study_name(replace(sweep, workload=workload))
