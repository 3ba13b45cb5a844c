"""The bench's blocks: contenders that really train in turns and leave nothing behind; and a busy machine."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from harness.base import cpu_contention
from harness.base.cores import usable_cores
from harness.base.cpu_contention import CpuUsage, other_load, wait_until_quiet
from harness.bench import bench_runner
from harness.bench.bench_record import read_bench
from harness.cli import main
from harness.sweep.schedulers import open_scheduler
from tests.labs.sentences import refuses, says


def test_other_load_is_what_neither_we_nor_our_children_used() -> None:
    begin, end = CpuUsage(clock=10, host=100, process=5), CpuUsage(clock=14, host=108, process=9)
    assert other_load(begin, end) == 1.0
    assert other_load(begin, CpuUsage(clock=14, host=101, process=9)) == 0.0


def test_a_busy_machine_is_refused_and_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_contention, "look", lambda seconds: (1.3, "compiler, process 7"))
    monkeypatch.setattr(cpu_contention, "patience_s", lambda: 0.001)
    said: list[str] = []
    with refuses("busy (most of all", "1.3", "7", "--force"):
        wait_until_quiet(said.append, force=False)
    assert wait_until_quiet(said.append, force=True) == 1.3
    monkeypatch.undo()
    monkeypatch.setenv("HARNESS_QUIET_S", "soon")
    with refuses("HARNESS_QUIET_S=soon"):
        open_scheduler("local")


def test_a_machine_that_calms_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([0.9, 0.4, 0.1])
    monkeypatch.setattr(cpu_contention, "look", lambda seconds: (next(loads), "compiler, process 7"))
    monkeypatch.setenv("HARNESS_QUIET_S", "60")
    said: list[str] = []
    assert wait_until_quiet(said.append, force=False) == 0.1
    busy = f"other processes keep 0.9 of {psutil.cpu_count()} cores busy (most of all compiler, process 7)"
    (line,) = said
    assert line.startswith(busy)
    says(line, "busy (most of all", "process 7", "60 s")


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
    "names", ["bare,bound,horovod-run,none", "keras-fit,run,ours-1,gradients", "ddp,mwms,parameter-server"]
)
def test_contenders_take_turns(names: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails leaves the others to train."""
    if usable_cores() < 2:
        pytest.skip("needs 2 cores")
    monkeypatch.setitem(bench_runner.ROUNDS_S, "dnn", 6.0)
    monkeypatch.setitem(
        bench_runner.EXPERIMENTS, "adult-dnn", replace(bench_runner.EXPERIMENTS["adult-dnn"], bench_rows=1280)
    )
    before = set(psutil.pids())
    options = ["--force", "--workloads", "adult-dnn", "--contenders", names, "--blocks", "1"]
    # This Python is none that has ddp's package: it ends at its import.
    options += ["--torch-python", sys.executable] if "ddp" in names else []
    said = CliRunner().invoke(main, ["bench", *options, "--reports", str(tmp_path / "reports")])
    assert said.exit_code == 0, said.output
    (block,) = read_bench(tmp_path / "reports/bench/bench.json").blocks
    failing = {"ddp"} & set(names.split(","))
    trained = set(names.split(",")) - failing
    assert set(block.failed) == failing, block.failed
    assert all("torch" in why for why in block.failed.values())
    assert trained <= set(block.steps) and not failing & set(block.steps)  # bare loops are in every block
    for name in trained:
        steps = [step for step in block.steps[name] if step is not None]
        assert len(steps) >= 2 and 1e-5 < min(steps) < 1, name
        assert 0 < block.losses[name] < 1.5, name
    spread = [block.losses[name] for name in ("bare", "bound", "horovod-run", "none") if name in block.losses]
    assert len(spread) < 2 or spread == pytest.approx([spread[0]] * len(spread), rel=0.1), "they train something else"
    deadline = time.monotonic() + 10
    while left := [one for one in set(psutil.pids()) - before if started_here(one)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def started_here(pid: int) -> bool:
    """Tell whether a process still runs that a bench has started."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "harness-bench-" in " ".join(process.cmdline())
    except psutil.Error:
        return False
