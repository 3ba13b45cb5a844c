"""The parts of a step and of an epoch: they sum to the whole, and a slow rank is named."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.analysis.launch_frames import epoch_times
from harness.analysis.read_results import load_sweep
from harness.analysis.time_parts import SlowRank, breakdown_frame, slow_rank
from harness.schema.record import EpochRecord, RunRecord, read_run
from harness.why.known_causes import diagnose_sweep
from tests.labs.factories import (
    launch_frame,
    make_launch,
    make_point,
    make_run,
    write_report,
    write_study,
)
from tests.labs.sentences import count_said
from tests.mpi.launch import run_ranks


def test_split_adds_up_to_the_epoch() -> None:
    launches = launch_frame([make_launch(2, 0, 1.0, sync=0.25)])
    split = breakdown_frame(launches).iloc[0]
    assert split["skew_seconds"] + split["wire_seconds"] == 0.25 and split["compute_seconds"] == 0.75
    assert split["trained_compute_s"] + split["trained_sync_s"] == pytest.approx(3.2)
    assert (split["import_s"], split["compile_s"], split["evaluate_s"]) == (2.1, 1.5, 0.5)
    assert split["overhead_s"] == pytest.approx(30 - 0.25 - 1.5 - 3.2 - 0.5)  # of 30 s from the import to the record


def lagging(ratio: float, rank: int = 2, ranks: int = 4) -> list:
    """Return a launch in which `rank` computes `ratio` times as long as the others and never waits."""
    compute = np.ones(ranks)
    compute[rank] = ratio
    skew = max(compute) - compute
    epoch = EpochRecord(
        epoch=0,
        steps=100,
        seconds=tuple(compute + skew + 0.05),
        sync_seconds=tuple(skew + 0.05),
        input_seconds=(0.0,) * ranks,
        skew_seconds=tuple(skew),
        wire_seconds=(0.05,) * ranks,
        train_loss=1.0,
    )
    return [make_run(make_point(ranks), epochs=(epoch,))]


def _slow(run: RunRecord) -> SlowRank | None:
    return slow_rank(run, epoch_times(run))


def test_a_rank_that_others_wait_for_is_named() -> None:
    slow = _slow(lagging(1.5)[0])
    assert slow is not None
    assert (slow.rank, slow.host, slow.ratio) == (2, "node1", pytest.approx(1.5))
    assert slow.waited == pytest.approx(0.5 / 1.55)


@pytest.mark.parametrize("runs", [lagging(1.05), lagging(1.0), [make_launch(1, 0, 1.0)], [make_launch(4, 0, 1.0)]])
def test_equal_ranks_are_not_named(runs: list) -> None:
    assert [_slow(run) for run in runs] == [None]


@pytest.mark.mpi
@pytest.mark.alone
def test_a_rank_slowed_on_purpose_shows_as_skew_and_is_named(tmp_path: Path, cache: Path) -> None:
    """Parts of the steps sum to them within 2 %; rank 0 waits for rank 1; the report says so."""
    options = ["--dataset", "adult", "--samples", "12800", "--epochs", "2", "--data-kind", "synthetic"]
    folder = tmp_path / "run"
    finished = run_ranks(
        2, "-m", "harness", "train", *options, "--model", "tests.mpi.slow:rank_one_lags", "--record", folder
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    record = read_run(folder)
    for epoch in record.epochs:
        assert epoch.skew_seconds[0] > 0.5 * epoch.seconds[0], "rank 0 waits for most of the time"
        assert epoch.skew_seconds[1] < 0.1 * epoch.seconds[1]
        assert np.add(epoch.skew_seconds, epoch.wire_seconds) == pytest.approx(epoch.sync_seconds, rel=1e-6)
    steps = pd.read_parquet(folder / "steps.parquet").sort_values(["epoch", "rank", "step"])
    before = steps.groupby(["epoch", "rank"])["exit_s"].shift().fillna(steps["begin_s"])
    parts = (steps["entry_s"] - before) + steps["skew_s"] + steps["wire_s"]
    sums = parts.groupby([steps["epoch"], steps["rank"]]).sum()
    for epoch in record.epochs:
        for rank in range(2):
            assert sums[epoch.epoch, rank] == pytest.approx(epoch.seconds[rank], rel=0.02)
    sweep = tmp_path / "sweep"
    write_study(sweep, ranks=(2,))
    (sweep / "sweep.json").unlink()
    folder.rename(sweep / record.point.folder)
    page = write_report(sweep, tmp_path / "reports").read_text()
    slow = _slow(record)
    assert slow is not None and slow.rank == 1
    waiting = max(rank.queued_share for rank in record.ranks)  # a busy machine explains a slow rank in its place
    assert waiting > 0.2 or ("Rank 1 of 2" in page and count_said(page, "long as the others")), [
        (one.cause, one.evidence, one.cost) for one in diagnose_sweep(load_sweep(sweep))
    ]
