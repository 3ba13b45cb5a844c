"""A command that is killed leaves no process that it has started, whatever becomes of its parent."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.base import scratch
from harness.base.launch_guard import LaunchGuard, find_processes

LIMIT_S = 60  # only what goes on for ever takes as long
# Starts what ends at SIGTERM, what does not, and what starts another one when it is told to end.
COMMAND = """
import os, subprocess, sys, time
import psutil
from harness.base.launch_guard import LaunchGuard
guard = LaunchGuard()
(guard_process,) = psutil.Process().children()
programs = [
    "exec sleep 600",
    "trap '' TERM; sleep 600; sleep 600",
    "trap 'setsid sleep 600 & exit' TERM; while true; do sleep 0.1; done",
]
for program in programs:
    subprocess.Popen(["bash", "-c", program], env=os.environ | guard.variables, start_new_session=True)
print(guard.variables["HARNESS_GUARD"], guard_process.pid, flush=True)
if sys.argv[1] == "ends":
    guard.end(orderly=True)
else:
    time.sleep(600)
"""


def start(how: str) -> tuple["subprocess.Popen[str]", str, int]:
    """Start the command; return it, the mark of what it has started, and its guard."""
    process = subprocess.Popen([sys.executable, "-c", COMMAND, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    token, guard = process.stdout.readline().split()
    return process, token, int(guard)


def is_running(pid: int) -> bool:
    """Tell whether there is such a process that has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_command_leaves_no_process() -> None:
    process, token, guard = start("waits")
    assert len(find_processes("HARNESS_GUARD", token)) >= 3
    process.kill()
    process.wait()
    deadline = time.monotonic() + LIMIT_S
    while find_processes("HARNESS_GUARD", token) or is_running(guard):
        assert time.monotonic() < deadline, find_processes("HARNESS_GUARD", token)
        time.sleep(0.1)


def test_what_outlives_an_orderly_end_is_left_alone() -> None:
    process, token, guard = start("ends")
    assert process.wait(LIMIT_S) == 0
    assert not psutil.pid_exists(guard)
    left = find_processes("HARNESS_GUARD", token)
    assert len(left) >= 3
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):  # a `sleep 0.1` of the loop
            one.kill()


def test_a_guard_is_part_of_no_other_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_JOB", "outer")
    monkeypatch.setenv("HARNESS_GUARD", "outer")
    guard = LaunchGuard()
    try:
        assert find_processes("HARNESS_JOB", "outer") == []
        assert find_processes("HARNESS_GUARD", "outer") == []
    finally:
        guard.end(orderly=True)


def test_nothing_of_the_working_directory_is_imported(tmp_path: Path) -> None:
    (tmp_path / "psutil.py").write_text("open('imported', 'w')")
    words = "from harness.base.launch_guard import LaunchGuard; LaunchGuard().end(orderly=True)"
    subprocess.run([sys.executable, "-P", "-c", words], cwd=tmp_path, check=True)
    assert not (tmp_path / "imported").exists()


def test_the_next_launch_clears_the_segments_of_dead_ranks_of_this_user(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as living, subprocess.Popen(["true"]) as dead:
        dead.wait()
        own = {
            "of a dead rank": f"harness-{dead.pid}-0x7f00",
            "of a living one": f"harness-{living.pid}-0x7f00",
            "a user's": "harness-notes",
            "a folder": f"harness-{dead.pid}-0x7f01",
        }
        for what, name in own.items():
            (tmp_path / name).mkdir() if what == "a folder" else (tmp_path / name).touch()
        scratch.Scratch(tmp_path).close()
        assert len(list(tmp_path.iterdir())) == len(own)  # all are young: their ranks may be in another container
        later = time.time() + 1000
        with pytest.MonkeyPatch.context() as clock:
            clock.setattr("time.time", lambda: later)
            scratch.Scratch(tmp_path).close()
        living.send_signal(signal.SIGKILL)
    assert {path.name for path in tmp_path.iterdir()} == set(own.values()) - {own["of a dead rank"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="to have another user's file needs root")
def test_another_users_segment_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "harness-4194999-0x7f00"
    path.touch()
    os.chown(path, 65534, 65534)
    scratch.remove_segments({4194999}, tmp_path)
    assert path.exists()
    os.chown(path, os.geteuid(), 0)
    scratch.remove_segments({4194999}, tmp_path)
    assert not path.exists()
