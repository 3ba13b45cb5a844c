"""What one process does when others fail: it goes on from the step that it has made, on the same rows."""

import tempfile
from pathlib import Path

import pytest

from harness.comm.elastic_world import Member, MembershipChange, Team
from harness.comm.world import start
from harness.schema.sweep import Layout, Point
from harness.schema.workload import Workload
from tests.mpi.launch import ROOT, run_ranks

LOST = RuntimeError("rank 0: update failed: harness: lost rank 1: its process is gone")


class TeamOfOne(Team):
    """A team whose only member that trains is this process; its others fail when an attempt fails."""

    def __init__(self, folder):
        super().__init__(start().comm, shares=(1,), patience_s=0, folder=folder)

    def form(self, knowledge):
        self.members, self.world = (self.own,), start()
        gone = Member(slot=1, share=1, host="there", pid=2, began=0.0)
        return MembershipChange(failed=() if self.complete else (gone,), kept=(0,)), [knowledge]

    def ended(self, error):
        return error is None

    def shrink(self):
        self.complete = False


def train(monkeypatch, folder, fail=None, **fields):
    """Return the outcome of a small launch in which `fail`, a module of harness.train and a name in it, fails once."""
    from harness.train import elastic, training

    workload = Workload(
        dataset="adult", model="dnn", batch_per_rank=64, samples=1000, epochs=3, data="synthetic", seed=3,
        **{"on_failure": "shrink", **fields},
    )  # fmt: skip
    failures = iter((False, True))
    if fail:
        module, name = fail.split(".")
        module = {"training": training, "elastic": elastic}[module]
        real = getattr(module, name)

        def failing(*words, **named):
            if next(failures, False):
                raise LOST
            return real(*words, **named)

        monkeypatch.setattr(module, name, failing)
    point = Point(workload=workload, layout=Layout(nodes=1))
    told = []
    survivor = elastic.Survivor(
        team=TeamOfOne(folder), point=point, data_dir=None, report=lambda world, epoch: told.append(epoch.epoch)
    )
    return survivor.run(lambda world, outcome: outcome), told


PLACES = (
    "elastic.evaluate_all", "training.epoch_order", "elastic.epoch_record", "training.read_offset",
    "training.verify_replicas",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "places"),
    [("momentum", PLACES), ("sgd", PLACES[:2]), ("adam", PLACES[:2]), ("adagrad", PLACES[:2])],
)
def test_a_process_that_is_interrupted_ends_with_the_weights_of_one_that_is_not(
    monkeypatch, tmp_path, optimizer, places
):
    whole, _ = train(monkeypatch, tmp_path, optimizer=optimizer)
    for fail in places:
        with monkeypatch.context() as patch:
            outcome, told = train(patch, tmp_path, fail, optimizer=optimizer)
        if fail not in ("training.read_offset", "training.verify_replicas"):
            assert [loss.rank for loss in outcome.losses] == [1]
        assert outcome.weights_sha256 == whole.weights_sha256, fail
        assert [epoch.epoch for epoch in outcome.epochs] == told == [0, 1, 2]
        assert all(epoch.seconds[0] > 0 for epoch in outcome.epochs)  # else no one can read the record
        assert outcome.epochs[-1].test_loss == whole.epochs[-1].test_loss


@pytest.mark.mpi  # sums need mpirun: of a process that pytest runs in, MPI may end pytest itself
def test_sums_over_hosts_go_the_way_that_they_went_before_a_failure():
    """A way is chosen by the clock: another one adds up in another order, and weights are not the same bit for bit."""
    finished = run_ranks(1, "-m", "tests.test_survive", cwd=ROOT, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "messages messages"


def ways_of_sums(folder):
    """Return the ways in which sums are opened, of which the first try finds another one than the second."""
    from harness.comm import grouped_sums

    faster, opened = iter([("messages", "tried"), ("node-aware", "tried")]), []
    real = grouped_sums.NativeReduction
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_SYNC_ALONE", "1")
        patch.setattr(grouped_sums, "faster_way", lambda *_: next(faster))
        patch.setattr(
            grouped_sums,
            "NativeReduction",
            lambda *words, way, **options: opened.append(way) or real(*words, way=way, **options),
        )
        train(patch, folder, "elastic.evaluate_all", on_failure="replace", spares=1)
    return opened


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(*ways_of_sums(Path(folder)))
