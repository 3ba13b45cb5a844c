"""Programs that are run for their answer."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.base.processes import run_program


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        "import os, subprocess, time, pathlib;"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True);"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid)); time.sleep(60)"
    )
    begin = time.monotonic()
    reply = run_program([sys.executable, "-c", script], limit_s=2)
    assert reply.code is None
    assert "no answer within 2 s" in reply.last_error
    assert time.monotonic() - begin < 20
    child = int(pid_file.read_text())
    for _ in range(50):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)
    pytest.fail("the program's child is still running")


def test_a_program_that_is_missing_is_told() -> None:
    reply = run_program(["/nonexistent/tool"], limit_s=1)
    assert reply.code is None
    assert "/nonexistent/tool does not start" in reply.last_error
