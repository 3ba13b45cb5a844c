"""`harness sweep` and `harness status` as users call them."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.command_sweep import sweep_command
from harness.schema.command_lines import repeat_command
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.sweep_files import read_study
from tests.labs.factories import make_run, write_run, write_study

ROOT = Path(__file__).parents[2]


def harness(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *words], capture_output=True, text=True, cwd=folder, timeout=60
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dataset", "mnist", "--nodes", "8..1"], "--nodes 8..1 runs backwards: write 1..8"),
        (["--dataset", "mnist", "--nodes", "0"], "--nodes 0 has a count below 1: start at 1"),
        (["--dataset", "mnsit"], "unknown dataset 'mnsit': did you mean 'mnist'?"),
        ([], "no data set given"),
        (["--dataset", "mnist", "--threads", "0"], "--threads 0 has a count below 1: start at 1"),
        (["--dataset", "mnist", "--repeats", "0"], "--repeats 0 is too small: use at least 1"),
        (["--dataset", "mnist", "--scaling", "wek"], "unknown scaling 'wek': did you mean 'weak'?"),
        (["--dataset", "mnist", "--scaling", "weak"], "--scaling weak needs --samples"),
        (["--dataset", "mnist", "--nodes", "100000"], "no layout can run: 100000 ranks: needs"),
        (["--dataset", "mnist", "--nodes", "1", "--results", "file"], "--results 'file' is not a folder"),
        (["--dataset", "mnist", "--nodes", "1", "--results", "/proc/x"], "--results /proc/x cannot be used"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(words: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = harness("sweep", *words, folder=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"harness: {sentence}")
    assert len(ended.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_status_has_one_line_for_launches_that_are_alike_and_for_a_finished_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "finished"
    study = write_study(folder)
    for point in study.sweep.points():
        write_run(folder, make_run(point))
    assert harness("status", folder=tmp_path).stdout == "finished: 6 done (nothing runs now)\n"
    first, *lines = harness("status", "finished", folder=tmp_path).stdout.splitlines()
    assert first == "finished: 6 done (nothing runs now)"
    assert sorted(lines) == [f"  done     {ranks}, launches 1 to 3" for ranks in ("1 rank", "2 ranks")]


@pytest.mark.slow  # several commands
def test_status_names_the_sweeps_there_are(tmp_path: Path) -> None:
    none = harness("status", folder=tmp_path)
    assert (none.returncode, none.stderr.startswith("harness: no sweep in 'results'")) == (2, True)
    shown = harness("sweep", "--dataset", "adult", "--nodes", "1,9999", "--repeats", "1", "--dry-run", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "9999" in shown.stdout
    (folder,) = sweep_folders(tmp_path / "results")
    assert shown.stdout.splitlines()[-1] == f"in this order, by scripts in results/{folder.name}/jobs"
    status = harness("status", folder.name, folder=tmp_path)
    assert status.stdout.splitlines()[0] == f"{folder.name}: 1 missing (nothing was launched)"
    assert harness("status", folder=tmp_path).stdout.splitlines() == status.stdout.splitlines()[:1]
    assert harness("status", "adult-dnn", folder=tmp_path).stdout == status.stdout
    wrong = harness("status", "mnist-dnn", folder=tmp_path)
    assert (wrong.returncode, folder.name in wrong.stderr) == (2, True)


def test_synthetic_rows_and_a_data_dir_that_is_not_taken_are_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DATA_DIR", "/scratch/mnist")
    plan = ["--dataset", "mnist", "--nodes", "1", "--epochs", "2", "--dry-run", "--results", str(tmp_path / "results")]
    told = CliRunner().invoke(sweep_command, plan, catch_exceptions=False)
    assert told.stdout.splitlines()[1].startswith("SYNTHETIC DATA: no MNIST files in ")
    assert "/scratch/mnist" in told.stderr
    asked_for = CliRunner().invoke(sweep_command, [*plan, "--data-kind", "synthetic"], catch_exceptions=False)
    assert (
        asked_for.stdout.splitlines()[1].startswith("data: mnist, synthetic: ") and "SYNTHETIC" not in asked_for.stdout
    )
    (tmp_path / "here").mkdir()
    named = CliRunner().invoke(sweep_command, [*plan, "--data-dir", str(tmp_path / "here")], catch_exceptions=False)
    assert "/scratch/mnist" not in named.stderr
    folder = Path(named.stdout.split()[-1]).parent
    assert repeat_command(folder, read_study(SweepFolder(folder)).sweep).endswith(f" --data-dir={tmp_path / 'here'}")
