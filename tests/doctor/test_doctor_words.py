"""What the doctor says of a machine."""

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.__main__ import run_command_line as command
from harness.base.errors import UserError
from harness.base.processes import run_program
from harness.doctor import all_checks as table
from harness.doctor.all_checks import (
    OK,
    PROBLEM,
    WARNING,
    TensorFlow,
    check_mpi,
    check_scheduler,
    check_tensorflow,
    ok,
    problem,
    try_find_mpi,
    warning,
)


def test_a_missing_launcher_is_a_problem_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.setenv("PATH", "/nonexistent")
    found = try_find_mpi()
    assert isinstance(found, UserError)
    checks = list(check_mpi(found))
    launcher = next(check for check in checks if check.topic == "MPI launcher")
    assert launcher.status == PROBLEM
    assert "mpirun on PATH" in launcher.finding


def test_only_problems_make_the_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for worst, code, said in ((warning, 0, "Everything that runs need works."), (problem, 1, "Runs will fail: b.")):
        checks = [ok("a", "x"), worst("b", "y", "z")]
        monkeypatch.setattr(table, "all_checks", lambda _, checks=checks: iter(checks))
        assert command(["doctor"]) == code
        shown = capsys.readouterr().out
        assert said in shown and "fix: z" in shown


def test_a_broken_tensorflow_is_a_problem() -> None:
    check = check_tensorflow(TensorFlow(error="ImportError: no libfoo"))
    assert check.status == PROBLEM
    assert "no libfoo" in check.finding
    assert check_tensorflow(TensorFlow(seconds=3.0)).status == OK
    assert check_tensorflow(TensorFlow(seconds=90.0)).status == WARNING


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


def test_it_names_the_scheduler_the_pmi_and_what_would_be_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "sbatch": "",
        "sinfo": "case \"$*\" in *%D*) echo 'normal*|64|2|16|256000|(null)|2:00:00' ;; *) echo normal ;; esac",
        "srun": "echo 'MPI plugin types are... none pmix pmi2'",
    }
    for name, text in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = {check.topic: check.finding for check in check_scheduler()}
    assert found["scheduler"].startswith(f"slurm, found {tmp_path}")
    assert found["PMI"] == "mpi=pmix"
    assert "srun --mpi=pmix --nodes=2 --ntasks=2" in found["2 nodes"]
    assert "at most 64 nodes, cores of a node: 32" in found["2 nodes"] and "1:00:00 each" in found["2 nodes"]
