"""Paths with blanks, letters of all languages and ``~``; folders that are full or another user's; clocks that jump."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.current_user import expanded
from harness.base.processes import process_age_s
from harness.base.removal import MARK
from harness.cli.command_sweep import sweep_command
from harness.schema.sweep_folder import STUDY_FILE, sweep_folders
from tests.labs.factories import make_run
from tests.mpi.launch import ROOT

FOLDERS = ("two words", "größe", "数据", "a'b", "[x] $HOME")
SCRIPT = "import keras\nprint(keras.__version__)\n"


def write_rows(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{number % 3},{number % 7},{number % 5}.5" for number in range(90)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def planned(folder: Path, *words: str) -> Path:
    """Return the folder of the sweep that `words` plan, with results below `folder`."""
    results = folder / "results"
    every = [*words, "--nodes", "1", "--dry-run", "--results", str(results)]
    ended = CliRunner().invoke(sweep_command, every, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    (study,) = results.glob(f"*/{STUDY_FILE}")
    return study.parent


@pytest.mark.parametrize("name", FOLDERS)
def test_data_scripts_and_results_below_any_name(name: str, cache: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / name / f"{name}.csv")
    assert planned(tmp_path / name / "of data", "--data", str(rows))
    script = tmp_path / name / f"{name}.py"
    script.write_text(SCRIPT)
    of_script = planned(tmp_path / name / "of a script", "--script", str(script))
    jobs = list(of_script.glob("jobs/*.sh"))
    assert jobs and not any(subprocess.run(["bash", "-n", str(job)], check=False).returncode for job in jobs)


def test_a_tilde_is_the_home_wherever_a_path_is_asked_for(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "at home"))
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "at home" / "rows.csv")
    (tmp_path / "at home" / "train.py").write_text(SCRIPT)
    for words in (("--data", "~/rows.csv"), ("--script", "~/train.py")):
        every = [*words, "--nodes", "1", "--dry-run", "--results", "~/results"]
        ended = CliRunner().invoke(sweep_command, every, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
    assert len(sweep_folders(tmp_path / "at home" / "results")) == 2
    assert not (tmp_path / "~").exists()


def test_what_is_called_so_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert expanded("~/a") == tmp_path / "home" / "a"
    assert expanded("~nobody-is-called-so/a") == Path("~nobody-is-called-so/a")
    (tmp_path / "~").mkdir()
    (tmp_path / "~" / "a").write_text("")
    assert expanded("~/a") == Path("~/a")


def harness(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def refused(ended: subprocess.CompletedProcess[str]) -> bool:
    return ended.returncode == 2 and "Traceback" not in ended.stderr and "cannot be" in ended.stderr.splitlines()[-1]


SWEEP = ("sweep", "--dataset", "adult", "--data-kind", "synthetic", "--nodes", "1", "--dry-run")


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small file system at `folder`, or skip."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("kilobytes", [4, pytest.param(12, marks=pytest.mark.slow), 20])
def test_a_full_disk_is_one_sentence_and_leaves_no_half_file(kilobytes: int, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", f"size={kilobytes}k") as disk:
        assert refused(harness(tmp_path, *SWEEP, "--results", str(disk / "results")))
        assert refused(harness(tmp_path, "data", "prepare", "adult", "--samples", "9000", HARNESS_CACHE_DIR=str(disk)))
        assert not [path for path in disk.rglob(".*") if path.is_file() and path.name not in (".lock", MARK)]


def test_a_disk_that_can_only_be_read(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m,ro") as disk:
        assert refused(harness(tmp_path, *SWEEP, "--results", str(disk / "results")))
        assert refused(harness(tmp_path, "data", "prepare", "adult", HARNESS_CACHE_DIR=str(disk / "cache")))


@pytest.mark.slow  # commands of another user
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    """Root without the right to override permissions stands for the second user."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
    if os.geteuid() or subprocess.run([*drop, "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root can be two users")
    assert harness(tmp_path, *SWEEP).returncode == 0
    for path in (tmp_path / "results", *(tmp_path / "results").rglob("*")):
        os.chown(path, 2001, 2001)
    command = [*drop, sys.executable, "-m", "harness"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for words, code in ((SWEEP, 2), (("status",), 0)):
        ended = subprocess.run(
            [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == code and "Traceback" not in ended.stderr, ended.stderr


def test_a_clock_that_jumps_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    before = process_age_s()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= process_age_s() < before + 60
    run = make_run()
    back = replace(run, ended=run.started - timedelta(hours=1))
    assert back.wall_seconds >= sum(max(epoch.seconds) for epoch in run.epochs)
