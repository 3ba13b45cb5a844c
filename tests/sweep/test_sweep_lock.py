"""One command at a time works on a sweep, also where a lock does not reach the other host."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.host import boot_id
from harness.schema.sweep_folder import SweepFolder
from harness.sweep import sweep_lock
from harness.sweep.sweep_lock import hold_sweep, is_locked
from tests.labs.sentences import refuses

ELSEWHERE = "process 17 on login2 (boot 0f0f0f0f-0000-0000-0000-000000000000)"
HOLDS = """
import os, sys
from pathlib import Path
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_lock import hold_sweep
with hold_sweep(SweepFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def mounted(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str) -> None:
    """Have the file system of `path` be of a kind, mounted with options."""
    device = path.stat().st_dev
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw,noatime shared:1 - {kind} server:/x {options}\n"
    (path / "mountinfo").write_text(line)
    monkeypatch.setattr(sweep_lock, "MOUNTS", path / "mountinfo")


@pytest.fixture
def files(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "results" / "sweep")


def left_by(files: SweepFolder, text: str) -> None:
    """Have the lock file say what an earlier command has left in it."""
    with hold_sweep(files):
        pass
    files.lock.write_text(text)


def test_the_lock_names_host_and_boot_and_is_empty_after_an_orderly_end(files: SweepFolder) -> None:
    with hold_sweep(files):
        text = files.lock.read_text()
        assert f"process {os.getpid()} on {os.uname().nodename}" in text
        assert boot_id() in text
    assert files.lock.read_text() == ""


LOCAL = [
    ("lustre", "rw,localflock"),
    ("nfs4", "rw,vers=4.2,local_lock=all"),
    ("nfs", "rw,vers=3,local_lock=flock"),
    ("beegfs", "rw"),
    ("fuse.sshfs", "rw,user_id=0"),
]
SHARED = [("lustre", "rw,flock"), ("nfs4", "rw,local_lock=none"), ("ext4", "rw"), ("gpfs", "rw")]


@pytest.mark.parametrize(("kind", "options"), LOCAL)
def test_a_holder_on_another_host_whose_lock_does_not_reach_here_is_named(
    tmp_path: Path, files: SweepFolder, monkeypatch: pytest.MonkeyPatch, kind: str, options: str
) -> None:
    mounted(tmp_path, monkeypatch, kind, options)
    left_by(files, ELSEWHERE)
    named = ("'sweep'", "process 17 on login2", str(files.lock))
    with refuses("when that was killed", *named), hold_sweep(files):
        pass
    assert files.lock.read_text() == ELSEWHERE
    assert is_locked(files)
    files.lock.unlink()  # as the sentence says
    with hold_sweep(files):
        assert is_locked(files)
    with hold_sweep(files):
        pass


@pytest.mark.parametrize(("kind", "options"), SHARED)
def test_where_locks_reach_every_host_a_killed_command_elsewhere_is_no_obstacle(
    tmp_path: Path, files: SweepFolder, monkeypatch: pytest.MonkeyPatch, kind: str, options: str
) -> None:
    mounted(tmp_path, monkeypatch, kind, options)
    left_by(files, ELSEWHERE)
    assert not is_locked(files)
    with hold_sweep(files):
        pass


def test_a_killed_command_of_this_host_is_no_obstacle_anywhere(
    tmp_path: Path, files: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(tmp_path, monkeypatch, *LOCAL[0])
    words = [sys.executable, "-c", HOLDS, str(files.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with refuses("is already being run", f"process {holder.pid} on {os.uname().nodename}:"), hold_sweep(files):
            pass
        holder.kill()
    assert holder.returncode == -signal.SIGKILL
    assert files.lock.read_text()
    with hold_sweep(files):
        pass


def test_what_a_stranger_writes_into_the_lock_is_shown_without_control_characters(
    tmp_path: Path, files: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(tmp_path, monkeypatch, *LOCAL[0])
    left_by(files, "\x1b]52;c;bm8=\x07" + "x" * 10**5)
    with pytest.raises(UserError) as error, hold_sweep(files):
        pass
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


def test_an_error_after_another_command_has_begun_removes_nothing_of_it(
    files: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a quota: both have found no folder, and the other has written first."""

    def other_is_faster(handle: int, operation: int) -> None:
        (files.path / "sweep.json").write_text("{}")

    def full(*words: object) -> int:
        raise OSError(122, os.strerror(122))  # EDQUOT

    monkeypatch.setattr(fcntl, "flock", other_is_faster)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError), hold_sweep(files):
        pass
    assert (files.path / "sweep.json").read_text() == "{}"


def test_a_lock_that_another_command_has_is_not_removed(files: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lock(handle: int, operation: int) -> None:
        raise OSError(122, os.strerror(122))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_lock)
        with pytest.raises(UserError), hold_sweep(files):
            pass
    assert files.lock.exists()


def test_who_waited_for_a_lock_that_was_removed_takes_the_new_one(
    files: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    removed: list[Path] = []

    def slowly(handle: int, operation: int) -> None:
        lock(handle, operation)
        if not removed:
            files.lock.unlink()
            removed.append(files.lock)

    monkeypatch.setattr(fcntl, "flock", slowly)
    with hold_sweep(files):
        assert files.lock.read_text()
        assert is_locked(files)
