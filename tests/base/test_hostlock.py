"""What is timed takes turns on a host, across folders, commands and users."""

import contextlib
import os
import pwd
import re
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harness.base.errors import RunError
from harness.base.hostlock import HostLock
from harness.base.removal import MARK
from harness.cli import main
from harness.probe import probe_runner
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_lock import hold_sweep, is_locked
from tests.labs.sentences import refuses, says
from tests.labs.sweep_lab import Lab, hanging, wait_for

TIMED = "harness-timed.lock"
TAKE_ELSEWHERE = "from harness.base.hostlock import HostLock; print(HostLock().take())"


def take_elsewhere() -> str:
    """Return what another process is told that takes the lock, and gives it back at its end."""
    words = [sys.executable, "-c", TAKE_ELSEWHERE]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path))
    return tmp_path


def test_one_has_the_host_and_who_waits_is_told_who(folder: Path) -> None:
    first, second = HostLock(), HostLock()
    assert first.take() is None
    first.note_holder("a launch")
    told = second.take()
    says(told, "waiting: a launch of ", os.getpid(), "measured", "HARNESS_LOCK_DIR", TIMED)
    first.release()
    assert second.take() is None


def test_what_a_stranger_writes_is_shown_short_and_without_control_characters(folder: Path) -> None:
    holder = HostLock()
    assert holder.take() is None
    (folder / TIMED).write_bytes(b"\x1b]52;c;bm8=\x07\x9b31m\n\xff" + b"x" * 10**6)
    sentence = HostLock().take()
    assert sentence is not None and sentence.isprintable()
    assert len(sentence) < 400
    holder.release()


def test_others_are_not_shown_where_a_user_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("LOGNAME", "marie")
    monkeypatch.chdir(tmp_path_factory.mktemp("secret-project"))
    with HostLock().held("a bench", print):
        assert (folder / TIMED).read_text() == f"a bench of marie (process {os.getpid()})"


