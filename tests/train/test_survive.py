"""What one process does when others fail: it goes on from the step that it has made, on the same rows."""

import pytest

from harness.comm.elastic_world import Member, MembershipChange, Team
from harness.comm.lost_ranks import Loss, LostRankError
from harness.comm.world import start_mpi
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import LossReason
from harness.schema.workload import Workload

LOST = LostRankError("rank 0: update failed", Loss(reason=LossReason.GONE, rank=1))


class TeamOfOne(Team):
    """A team whose only member that trains is this process; its others fail when an attempt fails."""

    def __init__(self, folder):
        super().__init__(start_mpi().comm, patience_s=0, folder=folder)

    def form(self, knowledge):
        self.members, self.world = (self.member,), start_mpi()
        gone = Member(slot=1, host="there", pid=2, began=0.0)
        return MembershipChange(failed=() if self.complete else (gone,), old_slots=(0,)), [knowledge]

    def ended(self, error):
        return error is None

    def shrink(self):
        self.complete = False


def train_interrupted(monkeypatch, folder, fail=None, **fields):
    """Return the outcome of a small launch in which `fail`, a module of harness.train and a name in it, fails once."""
    from harness.train import elastic, training

    workload = Workload(
        dataset="adult",
        model="dnn",
        batch_per_rank=64,
        samples=1000,
        epochs=3,
        data="synthetic",
        seed=3,
        **{"on_failure": "shrink", **fields},
    )
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
    "elastic.evaluate_all",
    "training.epoch_order",
    "elastic.epoch_record",
    "training.read_offset",
    "training.verify_replicas",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "places"),
    [("momentum", PLACES), ("sgd", PLACES[:2]), ("adam", PLACES[:2]), ("adagrad", PLACES[:2])],
)
def test_a_process_that_is_interrupted_ends_with_the_weights_of_one_that_is_not(
    monkeypatch, tmp_path, optimizer, places
):
    whole, _ = train_interrupted(monkeypatch, tmp_path, optimizer=optimizer)
    for fail in places:
        with monkeypatch.context() as patch:
            outcome, told = train_interrupted(patch, tmp_path, fail, optimizer=optimizer)
        if fail not in ("training.read_offset", "training.verify_replicas"):
            assert [loss.rank for loss in outcome.losses] == [1]
        assert outcome.weights_sha256 == whole.weights_sha256, fail
        assert [epoch.epoch for epoch in outcome.epochs] == told == [0, 1, 2]
        assert all(epoch.seconds[0] > 0 for epoch in outcome.epochs)  # else no one can read the record
        assert outcome.epochs[-1].test_loss == whole.epochs[-1].test_loss
