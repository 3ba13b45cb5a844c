"""Ranks that are lost: killed, or stopped so that they live and do not come."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.time_parts import stretch_rate, stretches_around
from harness.base.errors import UserError
from harness.base.exit_codes import LOST
from harness.comm.elastic_world import Member, MembershipChange, Team
from harness.comm.lost_ranks import Loss, LostRankError
from harness.comm.mpi_library import Family, MpiInstallation
from harness.comm.world import start_mpi
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import LossReason, read_run
from harness.schema.record_notes import NoteCode
from harness.schema.workload import Workload
from harness.sweep.launch_command import LaunchCommand, surviving
from harness.train.elastic import check_workload
from tests.labs.faulty_launches import train_faulty
from tests.labs.sentences import refuses
from tests.losses import unaccounted
from tests.mpi.launch import PROGRAMS, rank_command, rank_environment

LOST_RANK = LostRankError("rank 0: update failed", Loss(reason=LossReason.GONE, rank=1))
PLACES = (
    "elastic.evaluate_all",
    "training.epoch_order",
    "elastic.epoch_record",
    "training.read_offset",
    "training.verify_replicas",
)


@pytest.mark.mpi
def test_a_rank_that_is_stopped_in_a_step_ends_the_launch_and_is_named(tmp_path):
    record = ("--record", tmp_path / "record")
    finished = train_faulty(2, "stops", "--hang-timeout", 4, *record, python=sys.executable)
    assert finished.returncode != 0
    assert "no progress for 4 s" in finished.stderr
    assert "rank 1 is missing: it never reached that call; it does not answer" in finished.stderr
    assert "rank 0 waits in" in (tmp_path / "rank-logs/record/hang/report.txt").read_text()


@pytest.mark.mpi
def test_a_rank_that_is_lost_before_mpi_knows_it_ends_the_launch():
    """The other waits for it inside of MPI's start."""
    lost = "import os; os.environ['OMPI_COMM_WORLD_RANK'] == '1' and os.kill(os.getpid(), 9)"
    program = f"{lost}; from harness.cli import main; main()"
    command = [
        *rank_command(2, outlives=True),
        "-c",
        program,
        "train",
        "--dataset",
        "adult",
        "--samples",
        "500",
        "--data-kind",
        "synthetic",
        "--on-failure",
        "shrink",
        "--hang-timeout",
        "4",
    ]
    finished = subprocess.run(command, env=rank_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode != 0
    assert "Timeout" in finished.stderr and "in start" in finished.stderr


@pytest.mark.alone
@pytest.mark.mpi
def test_ranks_that_live_go_on_wherever_another_dies_and_keep_nothing_of_the_group():
    """While a group opens, in its trial and in a sum that has been waited for for long; a thread and memory each."""
    command = [*rank_command(6, outlives=True), str(PROGRAMS / "openings.py")]
    finished = subprocess.run(
        command, env=rank_environment(), capture_output=True, text=True, timeout=1200, check=False
    )
    (line,) = (line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    for found in json.loads(line.removeprefix("RESULT ")):
        assert all(found["met"]), found
        assert not any((*found["mapped"], *found["threads"], found["files"])), found


def train(ranks, fault, record, *options, **environment):
    """Train two epochs on ranks that may be lost, and return the ended launch."""
    words = ("--epochs", 2, "--seed", 1, "--record", record, *options)
    return train_faulty(ranks, fault, *words, python=sys.executable, outlives=True, **environment)


@pytest.mark.mpi
def test_a_rank_that_is_killed_in_a_step_is_outlived(tmp_path):
    """Rank 1 kills itself in step 18: rank 0 makes every row's step alone, from the last finished one on."""
    records = {}
    for name, model in (("whole", "lives"), ("shrunk", "dies")):
        finished = train(2, model, tmp_path / name)
        assert finished.returncode == (0 if name == "whole" else LOST), finished.stderr[-3000:]
        records[name] = read_run(tmp_path / name)
    whole, shrunk = records.values()
    assert not whole.losses and not whole.stretches
    (loss,) = shrunk.losses
    assert (loss.rank, loss.epoch, loss.redone, loss.ranks, len(shrunk.ranks)) == (1, 0, 1, 1, 1)
    assert 10 < loss.step < 21 and str(loss) in shrunk.invalid
    assert shrunk.weights.identical
    assert [stretch.ranks for stretch in shrunk.stretches] == [2, 1]
    assert not unaccounted(shrunk)
    before, after = stretches_around(shrunk, loss)
    assert before.first + before.steps == after.first == loss.step
    assert stretch_rate(shrunk, before) > 0 and stretch_rate(shrunk, after) > 0
    assert shrunk.epochs[-1].test_loss == pytest.approx(whole.epochs[-1].test_loss, rel=1e-4)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.mpi
def test_a_rank_that_fails_between_the_pieces_of_a_step_leaves_no_half_of_it(tmp_path):
    """With HARNESS_OVERLAP=1 pieces would be summed and applied one by one: the record says that they are not."""
    records = []
    for name, code in (("lives", 0), ("dies", LOST)):
        fault = f"{name}_between_pieces"
        finished = train(2, fault, tmp_path / name, "--threads", 2, HARNESS_OVERLAP="1")
        assert finished.returncode == code, finished.stderr[-3000:]
        records.append(read_run(tmp_path / name))
    assert [len(record.losses) for record in records] == [0, 1]
    assert records[1].epochs[-1].test_loss == pytest.approx(records[0].epochs[-1].test_loss, rel=1e-4)
    assert records[0].note(NoteCode.OVERLAP_IGNORED)


@pytest.mark.mpi
def test_a_killed_rank_is_noticed_while_a_stopped_one_is_waited_for(tmp_path):
    """Both are lost at once: the notice is the killed one's, and what it takes to end the other is recovery."""
    finished = train(3, "stops_and_dies", tmp_path / "record", "--hang-timeout", 4)
    assert finished.returncode == LOST, finished.stderr[-3000:]
    losses = read_run(tmp_path / "record").losses
    assert sorted(loss.rank for loss in losses) == [0, 2]
    assert all(loss.reason is LossReason.GONE and loss.recovery_s > 2 for loss in losses)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"on_failure": "replace"}, ("known are",)),
        ({"on_failure": "retry"}, ("did you mean",)),
        (
            {"on_failure": "shrink", "checkpoint": "500"},
            ("--checkpoint 500", "--on-failure abort"),
        ),
    ],
)
def test_settings_that_do_not_go_together_are_told(options, refusal):
    with refuses(*refusal):
        Workload(dataset="adult", model="dnn", batch_per_rank=1, **options)


