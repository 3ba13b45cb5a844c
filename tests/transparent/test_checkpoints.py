"""All ranks go on from the same backup, and weights are averaged before they are saved."""

from types import SimpleNamespace

import keras
import pytest
from keras.callbacks import BackupAndRestore

from harness.base.errors import UserError
from harness.transparent.checkpoints import Checkpoints, compare_backups
from tests.labs.alike_ranks import alike_runtime
from tests.labs.replacements import installed


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
    monkeypatch.setattr(BackupAndRestore, "_save_model", lambda self: events.append("saved"))
    with installed(Checkpoints(runtime)):
        BackupAndRestore._save_model(callback(1, save_freq))
    assert events == [*averaged, "saved"]


def test_the_witness_is_told_of_what_the_script_reads(tmp_path, monkeypatch):
    runtime = alike_runtime()
    reads = []
    monkeypatch.setattr(runtime.witness, "is_witness", True)
    monkeypatch.setattr(runtime.witness, "reads", lambda: reads.append(True))
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.save(tmp_path / "model.keras")
    with installed(Checkpoints(runtime)):
        keras.models.load_model(tmp_path / "model.keras")
        assert reads
        reads.clear()
        model.save_weights(tmp_path / "model.weights.h5")
        assert not reads
        model.load_weights(tmp_path / "model.weights.h5")
        assert reads
    reads.clear()
    keras.models.load_model(tmp_path / "model.keras")
    assert not reads
