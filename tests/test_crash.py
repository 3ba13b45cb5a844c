"""Killed sweeps: a few kills here, more by hand with ``python -m tests.crash``."""

import pytest

from tests.cluster.slurm import missing
from tests.crash import run


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["local", "pbs"])
def test_a_killed_sweep_loses_nothing_and_the_same_command_ends_it(scheduler: str) -> None:
    moments, found, _ = run(4, scheduler, seed=3)
    assert moments.total() == 4
    assert found == []


@pytest.mark.cluster
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_on_a_real_slurm_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "")  # `run` sets it to its own cluster's
    moments, found, _ = run(3, "slurm", seed=3)
    assert moments.total() == 3
    assert found == []
