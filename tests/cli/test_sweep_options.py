"""The options of `harness sweep`: their groups in help, and the command line that goes on with a sweep."""

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.cli.command_sweep import sweep_command as sweep_click
from harness.cli.common_options import take
from harness.cli.launch_options import build_submission, take_batch
from harness.cli.training_options import LayoutOptions, build_layouts
from harness.schema.layout import Layout
from harness.schema.option import GROUPS, options
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.site import JobRequest, Site, find_site
from harness.sweep.submission_settings import Submission, next_command, write_submission
from tests.labs.asked import asked_sweep
from tests.labs.factories import write_study
from tests.labs.sentences import refuses

SWEEP = Sweep(
    workload=resolve(dataset="mnist", model="dnn", epochs=3, drop_remainder=True, note="a 'quoted' note; $HOME"),
    layouts=(Layout(nodes=1), Layout(nodes=2)),
    repeats=4,
    oversubscribe=True,
)


def shown(*words: str) -> str:
    return CliRunner().invoke(main, [*words, "--help-all"], terminal_width=110).output


def test_help_shows_the_options_in_groups_the_common_ones_first() -> None:
    text = shown("sweep")
    places = [text.index(f"{group}:\n") for group in (*GROUPS, "Options")]
    assert places == sorted(places)
    for before, after in (
        ("--dataset", "--preset"),
        ("--epochs", "--loss"),
        ("--nodes", "--cores"),
        ("--partition", "--qos"),
        ("--results", "--checkpoint"),
    ):
        assert text.index(before) < text.index(after)


def test_every_option_of_a_sweep_has_a_group_but_those_of_every_answer() -> None:
    declared = [one for one in sweep_click.params if isinstance(one, click.Option)]
    without = {one.name for one in declared if getattr(one, "group", "") not in GROUPS}
    assert without == {"as_json", "formats", "outputs", "quiet"}
    for group in GROUPS:
        assert any(getattr(one, "common", False) for one in sweep_click.params if getattr(one, "group", "") == group)


@pytest.mark.parametrize("command", ["train", "paper", "compare", "reproduce"])
def test_other_commands_show_the_options_they_share_in_the_same_groups(command: str) -> None:
    assert any(f"{group}:\n" in shown(command) for group in GROUPS)


def test_a_setting_of_a_job_is_one_declared_field() -> None:
    declared = {field.name for field, _ in options(JobRequest)}
    assert declared == {field.name for field in fields(JobRequest)}
    assert declared <= {one.name for one in sweep_click.params}


def again(folder: Path, sweep: Sweep) -> tuple[Sweep, Submission]:
    """Return the sweep, without its data, and the submission that the command line for `folder` stands for."""
    (line,) = next_command(folder, sweep).splitlines()
    program, name, *words = shlex.split(line)
    assert (program, name) == ("harness", "sweep")
    given: dict[str, Any] = sweep_click.make_context("sweep", words).params
    assert given["results"] == folder.parent
    submission, _ = build_submission(take_batch(given))
    layouts, _ = build_layouts(take(LayoutOptions, given), Submission())
    data_dir = given["data_dir"] and str(given["data_dir"])
    return asked_sweep(given, layouts), replace(submission, data_dir=data_dir)


@pytest.mark.parametrize(
    ("site", "request_"),
    [
        (None, JobRequest(mode="turns")),
        (
            None,
            JobRequest(partition="long", walltime="0:10:00,8=0:05:00", exclusive=False, retries=2, mode="turns"),
        ),
        (None, JobRequest(requeue=True, mode="jobs")),
        (None, JobRequest(extra=("--gres=nvme:1", "--comment='two words'"), mode="array", signal_s=30)),
        ("my site.toml", JobRequest(account="other", mode="jobs", exclusive=False)),
    ],
)
def test_the_command_that_goes_on_launches_as_before(
    site: str | None, request_: JobRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my site.toml").write_text('scheduler = "slurm"\n[request]\naccount = "physics"\nexclusive = false\n')
    file = str(tmp_path / site) if site else None
    before = Submission(
        scheduler="slurm", site=find_site(file) if file else Site(), request=request_, data_dir="/data", site_file=file
    )
    folder = tmp_path / "my results" / "study"
    write_submission(SweepFolder(folder), before)
    asked, submission = again(folder, SWEEP)
    assert (asked.name, asked.layouts, asked.repeats) == (SWEEP.name, SWEEP.layouts, SWEEP.repeats)
    assert asked.workload.note == SWEEP.workload.note
    assert submission == before


def test_status_prints_it_where_something_is_to_be_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results/study"
    write_study(folder)
    assert "harness sweep" not in CliRunner().invoke(main, ["status", "study"]).output  # not known how
    write_submission(SweepFolder(folder), Submission())
    said = CliRunner().invoke(main, ["status", "study"]).output
    assert "this command launches again what failed, is missing or has no valid times:\n    harness sweep " in said


def test_a_setting_that_a_scheduler_does_not_know_is_refused_as_before() -> None:
    with refuses("--qos high", "--scheduler pbs"):
        Submission(scheduler="pbs", request=JobRequest(qos="high")).open(oversubscribe=False)
