"""Launches that are ended and taken up again; more of them by hand with ``python -m tests.kills``."""

import os
import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.schema.record import read_run
from harness.schema.sweep_folder import LaunchFolder
from harness.train.checkpointing import read_attempts
from tests.kills import COMMON, LAUNCHES, Victim, differences, run
from tests.labs.caches import own_cache
from tests.mpi.launch import run_ranks
from tests.soak import full_disk

pytestmark = pytest.mark.mpi
CAMPAIGN = pytest.mark.campaign


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, session_environment: pytest.MonkeyPatch) -> None:
    """Keep prepared data of these tests in a folder of their own."""
    session_environment.setenv("HARNESS_CACHE_DIR", own_cache(tmp_path_factory.mktemp("cache")))


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "launches"), [(2, LAUNCHES[2:3]), pytest.param(6, LAUNCHES, marks=CAMPAIGN)])
def test_killed_launches_learn_what_undisturbed_ones_do(kills: int, launches: Sequence[Sequence[str]]) -> None:
    """Random layers and statistics of each rank's own; in a campaign also other policies and optimizers."""
    moments, found = run(kills, seed=5, ranks=2, launches=launches)
    assert found == []
    assert moments.total() == kills


def test_a_stopped_launch_goes_on_on_the_same_ranks_bit_for_bit_and_on_others(tmp_path: Path) -> None:
    """SIGUSR1 to mpirun in the middle of training; then with 2 ranks, with 3, with other settings."""
    words = ("--epochs", "24", "--checkpoint", "7", "--sync", "gradients", "--optimizer", "momentum")
    whole = Victim(words=words, ranks=2, record=tmp_path / "whole")
    record = whole.finish()
    assert record is not None and record.segments == () and not whole.found
    stopped = Victim(words=words, ranks=2, record=tmp_path / "stopped")
    process = stopped.start()
    stopped.await_training(process)
    process.send_signal(signal.SIGUSR1)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 75, said
    assert "stopped by SIGUSR1 in epoch" in said and "the same command goes on from there" in said
    (attempt,) = read_attempts(LaunchFolder(stopped.record).checkpoints)
    assert attempt.stopped == "SIGUSR1" and attempt.end > (0, 0)
    for other in ("on three", "refused"):
        shutil.copytree(LaunchFolder(stopped.record).checkpoints, LaunchFolder(tmp_path / other).checkpoints)
    options = ("-m", "harness", "train", *COMMON, *words)
    refused = run_ranks(2, *options, "--epochs", "25", "--record", tmp_path / "refused")
    assert refused.returncode == 2
    assert "are of another launch (epochs 24, here 25): delete that folder, or choose" in refused.stderr
    three = run_ranks(3, *options, "--record", tmp_path / "on three")
    assert three.returncode == 0, three.stderr[-3000:]
    found = read_run(tmp_path / "on three")
    assert found.weights.identical and found.global_batch == 64
    assert sum(rank.rows for rank in found.ranks) == 2005
    assert found.epochs[-1].train_loss == pytest.approx(record.epochs[-1].train_loss, rel=1e-5)
    assert [epoch.epoch for epoch in found.epochs] == list(range(attempt.end[0], 24))
    assert [segment.ranks for segment in found.segments] == [2, 3]
    again = stopped.finish()
    assert again is not None and not stopped.found
    assert differences(stopped.record, whole.record) == []
    assert [segment.begin for segment in again.segments] == [(0, 0), attempt.end]
    assert [segment.redone for segment in again.segments] == [0, 0]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk: needs root")
def test_a_full_disk_ends_a_launch_with_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    assert full_disk(tmp_path, random.Random(1)) == []
