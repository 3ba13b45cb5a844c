"""Killed sweeps: a few kills here, more by hand with ``python -m tests.crash``."""

import pytest

from tests.cluster.slurm import missing
from tests.crash import run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "kills", "repeats"),
    [
        ("local", 2, 2),
        ("pbs", 1, 2),
        pytest.param("local", 12, 4, marks=pytest.mark.campaign),
        pytest.param("pbs", 12, 4, marks=pytest.mark.campaign),
    ],
)
def test_a_killed_sweep_loses_nothing_and_the_same_command_ends_it(scheduler: str, kills: int, repeats: int) -> None:
    moments, found, _ = run(kills, scheduler, seed=3, repeats=repeats)
    assert moments.total() == kills
    assert found == []


@pytest.mark.cluster
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize(("kills", "repeats"), [(1, 2), pytest.param(6, 4, marks=pytest.mark.campaign)])
def test_on_a_real_slurm_neither(monkeypatch: pytest.MonkeyPatch, kills: int, repeats: int) -> None:
    monkeypatch.setenv("SLURM_CONF", "")  # `run` sets it to its own cluster's
    moments, found, _ = run(kills, "slurm", seed=3, repeats=repeats)
    assert moments.total() == kills
    assert found == []
