"""All ranks go on from the same backup, and weights are averaged before they are saved."""

from types import SimpleNamespace

import pytest

from harness.base.errors import UserError
from harness.transparent.checkpoints import Checkpoints, compare_backups
from tests.labs.alike_ranks import alike_runtime


def callback(epoch, save_freq="epoch"):
    model = SimpleNamespace(_initial_epoch=epoch, weights=["w"])
    return SimpleNamespace(model=model, backup_dir="backup", save_freq=save_freq)


def ranks_of_epochs(*epochs):
    return SimpleNamespace(collectives=SimpleNamespace(gather=lambda value, label: list(epochs)))


def test_ranks_that_find_the_same_backup_go_on():
    compare_backups(ranks_of_epochs(2, 2), callback(2))


def test_ranks_that_find_different_backups_end():
    with pytest.raises(UserError):
        compare_backups(ranks_of_epochs(2, None), callback(2))


@pytest.mark.parametrize(("save_freq", "averaged"), [("epoch", [["w"]]), (10, [])])
def test_weights_are_averaged_before_an_epochs_end_is_saved(monkeypatch, save_freq, averaged):
    runtime = alike_runtime()
    events = []
    monkeypatch.setattr(runtime.variables, "average", events.append)
    Checkpoints(runtime)._save_backup(lambda saved: events.append("saved"), callback(1, save_freq))
    assert events == [*averaged, "saved"]


def test_the_witness_is_told_of_what_the_script_reads(monkeypatch):
    runtime = alike_runtime()
    reads = []
    monkeypatch.setattr(runtime.witness, "reads", lambda: reads.append(True))
    assert Checkpoints(runtime)._read(lambda path: path, "weights.h5") == "weights.h5"
    assert reads == [True]
