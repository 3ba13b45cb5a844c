"""What reading a sweep leaves out, and names."""

import shutil
from pathlib import Path

import pytest

from harness.analysis import launch_frames
from harness.analysis.read_results import load_sweep
from harness.base.files import sha256_of
from harness.schema.sweep_folder import RUN_FILE, STEPS_FILE
from tests.labs.factories import (
    launch_frame,
    make_launch,
    make_point,
    make_run,
    write_failure,
    write_run,
    write_study,
)
from tests.labs.file_reads import opened_files
from tests.labs.sentences import refuses


@pytest.mark.parametrize("many", [1000, 1])
def test_loading_names_what_is_damaged_and_keeps_the_rest(
    many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, and shared out to several as for a sweep of many launches."""
    monkeypatch.setattr("harness.base.parallel_work.MANY", many)
    monkeypatch.setattr("threading.active_count", lambda: 1)  # a worker of pytest has another thread
    write_study(tmp_path)
    kept = write_run(tmp_path, make_launch(1, 0, 1.0))
    cut = write_run(tmp_path, make_launch(1, 1, 1.0)) / RUN_FILE
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    steps = write_run(tmp_path, make_launch(1, 2, 1.0)) / STEPS_FILE
    steps.write_bytes(steps.read_bytes()[:20])
    (write_run(tmp_path, make_launch(1, 3, 1.0)) / STEPS_FILE).unlink()
    shutil.copytree(kept, tmp_path / "copy-of-a-run")
    write_run(tmp_path, make_run(make_point(1, 0, learning_rate=0.5)))
    write_run(tmp_path, make_run(make_point(1, 4), epochs=()))
    write_failure(tmp_path, make_point(2), "rank 1 lost")
    write_failure(tmp_path, make_point(1, 0), "finished on a later attempt")
    (tmp_path / "failures" / "torn.json").write_text("{")
    (tmp_path / ".staging").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / make_point(1, 7).folder).mkdir()

    loaded = load_sweep(tmp_path)
    assert [run.point.repeat for run in loaded.runs] == [0] and loaded.study is not None
    assert [failure.reason for failure in loaded.failures] == ["rank 1 lost"]
    assert loaded.runs[0].epochs == () and len(loaded.epochs) == 3  # a frame: records of 10,000 launches fill memory
    assert launch_frames.launch_frame(loaded.runs, loaded.epochs).iloc[0]["seconds"] == 1.0
    with refuses("read without its epochs", error=AssertionError):
        launch_frame(loaded.runs)
    text = "\n".join(loaded.damaged)
    assert len(loaded.damaged) == 8
    for reason in ("cut or damaged", "has no steps.parquet", "moved by hand", "another workload", "0 epochs"):
        assert reason in text


def test_loading_without_a_study_still_reads_the_launches(tmp_path: Path) -> None:
    write_run(tmp_path, make_launch(2, 0, 1.0))
    (tmp_path / "sweep.json").write_text("{")
    loaded = load_sweep(tmp_path)
    assert loaded.study is None and len(loaded.runs) == 1 and "sweep.json" in loaded.damaged[0]
    with refuses("not a folder: give"):
        load_sweep(tmp_path / "absent")


def test_each_file_of_a_launch_is_read_once(tmp_path: Path) -> None:
    """A study has up to 10,000 launches: a second look at each would be seconds."""
    write_study(tmp_path)
    steps_sha256 = sha256_of(write_run(tmp_path, make_launch(1, 0, 1.0)) / STEPS_FILE)  # all have an empty table
    for ranks, repeat in ((1, 1), (1, 2), (2, 0), (2, 1), (2, 2)):
        write_run(tmp_path, make_launch(ranks, repeat, 1.0, steps_sha256=steps_sha256))
    files = [*tmp_path.glob(f"n*/{RUN_FILE}"), *tmp_path.glob(f"n[12]x1x1-r[12]-*/{STEPS_FILE}")]
    with opened_files() as opened:
        load_sweep(tmp_path)
    assert [opened[file] for file in files] == [1] * (6 + 4)
