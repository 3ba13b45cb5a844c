"""The blocks of a bench: who is in them, when they end; contenders really train and leave nothing behind."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from harness.base.cores import usable_cores
from harness.base.first_epoch import FIRST_EPOCH, note_first_epoch
from harness.bench import bench_runner
from harness.bench.bench_record import read_bench
from harness.bench.bench_runner import BenchSettings, FirstEpoch, SetMaker, split
from harness.bench.contenders import BATCH_PER_RANK, CONTENDERS, Contender, Task
from harness.cli import main
from harness.schema.claim import EXPERIMENTS
from tests.labs.sentences import refuses


@pytest.mark.parametrize("workload", sorted(EXPERIMENTS))
def test_two_ranks_make_whole_batches_only(workload: str) -> None:
    task = BenchSettings(workloads=(workload,)).task(workload)
    assert task.rows > 0 and task.rows % (2 * BATCH_PER_RANK) == 0
    assert task.workload(sync="none").name == workload


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            {"workloads": ("mnist-dmn",)},
            ("higgs-dnn", "mnist-dnn"),
        ),
        (
            {"blocks": 0},
            ("--blocks 0",),
        ),
        (
            {"pythons": {"horovod": "/nowhere/python"}},
            ("is not a program", "/nowhere/python"),
        ),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], refusal: str) -> None:
    with refuses(*refusal):
        BenchSettings(**settings)  # type: ignore[arg-type]


def test_blocks_go_on_until_the_minutes_are_spent() -> None:
    whole = BenchSettings()
    assert whole.goes_on(2, 1e6) and not whole.goes_on(3, 1e6)  # three are needed, however long
    assert whole.goes_on(4, 700.0) and not whole.goes_on(4, 740.0)  # a fifth takes 175 s, 185 s
    assert not BenchSettings(blocks=1).goes_on(1, 0.0)
    assert set(whole.names) == set(EXPERIMENTS)


def test_every_block_has_the_bare_loop_where_memory_does_not_hold_all() -> None:
    every: list[Contender] = list(CONTENDERS.values())
    assert split(every, 2**40) == [sorted(every, key=lambda one: one.name not in ("bare-1", "bare", "bound"))]
    parts = split(every, 6 * 2**30)
    assert len(parts) > 1
    for part in parts:
        assert {"bare-1", "bare", "bound"} < {one.name for one in part}
    others = [one.name for part in parts for one in part if one.name not in ("bare-1", "bare", "bound")]
    assert sorted(others) == sorted(set(CONTENDERS) - {"bare-1", "bare", "bound"})


def test_the_first_epoch_of_a_contender_is_read_from_what_it_has_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = SetMaker(task=Task(dataset="mnist", model="dnn", rows=512), folder=tmp_path, python="python")
    contender = CONTENDERS["ddp"]
    assert maker.first_epoch(contender) is None
    note_first_epoch(0.5)  # where nobody asks, nothing is written
    monkeypatch.setenv(FIRST_EPOCH, str(tmp_path / "ddp-first-epoch.json"))
    note_first_epoch(0.25, "PyTorch 2")
    assert maker.first_epoch(contender) == FirstEpoch(train_loss=0.25, versions="PyTorch 2")


def test_the_paper_has_seven_workloads() -> None:
    assert set(EXPERIMENTS) == {
        *("adult-dnn", "acoustic-dnn", "mnist-dnn", "mnist-cnn", "cifar10-dnn", "cifar10-cnn", "higgs-dnn")
    }


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
    temporary = tmp_path / "temporary"  # of all processes that are started from here
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    options = ["--force", "--workloads", "adult-dnn", "--contenders", names, "--blocks", "1"]
    # This Python is none that has ddp's package: it ends at its import.
    options += ["--torch-python", sys.executable] if "ddp" in names else []
    said = CliRunner().invoke(main, ["bench", *options, "--reports", str(tmp_path / "reports")])
    assert said.exit_code == 0, said.output
    (block,) = read_bench(tmp_path / "reports/bench/bench.json").blocks
    assert list(temporary.iterdir()) == []
    failing = {"ddp"} & set(names.split(","))
    trained = set(names.split(",")) - failing
    assert set(block.failed) == failing, block.failed
    assert all("torch" in why for why in block.failed.values())
    assert trained <= set(block.steps) and not failing & set(block.steps)  # bare loops are in every block
    for name in trained:
        # On a machine with other work a block of these few seconds may have one round.
        steps = [step for step in block.steps[name] if step is not None]
        assert steps, name
        assert 1e-5 < min(steps) < 1, name
        assert 0 < block.losses[name] < 1.5, name
    spread = [block.losses[name] for name in ("bare", "bound", "horovod-run", "none") if name in block.losses]
    assert len(spread) < 2 or spread == pytest.approx([spread[0]] * len(spread), rel=0.1), "they train something else"
    deadline = time.monotonic() + 60
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
