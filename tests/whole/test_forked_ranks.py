"""Ranks of a sweep that are forked from one Python train and are recorded as ranks that each start their own."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.schema.record import RunRecord, read_run
from tests.labs.caches import own_cache

# Ranks must start: what is compared is what they train and what they tell of themselves.
pytestmark = pytest.mark.mpi

SIZE = ("--dataset=adult", "--data-kind=synthetic", "--samples=6000", "--epochs=3", "--nodes=1,2", "--repeats=1")


def sweep(folder: Path, **variables: str) -> dict[str, RunRecord]:
    """Return the records of a sweep's launches by their layout."""
    folder.mkdir()
    environment = {**os.environ, "HARNESS_QUIET_S": "0", "HARNESS_LOCK_DIR": str(folder), **variables}
    environment["HARNESS_CACHE_DIR"] = own_cache(folder.parent / "cache")
    command = [sys.executable, "-m", "harness", "sweep", *SIZE]
    made = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return {path.parent.name.split("-")[0]: read_run(path.parent) for path in folder.glob("results/*/n*/run.json")}


def test_weights_environment_and_memory_are_those_of_ranks_with_a_python_each(tmp_path: Path) -> None:
    forked = sweep(tmp_path / "forked", HARNESS_FORK="1")
    fresh = sweep(tmp_path / "fresh")
    assert forked.keys() == fresh.keys() == {"n1x1x1", "n2x1x1"}
    for layout, record in forked.items():
        other = fresh[layout]
        assert record.forked and not other.forked
        assert record.weights.sha256 == other.weights.sha256
        assert [epoch.train_loss for epoch in record.epochs] == [epoch.train_loss for epoch in other.epochs]
        assert record.provenance.environment == {**other.provenance.environment, "HARNESS_FORK": "1"}
        assert record.provenance.launcher == other.provenance.launcher
        assert [rank.cores for rank in record.ranks] == [rank.cores for rank in other.ranks]
        for rank, own in zip(record.ranks, other.ranks, strict=True):
            assert rank.peak_memory_bytes == pytest.approx(own.peak_memory_bytes, rel=0.2)
    servers = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or ())
    ]
    assert servers == []
