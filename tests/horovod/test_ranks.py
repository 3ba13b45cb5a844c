"""Which ranks there are."""

import subprocess
import sys

import pytest

from harness.horovod import ranks
from harness.horovod.not_offered import NotOfferedError
from tests.labs.horovod_ranks import begin_horovod


def test_before_init_and_after_shutdown_nothing_is_known(monkeypatch):
    begin_horovod(monkeypatch, 1, 3)
    assert ranks.is_initialized()
    assert (ranks.rank(), ranks.size(), ranks.local_size()) == (1, 3, 3)
    ranks.shutdown()
    assert not ranks.is_initialized()
    with pytest.raises(ValueError):
        ranks.rank()


def test_the_ranks_leave_the_import_of_tensorflow_to_the_script():
    program = "import sys, harness.horovod.ranks; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_sets_of_ranks_are_refused_before_mpi_is_started(monkeypatch):
    monkeypatch.setattr(ranks, "current", None)
    with pytest.raises(NotOfferedError):
        ranks.init(process_sets=[[0, 1]])
    assert not ranks.is_initialized()
