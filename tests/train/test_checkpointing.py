"""Checkpoints: whole or not at all, two kept, damage noticed and survived; what a checkpoint may be resumed by."""

import io
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.schema.sweep_folder import LaunchFolder
from harness.schema.workload import parse_interval
from harness.train.checkpointing import Header, newest_checkpoint, read_attempts, read_checkpoint, write_checkpoint
from tests.labs.factories import make_point, make_run
from tests.labs.sentences import refuses

ARRAYS = {"variable/0": np.arange(6, dtype=np.float32).reshape(2, 3), "variable/1/0": np.array(3, np.int64)}


def write(folder: Path, epoch: int, step: int = 0) -> Path:
    header = Header(
        point=make_point(2),
        epoch=epoch,
        step=step,
        global_batch=64,
        steps_per_epoch=10,
        epochs=make_run().epochs,
        written=datetime.now(UTC),
    )
    write_checkpoint(folder, header, ARRAYS)
    return max(folder.glob("*.ckpt"))


def test_what_is_written_comes_back_and_two_are_kept(tmp_path: Path) -> None:
    for epoch, step in ((1, 0), (1, 7), (2, 0)):
        path = write(tmp_path, epoch, step)
    header, arrays = read_checkpoint(path)
    assert (header.epoch, header.step, header.point) == (2, 0, make_point(2))
    assert header.epochs == make_run().epochs
    for name, value in ARRAYS.items():
        assert arrays[name].dtype == value.dtype and arrays[name].shape == value.shape
        assert arrays[name].tobytes() == value.tobytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000001-000000007.ckpt", "000002-000000000.ckpt"]


@pytest.mark.parametrize("cut", [0, 1, 64, 65, 200, -1])
def test_a_cut_checkpoint_gives_way_to_the_one_before(tmp_path: Path, cut: int) -> None:
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    newest.write_bytes(newest.read_bytes()[:cut])
    said: list[str] = []
    found = newest_checkpoint(tmp_path, said.append)
    assert found is not None and found[0].epoch == 1
    assert len(said) == 1 and "cut or damaged" in said[0] and "the previous one is used" in said[0]


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 4
        path.write_bytes(changed)
        with pytest.raises(UserError):
            read_checkpoint(path)


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    """With a right checksum, a pickled object is refused all the same."""
    import hashlib

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "run"),)

    for body in (pickle.dumps(Evil()), _saved(np.array([Evil()], dtype=object)), b"", b"PK\x03\x04"):
        path = tmp_path / "000001-000000000.ckpt"
        path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        with refuses("one of this harness's"):
            read_checkpoint(path)
    assert not (tmp_path / "run").exists()


def _saved(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, header=array)
    return content.getvalue()


def test_checkpoints_are_beside_the_record_and_go_when_it_is_there(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(LaunchFolder(tmp_path / name).checkpoints, 1)
    LaunchFolder(tmp_path / "one").forget_checkpoints()
    assert [path.name for path in (tmp_path / "harness-checkpoints").iterdir()] == ["other"]
    LaunchFolder(tmp_path / "other").forget_checkpoints()
    assert list(tmp_path.iterdir()) == []


def test_attempts_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    (tmp_path / "attempts.json").write_text('[{"started"')
    assert read_attempts(tmp_path) == ()


@pytest.mark.parametrize(("text", "steps", "seconds"), [("500", 500, None), ("10m", None, 600), ("0.5m", None, 30)])
def test_intervals(text: str, steps: int | None, seconds: float | None) -> None:
    interval = parse_interval(text)
    assert (interval.steps, interval.seconds, interval.asked, interval.never) == (steps, seconds, True, False)
    assert parse_interval("none").never and not parse_interval(None).asked


@pytest.mark.parametrize("text", ["", "0", "0m", "-1", "1.5", "10 m", "1e9", "ten", "None", "١"])
def test_what_is_no_interval(text: str) -> None:
    if text:
        with refuses("is not an interval", "500"):
            parse_interval(text)


def test_a_warning_after_the_last_step_does_not_end_a_launch_that_is_about_to_end() -> None:
    program = (
        "import os, signal; from harness.train.stop_signals import StopSignals; "
        "StopSignals(lambda: True).close(); os.kill(os.getpid(), signal.SIGUSR1); print('ended by itself')"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ended by itself\n")
