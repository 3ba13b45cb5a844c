"""Modules of Horovod's names are made of ours when a script imports them."""

import importlib
import sys

import pytest

from harness.base.errors import UserError
from harness.horovod import aliases, operations, ranks
from harness.horovod.not_offered import INSTEAD


@pytest.fixture
def offered(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("HOROVOD", raising=False)
    monkeypatch.setattr(ranks.host, "answers", False)
    aliases.offer()
    yield importlib.import_module
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]


def test_horovods_names_are_ours(offered):
    hvd = offered("horovod.tensorflow")
    assert hvd.allreduce is operations.allreduce
    assert hvd.size is ranks.size
    assert hvd.mpi_built() is True and hvd.nccl_built() is False
    assert hvd.Average == operations.Average
    assert not hasattr(hvd, "absent_word")


def test_a_module_inside_another_is_there_without_an_import(offered):
    hvd = offered("horovod.tensorflow")
    assert hvd.keras.callbacks.__name__ == "horovod.tensorflow.keras.callbacks"


def test_keras_takes_arguments_by_other_places(offered, monkeypatch):
    seen = {}
    monkeypatch.setattr(operations, "allreduce", lambda value, **named: seen.update(named))
    monkeypatch.setattr(operations.allreduce, "__module__", operations.__name__)
    offered("horovod.keras").allreduce(1.0, "loss", True)
    assert seen == {"name": "loss", "average": True}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_is_not_offered_is_refused_however_it_is_asked_for(offered, name):
    hvd = offered("horovod.tensorflow")
    assert not hasattr(hvd, name)
    with pytest.raises(UserError, match=name):
        getattr(hvd, name)
    with pytest.raises(UserError, match=name):
        exec(f"from horovod.tensorflow import {name}")
    with pytest.raises(UserError, match=name):
        offered(f"horovod.tensorflow.keras.{name}")


def test_what_is_no_module_of_horovods_is_left_to_others(offered):
    with pytest.raises(ModuleNotFoundError):
        offered("horovod.torch")


def test_a_choice_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("HOROVOD", "both")
    with pytest.raises(UserError):
        aliases.offer()


def test_versions_are_compared_by_their_numbers(offered):
    newer = offered("horovod.common.util").is_version_greater_equal_than
    assert newer("2.10.0", "2.9.1")
    assert not newer("2.9.1", "2.10.0")
