"""Child processes are no ranks: what is replaced is put back in them, and their training is noticed."""

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import UserError
from harness.transparent import children, patch
from harness.transparent.child.sitecustomize import MARK, NO_MARK
from harness.transparent.children import ChildProcesses, child_seed, refuse_training_in_children
from harness.transparent.patch import ImportHook


def test_a_child_has_the_same_seed_on_all_ranks_and_another_for_another_launch():
    assert child_seed(3) == child_seed(3)
    assert child_seed(3) != child_seed(4)


def test_a_forked_child_puts_back_what_is_replaced(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, ImportHook(list)])
    monkeypatch.setenv(MARK, NO_MARK)
    holder = SimpleNamespace(word="original")
    patch.put(holder, "word", "replaced")
    left = []
    ChildProcesses([lambda: left.append(True)]).begin_child()
    assert holder.word == "original"
    assert left == [True]
    assert not any(isinstance(finder, ImportHook) for finder in sys.meta_path)


@pytest.fixture
def ended(monkeypatch):
    """What ends the ranks of this process is kept here."""
    errors = []
    monkeypatch.setattr(children, "abort", lambda world, error: errors.append(error))
    monkeypatch.setattr(children, "PAUSE_S", 0.01)
    monkeypatch.setenv(MARK, NO_MARK)
    return errors


def wait_for_threads(before):
    deadline = time.monotonic() + 60.0
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return threading.active_count() == before


def test_a_child_that_trains_before_rank_0_ends_all_ranks(tmp_path, ended):
    before = threading.active_count()
    refuse_training_in_children(None, "train.py", tmp_path, lambda: bool(ended))
    mark = Path(os.environ[MARK])
    mark.touch()
    assert wait_for_threads(before)
    assert [type(error) for error in ended] == [UserError]
    assert not mark.exists()
    assert os.environ[MARK] == NO_MARK


def test_children_may_train_once_rank_0_has(tmp_path, ended):
    before = threading.active_count()
    refuse_training_in_children(None, "train.py", tmp_path, lambda: True)
    assert wait_for_threads(before)
    assert os.environ[MARK] == NO_MARK
    assert not ended
