"""What a check without SWEEP judges: a sweep that ended within the hour if it can be compared, else a new session."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from harness import datasets
from harness.analysis import read_results
from harness.cli import main
from harness.regression import session_check
from harness.schema.record import encode
from harness.schema.sweep import Study, Sweep
from harness.schema.sweep_folder import STUDY_FILE
from harness.sweep import execute
from tests.labs.factories import START, make_launch, make_point, make_run, make_workload, write_run, write_study
from tests.labs.sentences import refuses

LAYOUTS = tuple(make_point(ranks).layout for ranks in (1, 2))


def write_sweep(folder: Path, started: datetime, *, scaling: str = "strong", seconds: float = 1.0) -> None:
    """Write three launches on 1 and 2 ranks from `started` on."""
    write_study(folder)
    sweep = Sweep(workload=make_workload(samples=3200), layouts=LAYOUTS, scaling=scaling)
    (folder / STUDY_FILE).write_bytes(encode(Study(schema=1, sweep=sweep, skipped=())))
    for repeat in range(3):
        for ranks in (1, 2):
            point = make_point(ranks, repeat, scaling, samples=3200)
            times = make_launch(ranks, repeat, seconds * (1 + 0.01 * repeat)).epochs
            write_run(folder, make_run(point, epochs=times, started=started + timedelta(seconds=40 * repeat)))


def check(folder: Path, *words: str) -> Any:
    """Run a check without SWEEP, on a machine of the same role, and return its document."""
    command = ["check", "--json", "--other-machine", "--mode=jobs", *words]
    places = [f"--results={folder / 'results'}", f"--baselines={folder / 'b'}", f"--reports={folder / 'r'}"]
    result = CliRunner().invoke(main, [*command, *places], standalone_mode=False)
    assert result.exception is None, (result.exception, result.output)
    return json.loads(result.stdout)


@pytest.fixture
def measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders of sweeps that a check has measured, which takes no time; there is a baseline ``main``."""
    folders: list[Path] = []

    def run_sweep(sweep: Sweep, context: Any, *_: Any, **__: Any) -> Path:
        folders.append(context.results / sweep.name)
        write_sweep(folders[-1], datetime.now(UTC), seconds=2.0)
        return folders[-1]

    monkeypatch.setattr(execute, "run_sweep", run_sweep)
    monkeypatch.setattr(datasets, "locate", lambda *_: SimpleNamespace(data_id=""))
    write_sweep(tmp_path / "results/old", START)
    words = ["baseline", "save", "main", "old", f"--results={tmp_path / 'results'}", f"--baselines={tmp_path / 'b'}"]
    saved = CliRunner().invoke(main, words, standalone_mode=False)
    assert saved.exception is None, saved.exception
    return folders


def test_a_sweep_that_ended_within_the_hour_is_judged(tmp_path: Path, measured_anew: list[Path]) -> None:
    write_sweep(tmp_path / "results/recent", datetime.now(UTC) - timedelta(minutes=10))
    assert check(tmp_path)["against"] == "main" and not measured_anew


def test_one_that_cannot_be_compared_is_not(tmp_path: Path, measured_anew: list[Path]) -> None:
    """It is of the same workload and another scaling."""
    write_sweep(tmp_path / "results/recent", datetime.now(UTC) - timedelta(minutes=10), scaling="weak")
    check(tmp_path)
    assert len(measured_anew) == 1


def test_a_sweep_is_judged_though_a_baseline_has_its_name(tmp_path: Path, measured_anew: list[Path]) -> None:
    write_sweep(tmp_path / "results/main", START + timedelta(days=1), seconds=2.0)
    document = check(tmp_path, "main")
    assert document["against"] == "main" and not measured_anew
    assert {round(row["slowdown"], 3) for row in document["rows"] if row["quantity"] == "step time"} == {0.5}


def test_until_sure_measures_and_all_its_looks_share_the_error(
    tmp_path: Path, measured_anew: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(tmp_path / "results/recent", datetime.now(UTC) - timedelta(minutes=10))
    looks = []
    judge = session_check.check_sessions

    def spy(*sides: Any, **options: Any) -> session_check.SessionCheck:
        looks.append(options["looks"])
        return judge(*sides, **options)

    monkeypatch.setattr(session_check, "check_sessions", spy)
    check(tmp_path, "--until-sure=5")
    assert len(measured_anew) == 1 and looks[-1] == 4


def test_launches_of_a_sweep_that_was_last_written_to_days_ago_are_not_read(
    tmp_path: Path, measured_anew: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results/long-ago"
    write_sweep(folder, START)
    days_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    for path in (folder / STUDY_FILE, folder):
        os.utime(path, (days_ago, days_ago))
    load_sweep = read_results.load_sweep
    read: list[Path] = []

    def spy(folder: Path, **words: Any) -> Any:
        read.append(folder)
        return load_sweep(folder, **words)

    monkeypatch.setattr(read_results, "load_sweep", spy)
    check(tmp_path)
    assert tmp_path / "results/old" in read and folder not in read
    assert len(measured_anew) == 1


def test_a_damaged_study_of_another_sweep_is_left_out_and_named(tmp_path: Path, measured_anew: list[Path]) -> None:
    write_sweep(tmp_path / "results/recent", datetime.now(UTC) - timedelta(minutes=10))
    damaged = tmp_path / "results/damaged"
    write_sweep(damaged, datetime.now(UTC) - timedelta(minutes=5))
    (damaged / STUDY_FILE).write_text("{")
    document = check(tmp_path)
    assert document["against"] == "main" and not measured_anew
    assert any(str(damaged / STUDY_FILE) in note for note in document["notes"])
    places = [f"--results={tmp_path / 'results'}", f"--baselines={tmp_path / 'b'}", f"--reports={tmp_path / 'r'}"]
    history = CliRunner().invoke(main, ["history", "old", "--json", *places], standalone_mode=False)
    assert history.exception is None, history.output
    listed = json.loads(history.stdout)
    assert len(listed["sessions"]) == 2  # of old and recent
    assert any(str(damaged / STUDY_FILE) in note for note in listed["notes"])


@pytest.mark.parametrize("command", ["check", "history"])
def test_a_damaged_study_of_the_sweep_that_is_asked_for_is_refused(
    tmp_path: Path, measured_anew: list[Path], command: str
) -> None:
    damaged = tmp_path / "results/damaged"
    write_sweep(damaged, datetime.now(UTC))
    (damaged / STUDY_FILE).write_text("{")
    places = [f"--results={tmp_path / 'results'}", f"--baselines={tmp_path / 'b'}", f"--reports={tmp_path / 'r'}"]
    with refuses(damaged / STUDY_FILE, "damaged"):
        CliRunner().invoke(main, [command, "damaged", *places], standalone_mode=False, catch_exceptions=False)
    assert not measured_anew
