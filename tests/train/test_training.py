"""Training under mpirun on 1, 2 and 3 ranks: the same losses, equal replicas, no hang."""

import functools
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from harness.base.errors import RunError, UserError
from harness.comm.native.build import build_operation
from harness.schema.message_cost import OVERLAPPED, Algorithm
from harness.schema.own_code import find_policy
from harness.schema.record import RunRecord, read_run
from harness.schema.record_notes import NoteCode
from tests.labs.caches import own_cache
from tests.labs.faulty_launches import train_faulty
from tests.mpi.launch import PROGRAMS, result, run_ranks

pytestmark = pytest.mark.mpi

DNNS = ("adult-dnn", "acoustic-dnn", "mnist-dnn", "cifar10-dnn", "higgs-dnn")
CNNS = ("mnist-cnn", "cifar10-cnn")
WAYS = (Algorithm.NATIVE, Algorithm.MESSAGES, Algorithm.NODE_AWARE, Algorithm.BRIDGE)
ON_THREE = ("adult-dnn", "cifar10-cnn")  # rows as they are, and images that are mirrored


@functools.cache
def curves(ranks: int) -> dict:
    """Return workloads' loss curves and weight hashes at `ranks` ranks."""
    return result(ranks, "invariance.py", *(ON_THREE if ranks == 3 else (*DNNS, *CNNS)))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory, session_environment):
    """Keep prepared data of these tests in a folder of their own."""
    session_environment.setenv("HARNESS_CACHE_DIR", own_cache(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize(
    ("workload", "ranks"), [*((name, 2) for name in (*DNNS, *CNNS)), *((name, 3) for name in ON_THREE)]
)
def test_losses_do_not_depend_on_the_ranks(workload, ranks):
    """50 steps of the same global batches: within 1e-5 of one rank (1e-4 for the CNNs), relative."""
    alone, divided = curves(1)[workload]["losses"], curves(ranks)[workload]["losses"]
    assert len(alone) == 50
    tolerance = 1e-5 if workload in DNNS else 1e-4
    assert divided == pytest.approx(alone, rel=tolerance)
    assert sum(alone[-10:]) < sum(alone[:10]), "the loss does not fall"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_reduction_sums_exactly_and_trains_the_same(ranks):
    """Native (shared memory), messages (MPI_Allreduce) and bridge; up to two ranks bit for bit after 100 steps."""
    optimizers = ("sgd", "momentum", "adam") if ranks == 2 else ("adam",)
    found = result(ranks, "reductions.py", *optimizers)
    assert ("shared memory" in found["native"]["name"]) == (ranks > 1)
    assert "MPI_Allreduce" in found["messages"]["name"]
    assert "bridge" in found["bridge"]["name"]
    for choice, outcome in found.items():
        assert outcome["error"] < 1e-5 and outcome["error of float64"] < 1e-13, choice
        assert outcome["one NaN"], choice
        assert (outcome["calls"], outcome["ordered"]) == (80 if choice == "native" else 12, True), choice
        noted = choice in ("node-aware", "nccl") or (choice == "no room" and ranks > 1)
        assert bool(outcome["notes"]) == noted, choice
    if ranks > 1:
        assert found["no room"]["notes"] == [NoteCode.NO_SHARED_MEMORY] and "MPI_Allreduce" in found["no room"]["name"]
    assert found["node-aware"]["notes"] == [NoteCode.NOT_NODE_AWARE]
    assert found["nccl"]["notes"] == [NoteCode.STAGED] and found["nccl"]["name"] == found["native"]["name"]
    assert "MPI_Allreduce" in found["node-aware"]["name"]
    assert found["native"]["alone"] == found["bridge"]["alone"]
    assert [found[choice]["fused alone"] for choice in ("native", "bridge")] == [True, False]
    assert [found[choice]["calls alone"] for choice in ("native", "bridge")] == [0, 0]
    for optimizer in optimizers:
        assert {found[choice][f"{optimizer} steps"] for choice in WAYS} == {100}
        if ranks < 3:
            assert len({found[choice][optimizer] for choice in WAYS}) == 1


def test_sums_beside_the_backward_pass_come_to_the_same_weights():
    """Two pieces of a CNN's gradients, in every way that they can be used; on two ranks bit for bit.

    What is logged is what training waits for: the first piece, of 13 MB, begins before all gradients are there. Weights
    are averaged when no gradients are computed: in one piece.
    """
    found = result(2, "overlap.py")
    for name in ("sgd", "momentum", "adam", "bf16", "averages"):
        behind, beside = found[f"{name} 0"], found[f"{name} 1"]
        assert OVERLAPPED not in behind["name"], name
        assert (OVERLAPPED in beside["name"]) == (name != "averages"), name
        assert beside["weights"] == behind["weights"], name
        assert beside["calls"] == behind["calls"] == (2 if name == "averages" else 10), name
        assert behind["early"] == 0 and beside["least_s"] >= 0, name
        assert (beside["early"] > 0) == (name != "averages"), name  # of 10; on busy cores a piece may be late


def test_counts_beyond_what_mpi_can_count_go_in_parts():
    found = result(2, "chunks.py")
    assert found["error"] < 1e-5 and found["calls"] == [2, 2]


def test_a_process_keeps_its_library_when_the_sources_are_edited(monkeypatch):
    library = build_operation()
    monkeypatch.setattr("harness.comm.native.build.COMPILER_FLAGS", ("-no-such-flag",))
    assert build_operation() == library


def test_without_a_compiler_the_bridge_is_used_and_said(tmp_path, monkeypatch):
    build_operation.cache_clear()
    monkeypatch.setattr("harness.comm.native.build.COMPILER_FLAGS", ("-no-such-flag",))
    with pytest.raises(RunError, match="native operation does not compile"):
        build_operation()
    record = train(
        tmp_path,
        2,
        "--dataset",
        "adult",
        "--samples",
        640,
        "--epochs",
        1,
        OMPI_CXX="no-such-compiler",
        HARNESS_CACHE_DIR=tmp_path,
    )
    assert record.provenance.reduction == "numpy_function bridge"
    assert record.note(NoteCode.BRIDGE)
    assert record.provenance.algorithm == Algorithm.BRIDGE


def train(folder: Path, ranks: int, *options: object, **environment: str) -> RunRecord:
    """Train on `ranks` ranks through the command line and return the record."""
    record = folder / f"run-{ranks}-{abs(hash(options))}"
    finished = run_ranks(
        ranks, "-m", "harness", "train", "--data-kind", "synthetic", "--record", record, *options, **environment
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return read_run(record)


KEEPING = ("diloco:3", "powersgd:1")  # what a checkpoint has to have
POLICIES = ("gradients", "weights:3", "weights:epoch", *KEEPING)
FEW = ("--dataset", "adult", "--samples", "2", "--epochs", "2", "--sync")
READ = ("--dataset", "adult", "--samples", "997", "--epochs", "1")
ON_THREE_RANKS = {
    **{sync: ("--dataset", "adult", "--samples", "1500", "--epochs", "2", "--sync", sync) for sync in POLICIES},
    **{f"few rows, {sync}": (*FEW, sync) for sync in ("gradients", "weights:epoch")},
    "read": READ,
    "sent": (*READ, "--distribution", "scatter"),
    "in time": ("--dataset", "adult", "--samples", "997", "--epochs", "5000", "--seconds", "0.3"),
}


@pytest.fixture(scope="module")
def three_ranks_ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Train `ON_THREE_RANKS` by one mpirun through the command line; return the records' folder and what was said."""
    folder = tmp_path_factory.mktemp("three ranks")
    words = [
        ["--data-kind", "synthetic", "--record", str(folder / name), *options]
        for name, options in ON_THREE_RANKS.items()
    ]
    finished = run_ranks(3, PROGRAMS / "trainings.py", json.dumps(words), json.dumps(KEEPING))
    assert finished.returncode == 0, finished.stderr[-3000:]
    return folder, finished.stdout


@pytest.fixture(scope="module")
def three_ranks(three_ranks_ended: tuple[Path, str]) -> dict[str, RunRecord]:
    """Return the records of `ON_THREE_RANKS`."""
    return {name: read_run(three_ranks_ended[0] / name) for name in ON_THREE_RANKS}


@pytest.mark.parametrize("sync", POLICIES)
def test_replicas_end_equal_under_every_policy(three_ranks, sync):
    record = three_ranks[sync]
    assert record.weights.identical
    assert [rank.rows for rank in record.ranks] == [500] * 3
    if sync != "diloco:3":  # whose velocities carry the first six outer steps too far
        assert record.epochs[1].train_loss < record.epochs[0].train_loss
    assert all(0 < sync_s <= s for e in record.epochs for s, sync_s in zip(e.seconds, e.sync_seconds, strict=True))


def test_steps_have_entry_and_exit_of_every_call(three_ranks, three_ranks_ended):
    record = three_ranks["weights:3"]
    steps = pd.read_parquet(three_ranks_ended[0] / "weights:3" / "steps.parquet")
    assert len(steps) == 2 * 3 * record.steps_per_epoch  # epochs x ranks x steps
    assert all(ns > 1 for ns in record.core_ns)  # no core sees sooner what another one wrote
    called = steps[steps["entry_s"].notna()]
    assert set(called["step"]) == {2, 5, 7}  # every third of 8 steps and the epoch's last
    assert (called["exit_s"] > called["entry_s"]).all()
    rows = steps.groupby("epoch")["loss_sum"].sum() / 1500
    assert list(rows) == pytest.approx([epoch.train_loss for epoch in record.epochs], rel=1e-5)


def test_calls_of_a_policy_with_two_sums_a_step(three_ranks_ended):
    factored = pd.read_parquet(three_ranks_ended[0] / "powersgd:1" / "steps.parquet")
    assert factored["entry_s"].notna().all() and (factored["exit_s"] > factored["entry_s"]).all()


def test_what_a_policy_keeps_is_resumed_bit_for_bit(three_ranks_ended):
    (line,) = (line for line in three_ranks_ended[1].splitlines() if line.startswith("RESUMED "))
    found = json.loads(line.removeprefix("RESUMED "))
    assert set(found) == set(KEEPING) and len({whole for whole, _ in found.values()}) == len(KEEPING)
    for whole, later in found.values():
        assert whole == later


def test_scatter_hands_every_rank_the_rows_it_would_have_read(three_ranks):
    assert three_ranks["sent"].weights.sha256 == three_ranks["read"].weights.sha256
    assert all(rank.distribute_s > 0 for rank in three_ranks["sent"].ranks)


def test_a_launch_with_a_time_budget_ends_with_the_epoch_in_which_it_is_used_up(three_ranks):
    record = three_ranks["in time"]
    took = [max(epoch.seconds) for epoch in record.epochs]
    assert sum(took[:-1]) < 0.3 <= sum(took) and len(took) < 5000
    assert record.weights.identical


def test_only_rank_0_opens_data_that_it_sends(three_ranks_ended):
    """Neither training nor test rows are read by another rank (paper A, 3.3.1)."""
    said = [line.removeprefix("OPENED ") for line in three_ranks_ended[1].splitlines() if line.startswith("OPENED ")]
    opened = dict(zip(ON_THREE_RANKS, map(json.loads, said), strict=True))
    assert all(opened["read"])
    assert opened["sent"][0] and not any(opened["sent"][1:])


@pytest.mark.parametrize("sync", ["gradients", "weights:epoch"])
def test_fewer_rows_than_ranks_neither_hangs_nor_counts_twice(three_ranks, sync):
    """Two rows on three ranks: one rank owns none and takes part in every step."""
    record = three_ranks[f"few rows, {sync}"]
    assert sum(rank.rows for rank in record.ranks) == 2
    assert min(rank.rows for rank in record.ranks) == 0
    assert record.weights.identical
    assert record.epochs[1].train_loss < record.epochs[0].train_loss


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises_while_building", "rank 1: ValueError: planted fault while building"),
        ("raises_in_a_step", "planted fault in step 20"),
        ("hangs_up", ""),
    ],
)
def test_one_rank_that_fails_ends_all(fault, message):
    # Less than the patience of a rank that waits for another: the error ends all, not that.
    finished = train_faulty(2, fault, timeout=110, python=sys.executable if fault == "hangs_up" else None)
    assert finished.returncode != 0
    assert message in finished.stderr
    assert "sha256" not in finished.stdout


def test_a_replica_that_drifts_is_named():
    finished = train_faulty(2, "drifts", "--samples", 640, "--epochs", 1)
    assert finished.returncode == 1
    assert "'sequential/drift/offset'" in finished.stderr


def test_bad_input_is_told_once_with_exit_code_two():
    finished = run_ranks(2, "-m", "harness", "train", "--dataset", "mnits")
    told = [line for line in finished.stderr.splitlines() if line.startswith("harness:")]
    assert finished.returncode == 2
    assert len(told) == 1
    assert "'mnist'" in told[0]


POLICY = '''
from dataclasses import dataclass

from harness.schema.sync_policies import SyncPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfWay(SyncPolicy):
    """Every second step go half the way to the mean weights; all of it would be weights:2."""

    period: int | None = 2
    synchronises = False

    def weights(self, weights, mean):
        return [(own + middle) / 2 for own, middle in zip(weights, mean(weights, "half way"), strict=True)]
'''


def test_a_sync_policy_is_one_class_in_a_package_of_ones_own(tmp_path):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "mine.py").write_text(POLICY)
    options = ("--dataset", "adult", "--samples", 640, "--epochs", 1, "--data-kind", "synthetic", "--global-batch", 64)
    finished = run_ranks(
        2,
        "-m",
        "harness",
        "train",
        *options,
        "--sync",
        "steps.mine:HalfWay",
        "--record",
        "run",
        cwd=tmp_path,
        PYTHONPATH=str(Path.cwd()),
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    record = read_run(tmp_path / "run")
    assert record.point.workload.sync == "steps.mine:HalfWay" and not record.weights.identical
    steps = pd.read_parquet(tmp_path / "run" / "steps.parquet")
    assert set(steps[steps["entry_s"].notna()]["step"]) == {1, 3, 5, 7, 9}


@pytest.mark.parametrize("text", ["no_such_module:Policy", "json:JSONDecoder", "json:nothing"])
def test_a_policy_that_is_none_is_refused(text):
    with pytest.raises(UserError, match=r"cannot be imported|does not name a sync policy|names no function or class"):
        find_policy(text)
