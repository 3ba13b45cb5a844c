"""The doctor: what it says of launchers, worlds, folders, and of programs that hang or are missing."""

import json
import os
import sys
from pathlib import Path

import pytest

from harness.__main__ import run_command_line as command
from harness.base.errors import UserError
from harness.base.processes import Reply, run_program
from harness.doctor import all_checks as table
from harness.doctor.all_checks import (
    OK,
    PROBLEM,
    WARNING,
    TensorFlow,
    check_cache,
    check_compilers,
    check_data,
    check_gpus,
    check_match,
    check_mpi,
    check_node_name,
    check_package,
    check_scheduler,
    check_tensorflow,
    check_world,
    ok,
    problem,
    try_find_mpi,
    warning,
)
from tests.labs.sentences import says

LIBRARY = "Open MPI v5.0.11, package: Open MPI user@localhost, ident: 5.0.11"


def world(size: int, total: float) -> str:
    return json.dumps({"size": size, "sum": total, "library": LIBRARY, "standard": "3.1", "threads": "multiple"}) + "\n"


@pytest.mark.parametrize(
    ("out", "code", "status", "words"),
    [
        (world(2, 1.0), 0, OK, "one world of size 2"),
        (world(1, 0.0) * 2, 0, PROBLEM, "2 worlds of size 1 instead of one of 2"),
        (world(2, 0.0), 0, PROBLEM, "allreduce of 0 and 1 gave 0.0"),
        (world(2, 1.0), 7, PROBLEM, "exit code 7"),
        ("", 1, PROBLEM, "no permission to start"),
    ],
)
def test_two_ranks_must_form_one_world(out: str, code: int, status: str, words: str) -> None:
    check = check_world(Reply(code=code, out=out, err="warning\nno permission to start\n"))
    assert check.status == status
    assert words in check.finding
    assert bool(check.fix) == (status != OK)


def test_slurms_name_of_a_node_is_to_be_its_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert check_node_name() is None
    monkeypatch.setattr(table.socket, "gethostname", lambda: "n7.cluster.example")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    assert check_node_name() == ok("node name", "n7")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-1")
    check = check_node_name()
    assert check is not None
    assert check.status == WARNING
    says(check.finding, "gpu-1", "n7", "srun --mpi=pmix")
    says(check.fix, "mpirun", "site file")


@pytest.mark.parametrize(
    ("library", "launcher", "status"),
    [
        (LIBRARY, "mpirun (Open MPI) 5.0.11", OK),
        (LIBRARY, "mpirun (Open MPI) 4.1.4", WARNING),
        ("MPICH Version:      4.0.2", "mpirun (Open MPI) 4.0.2", PROBLEM),
        ("MPICH Version:      4.0.2", "HYDRA build details: Version: 4.0.2", OK),
    ],
)
def test_library_and_launcher_are_compared(library: str, launcher: str, status: str) -> None:
    assert check_match(library=library, launcher=launcher).status == status


def test_an_absent_package_names_the_command_that_installs_it() -> None:
    check = check_package("no-such-package-here", "Nothing")
    assert (check.status, check.fix) == (PROBLEM, "pip install no-such-package-here")


def test_no_compiler_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [check.status for check in check_compilers(None)] == [WARNING, WARNING]


def test_a_gpu_that_tensorflow_does_not_see_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Example GPU, 80 GiB, 550.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert check_gpus(()).status == WARNING
    assert check_gpus(("Example GPU",)).status == OK
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert check_gpus(()).finding == "none"


def test_a_cache_in_the_way_of_a_file_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(blocked))
    assert check_cache().status == PROBLEM
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    assert check_cache().status == OK


def test_data_sets_are_looked_for(tmp_path: Path, shared_data: Path) -> None:
    absent = {check.topic: check.finding for check in check_data(tmp_path)}
    assert all("synthetic data" in found for topic, found in absent.items() if topic != "data folder")
    present = {check.topic: check.finding for check in check_data(shared_data)}
    assert present["data mnist"] == "original files"
    assert "synthetic data" in present["data acoustic"]
    assert next(check_data(tmp_path / "gone")).status == PROBLEM


def test_variables_are_set_and_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_TEST_GONE", "1")
    script = "import os; print(os.environ.get('HARNESS_TEST_GONE'), os.environ['HARNESS_TEST_SET'])"
    reply = run_program(
        [sys.executable, "-c", script], limit_s=30, changes={"HARNESS_TEST_GONE": None, "HARNESS_TEST_SET": "2"}
    )
    assert reply.first_line == "None 2"


@pytest.mark.e2e
@pytest.mark.mpi
def test_the_command_starts_two_ranks_and_prints_json_and_its_exit_code(capsys) -> None:
    code = command(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert code == (1 if any(check["status"] == PROBLEM for check in checks) else 0)
    by_topic = {check["topic"]: check for check in checks}
    for topic in ("two ranks", "they match"):
        assert by_topic[topic]["status"] == OK, by_topic[topic]
    topics = [check["topic"] for check in checks]
    assert len(set(topics)) == len(topics)
    assert {"TensorFlow", "MPI library", "two ranks", "cores", "memory", "GPUs", "git commit"} <= set(topics)
    assert all(check["fix"] for check in checks if check["status"] != OK)


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
        assert "u001b" not in shown  # a colour would be shown as text


def test_a_broken_tensorflow_is_a_problem() -> None:
    check = check_tensorflow(TensorFlow(error="ImportError: no libfoo"))
    assert check.status == PROBLEM
    assert "no libfoo" in check.finding
    assert check_tensorflow(TensorFlow(seconds=3.0)).status == OK
    assert check_tensorflow(TensorFlow(seconds=90.0)).status == WARNING


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
    assert "at most 64 nodes, cores of a node: 32" in found["2 nodes"] and "a time limit" in found["2 nodes"]
