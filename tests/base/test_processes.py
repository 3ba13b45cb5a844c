"""Programs that are run for their answer."""

import contextlib
import shlex
import time
from pathlib import Path

import psutil

from harness.base.processes import run_program


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"setsid sleep 600 & echo $! > {shlex.quote(str(pid_file))}; sleep 600"
    reply = run_program(["bash", "-c", script], limit_s=2)
    assert reply.code is None
    assert "no answer within 2 s" in reply.last_error
    child = int(pid_file.read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(child)
        while process.status() != psutil.STATUS_ZOMBIE:  # the test's own timeout ends what goes on for ever
            time.sleep(0.1)


def test_a_program_that_is_missing_is_told() -> None:
    reply = run_program(["/nonexistent/tool"], limit_s=1)
    assert reply.code is None
    assert "/nonexistent/tool does not start" in reply.last_error