def test_what_only_one_rank_knows_cannot_be_outlived():
    def point(**fields):
        workload = Workload(dataset="adult", model="dnn", batch_per_rank=1, on_failure="shrink", **fields)
        return Point(workload=workload, layout=Layout(nodes=1))

    check_workload(point())
    for fields, sentence in (({"sync": "weights:3"}, "--sync gradients"), ({"optimizer": "my.own:f"}, "--optimizer")):
        with pytest.raises(UserError, match=sentence):
            check_workload(point(**fields))


def test_mpirun_is_told_that_ranks_may_fail_and_leaves_them_where_they_are(monkeypatch):
    mpi = MpiInstallation(family=Family.OPEN_MPI, launcher=Path("/usr/bin/mpirun"), version="")
    monkeypatch.setattr("harness.sweep.launch_command.find_mpi", lambda: mpi)
    command = LaunchCommand(words=("/usr/bin/mpirun", "-n", "2", "--bind-to", "core"))
    plain = Workload(dataset="adult", model="dnn", batch_per_rank=1)
    layout = Layout(nodes=2)
    assert surviving(command, Point(workload=plain, layout=layout)) == command
    asked = Point(workload=replace(plain, on_failure="shrink"), layout=layout)
    shrink = surviving(command, asked).words
    assert shrink[:3] == ("/usr/bin/mpirun", "--with-ft", "ulfm") and shrink[-4:] == command.words[1:]
    with refuses("the mpirun of Open"):
        surviving(LaunchCommand(words=("srun",)), asked)


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
                raise LOST_RANK
            return real(*words, **named)

        monkeypatch.setattr(module, name, failing)
    point = Point(workload=workload, layout=Layout(nodes=1))
    told = []
    survivor = elastic.Survivor(
        team=TeamOfOne(folder), point=point, data_dir=None, report=lambda world, epoch: told.append(epoch.epoch)
    )
    return survivor.run(lambda world, outcome: outcome), told


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