def test_a_lock_that_somebody_holds_without_end_can_be_passed_by(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HostLock().held("a bench", print):
        assert take_elsewhere() != "None"
        monkeypatch.setenv("HARNESS_LOCK_DIR", str(folder / "own"))
        (folder / "own").mkdir()
        assert take_elsewhere() == "None"


def test_a_pipe_in_the_place_of_the_lock_is_not_read(folder: Path) -> None:
    os.mkfifo(folder / TIMED)
    assert HostLock().take() is None


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


def test_launches_of_a_command_that_has_the_host_need_not_wait_for_it(folder: Path) -> None:
    """As those of a bench."""
    launch = HostLock()
    with HostLock().held("a bench", print) as handles:
        assert launch.take() is None
        assert launch.handles == handles
        launch.note_holder("a launch")
        launch.release()
        says(take_elsewhere(), "on this host", "a bench", os.getpid(), "measured")
    assert launch.take() is None
    assert launch.handles
    assert HostLock().take() is not None


def test_whose_launch_has_ended_is_not_told_that_it_is_timed(folder: Path) -> None:
    one, other = HostLock(), HostLock()
    assert one.take() is None
    one.note_holder("a launch")
    assert other.take() is not None  # it is next
    one.release()
    sentence = one.take()
    says(sentence, "wait for this host")
    assert sentence and "a launch" not in sentence


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
    lock.note_holder("x")
    assert (folder / "precious").read_text() == "text"
    assert caplog.records


def test_a_launch_that_survives_its_command_keeps_the_host(folder: Path) -> None:
    lock = HostLock()
    lock.take()
    lock.note_holder("a launch")
    child = subprocess.Popen(["sleep", "60"], pass_fds=lock.handles)
    lock.release()
    (folder / TIMED).write_text("a launch in 'x' (process 4194999)")  # a command that is no more
    other = HostLock()
    try:
        assert other.take() is not None
    finally:
        child.kill()
        child.wait()
    assert other.take() is None


@pytest.fixture
def timed_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have another command time something on this host until somebody waits for it."""
    lock = HostLock()
    assert lock.take() is None
    lock.note_holder("a launch")
    monkeypatch.setattr("harness.base.hostlock.time", SimpleNamespace(sleep=lambda seconds: lock.release()))


@pytest.mark.usefixtures("timed_elsewhere")
def test_a_probe_waits_for_what_is_timed_here_and_its_ranks_keep_the_host(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_runner, "wait_until_quiet", lambda say, force: 0.0)
    said: list[str] = []
    # A launcher that tells who has the host and whether it keeps it, and fails.
    code = f"echo harness: $(cat {folder / TIMED}) and $(ls -l /proc/$$/fd | grep -c {TIMED}) >&2; exit 1"
    with refuses("probe of", "1", error=RunError):
        probe_runner.run_probe(probe_runner.ProbeSettings(launcher=f"bash -c {shlex.quote(code)}"), said.append)
    (line,) = (line for line in said if "waiting" in line)
    says(line, "a launch of ", os.getpid(), "measured")
    assert HostLock().take() is None


@pytest.mark.usefixtures("timed_elsewhere")
@pytest.mark.parametrize("recorded", [True, False])
def test_a_script_whose_times_are_recorded_waits_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    (folder / "train.py").touch()
    (folder / "mpirun").write_text(
        f"#!/bin/sh\ncase $1 in --version) echo Open MPI;; *) cp {folder / TIMED} said;; esac"
    )
    (folder / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.chdir(folder)
    words = ["run", "-n", "1", *(["--record", "kept"] if recorded else []), "train.py"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0
    assert result.output.count("a launch of ") == recorded
    holder = Path("said").read_text()
    assert holder.startswith("a script of ") if recorded else holder.startswith("a launch of ")


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root")
@pytest.mark.parametrize("first", ["root", "nobody"])
def test_whoever_makes_the_lock_the_other_user_waits_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="harness-users-") as shared:  # as /tmp is, and where both may go
        Path(shared).chmod(0o1777)
        monkeypatch.setenv("HARNESS_LOCK_DIR", shared)
        second = {"root": "nobody", "nobody": "root"}[first]
        with as_user(first) as one:
            assert one == "None"
            with as_user(second) as other:
                says(other, "on this host", first, "measured")
                assert re.search(r" \d+\)", other)
        with as_user(second) as other:
            assert other == "None"


@contextlib.contextmanager
def as_user(name: str) -> Iterator[str]:
    """Take the lock in a process of the user called `name`, yield what that answered, and end the process."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            user = pwd.getpwnam(name)
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            lock = HostLock()
            os.write(tell, str(lock.take()).encode())
            lock.note_holder(name)
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(tell)
    try:
        yield os.read(told, 1000).decode()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)


@pytest.mark.slow
def test_two_sweeps_in_two_folders_never_launch_at_once(lab: Lab, folder: Path) -> None:
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
        assert second.wait(timeout=120) == 0
        log.close()
    said = (lab.folder / "other.txt").read_text()
    # It says so once, and once more where another process of the first sweep has the host meanwhile.
    sentences = [line for line in said.splitlines() if "waiting: " in line]
    assert sentences and len(set(sentences)) == len(sentences)
    assert "(process " in said and "all results" not in "".join(sentences)  # who, and no folder of theirs


def test_a_file_system_without_locks_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lock").touch()

    def refuse(handle: int, how: int) -> None:
        raise OSError(37, os.strerror(37))  # ENOLCK

    monkeypatch.setattr("fcntl.flock", refuse)
    assert is_locked(SweepFolder(tmp_path)) is False


def test_a_full_disk_leaves_no_empty_sweep(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from types import SimpleNamespace
from harness.base.errors import UserError
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.sweep_lock import hold_sweep
def full(*args): raise OSError(28, os.strerror(28))
os.pwrite = full
try:
    with hold_sweep(SweepFolder(Path({str(tmp_path)!r}) / "sweep")): pass
except UserError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "no space left on device" in said
    assert [path.name for path in tmp_path.iterdir()] == [MARK]
    with hold_sweep(SweepFolder(tmp_path / "sweep")):
        assert is_locked(SweepFolder(tmp_path / "sweep"))
