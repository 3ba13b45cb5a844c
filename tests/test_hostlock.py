"""What is timed takes turns on a host, across folders, commands and users."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base.hostlock import HostLock
from harness.sweep.store import is_locked, locked
from tests.test_sweep_run import Lab, hanging, lab, wait_for  # noqa: F401 - a fixture

TIMED = "harness-timed.lock"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path))
    return tmp_path


def test_one_has_the_host_and_who_waits_is_told_who(folder: Path) -> None:
    first, second = HostLock(), HostLock()
    assert first.take() is None
    first.tell("a launch in 'results/mine'")
    assert second.take() == f"waiting: a launch in 'results/mine' (process {os.getpid()}) is timed on this host"
    first.release()
    assert second.take() is None


def test_two_that_launch_again_and_again_take_turns(folder: Path) -> None:
    one, other = HostLock(), HostLock()
    turns = []
    assert one.take() is None
    for _ in range(4):
        for name, lock, rival in (("one", one, other), ("other", other, one)):
            assert rival.take() is not None
            turns.append(name)
            lock.release()
            assert lock.take() is not None  # it wants to go on at once, and the other is next
            assert rival.take() is None
    assert turns == ["one", "other"] * 4


def test_other_users_can_lock_the_file_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        HostLock().take()
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / TIMED).stat().st_mode) == 0o666


def test_a_link_in_the_place_of_the_lock_is_not_followed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "precious").write_text("text")
    (folder / TIMED).symlink_to(folder / "precious")
    lock = HostLock()
    assert lock.take() is None
    lock.tell("x")
    assert (folder / "precious").read_text() == "text"
    assert "no lock on this host" in caplog.text


def test_a_launch_that_survives_its_command_keeps_the_host(folder: Path) -> None:
    lock = HostLock()
    lock.take()
    lock.tell("a launch in 'x'")
    child = subprocess.Popen(["sleep", "60"], pass_fds=lock.handles)
    text = (folder / TIMED).read_text()
    (folder / TIMED).write_text(re.sub(r"process \d+", "process 4194999", text))  # a command that is no more
    lock.release()
    other = HostLock()
    try:
        assert "whose command was killed, still runs on this host" in str(other.take())
    finally:
        child.kill()
        child.wait()
    assert other.take() is None


@pytest.mark.slow
def test_two_sweeps_in_two_folders_never_launch_at_once(lab: Lab, folder: Path) -> None:  # noqa: F811
    with hanging(lab, "hang") as (first, _):
        words = [*lab.command[: lab.command.index("--results")], "--results", str(lab.folder / "other")]
        log = (lab.folder / "other.txt").open("w+")
        second = subprocess.Popen(words, stdout=log, stderr=log)
        wait_for(lambda: "waiting: " in (lab.folder / "other.txt").read_text(), "the second to say that it waits")
        before = list((lab.folder / "other").glob("*/n*"))
        time.sleep(1.0)
        assert list((lab.folder / "other").glob("*/n*")) == before
        lab.behave()
        first.send_signal(signal.SIGINT)
        assert second.wait(timeout=60) == 0
        log.close()
    said = (lab.folder / "other.txt").read_text()
    assert said.count("waiting: ") == 1
    assert "all results" in said


def test_a_file_system_without_locks_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lock").touch()

    def refuse(handle: int, how: int) -> None:
        raise OSError(37, os.strerror(37))  # ENOLCK

    monkeypatch.setattr("fcntl.flock", refuse)
    assert is_locked(tmp_path) is False


def test_a_full_disk_leaves_no_empty_sweep(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from harness.base.errors import UserError
from harness.sweep.store import locked
def full(*args): raise OSError(28, os.strerror(28))
os.pwrite = full
try:
    with locked(Path({str(tmp_path)!r}) / "sweep"): pass
except UserError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "no space left on device" in said
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "sweep"):
        assert is_locked(tmp_path / "sweep")
