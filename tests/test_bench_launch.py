"""The bench's launches: processes that end with it, a busy machine, and contenders that really train."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from harness.base import cpu_contention
from harness.base.cpu_contention import CpuUsage, other_load, wait_until_quiet
from harness.base.errors import RunError, UserError
from harness.bench.bench_record import Task
from harness.bench.contenders import CONTENDERS, is_installed
from harness.bench.launches import free_ports, physical_cores, run_together
from harness.cli import main

PYTHON = sys.executable

# Starts a child in the same group, writes both numbers to the file that is its last argument, then waits.
FAMILY = (
    "import os, pathlib, subprocess, sys, time;"
    "child = subprocess.Popen(['sleep', '60']);"
    "pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()} {child.pid}');"
)


def assert_gone(path: Path) -> None:
    numbers = [int(word) for word in path.read_text().split()]
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        alive = [pid for pid in numbers if is_running(pid)]
        if not alive:
            return
        time.sleep(0.1)
    pytest.fail(f"processes {alive} are still running")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_outputs_come_back_in_order(tmp_path: Path) -> None:
    commands = [("-c", f"print({number})") for number in range(3)]
    assert run_together(commands, limit_s=30, folder=tmp_path) == ["0\n", "1\n", "2\n"]


def test_servers_end_with_those_that_answer(tmp_path: Path) -> None:
    family = tmp_path / "family"
    wait = f"import os, time\nwhile not os.path.exists({str(family)!r}): time.sleep(0.05)\nprint('answer')"
    server = ("-c", FAMILY + "time.sleep(60)", str(family))
    assert run_together([("-c", wait), server], limit_s=30, folder=tmp_path, servers=1) == ["answer\n"]
    assert_gone(family)


def test_one_failure_ends_all_and_is_told(tmp_path: Path) -> None:
    family = tmp_path / "family"
    wait = f"import os, sys, time\nwhile not os.path.exists({str(family)!r}): time.sleep(0.05)\n"
    failing = ("-c", wait + "time.sleep(0.5)\nraise ValueError('no such worker')")
    with pytest.raises(RunError, match="ValueError: no such worker"):
        run_together([("-c", FAMILY + "time.sleep(60)", str(family)), failing], limit_s=30, folder=tmp_path)
    assert_gone(family)


def test_a_launch_past_its_limit_is_ended(tmp_path: Path) -> None:
    family = tmp_path / "family"
    begin = time.monotonic()
    with pytest.raises(RunError, match="not done within its limit of 2 s"):
        run_together([("-c", FAMILY + "time.sleep(60)", str(family))], limit_s=2, folder=tmp_path)
    assert time.monotonic() - begin < 20
    assert_gone(family)


def test_what_outlives_its_process_is_ended(tmp_path: Path) -> None:
    family = tmp_path / "family"
    run_together([("-c", FAMILY, str(family))], limit_s=30, folder=tmp_path)
    assert_gone(family)


def test_ports_are_different() -> None:
    assert len(set(free_ports(8))) == 8


def test_hyper_threads_stand_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 5})
    for cpu in range(6):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 3},{cpu % 3 + 3}\n")
    assert physical_cores(tmp_path) == [(0, 3), (1,), (2, 5)]
    assert physical_cores(tmp_path / "unknown") == [(0,), (1,), (2,), (3,), (5,)]


def test_other_load_is_what_neither_we_nor_our_children_used() -> None:
    begin, end = CpuUsage(clock=10, host=100, own=5), CpuUsage(clock=14, host=108, own=9)
    assert other_load(begin, end) == 1.0
    assert other_load(begin, CpuUsage(clock=14, host=101, own=9)) == 0.0


def test_our_own_children_are_no_load(tmp_path: Path) -> None:
    before = CpuUsage.now()
    spin = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass"
    run_together([("-c", spin)], limit_s=60, folder=tmp_path)
    assert CpuUsage.now().own - before.own >= 1.0


def test_a_busy_machine_is_refused_and_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_contention, "look", lambda: (1.3, "compiler, process 7"))
    said: list[str] = []
    with pytest.raises(UserError, match=r"keep 1\.3 of \d+ cores busy \(most of all compiler, process 7\).*--force"):
        wait_until_quiet(said.append, force=False, patience_s=0)
    assert wait_until_quiet(said.append, force=True) == 1.3


def test_a_machine_that_calms_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([0.9, 0.4, 0.1])
    monkeypatch.setattr(cpu_contention, "look", lambda: (next(loads), "compiler, process 7"))
    said: list[str] = []
    assert wait_until_quiet(said.append, force=False) == 0.1
    assert len(said) == 2


def test_looking_at_the_machine_sees_a_busy_process() -> None:
    import subprocess

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(0.3)
            load, name = cpu_contention.look()
        finally:
            busy.kill()
    assert load > 0.2
    assert "process" in name


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.parametrize(
    "name",
    [
        "keras-fit",
        "mwms",
        "parameter-server",
        "transparent",
        "gradients",
        "summing-1",
        "bare",
        "default",
        "bare-default",
        "raw-sums",
        "recording",
        "ddp",
        "horovod",
    ],
)
def test_a_contender_trains(name: str, cache: Path, request: pytest.FixtureRequest) -> None:
    if name not in ("mwms", "parameter-server"):  # gRPC does not outlive a fork: these have a Python of their own
        request.getfixturevalue("warm")
    contender = CONTENDERS[name]
    if getattr(contender, "python", None) == PYTHON:
        contender = replace(contender, python=sys.executable)
    if not is_installed(contender):
        pytest.skip(f"{contender.package} is not installed")
    if len(physical_cores()) < contender.ranks:
        pytest.skip(f"needs {contender.ranks} cores")
    task = Task(dataset="adult", model="dnn", rows=512, epochs=3)
    measured = contender.launch(task, limit_s=120)
    assert len(measured.seconds) == 3
    assert all(0 < seconds < 60 for seconds in measured.seconds)
    assert (measured.loss is None) == (name in ("raw-sums", "recording"))


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.usefixtures("warm")
def test_the_bare_loop_trains_with_the_default_settings_as_the_harness_does(cache: Path) -> None:
    """Adam, cosine, weight decay and flips; rows in another order and other flips, so that losses are near."""
    if len(physical_cores()) < 2:
        pytest.skip("needs 2 cores")
    task = Task(dataset="cifar10", model="dnn", rows=5120, epochs=3)
    ours, bare, sgd = (CONTENDERS[name].launch(task, limit_s=120).loss for name in ("default", "bare-default", "bare"))
    assert ours == pytest.approx(bare, rel=0.05)
    assert sgd != pytest.approx(bare, rel=0.05)


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.usefixtures("warm")
def test_a_bench_on_the_command_line_launches_ours(cache: Path, tmp_path: Path) -> None:
    if len(physical_cores()) < 2:
        pytest.skip("needs 2 cores")
    words = ("--quick", "--force", "--workloads", "adult-dnn", "--contenders", "gradients,bare", "--limit", "100")
    said = CliRunner().invoke(main, ["bench", *words, "--reports", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "[2/2] round 1 adult-dnn" in said.output
    assert "failed" not in said.output


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.parametrize("name", ["mwms", "parameter-server", "gradients"])
def test_a_contender_past_its_limit_leaves_nothing(name: str, cache: Path) -> None:
    if len(physical_cores()) < 2:
        pytest.skip("needs 2 cores")
    task = Task(dataset="adult", model="dnn", rows=512, epochs=3)
    before = psutil.Process().children(recursive=True)
    with pytest.raises(RunError, match="not done within its limit of 1 s"):
        CONTENDERS[name].launch(task, limit_s=1)
    left = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    assert [child for child in left if child not in before] == []
