"""Ranks of Horovod's words without MPI."""

import pytest


@pytest.fixture
def two_ranks(monkeypatch):
    """Be the first of two ranks that are all alike."""
    from tests.labs.horovod_ranks import begin_horovod

    begin_horovod(monkeypatch)
