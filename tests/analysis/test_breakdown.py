"""The time split: hosts' clocks on one, parts that sum to the step, and a slow rank that is named."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.launch_frames import epoch_times
from harness.analysis.read_results import load_sweep
from harness.analysis.time_parts import SlowRank, slow_rank
from harness.comm.host_clock import HostClock, Offset
from harness.schema.record import EpochRecord, RunRecord, read_run
from harness.train.step_table import on_one_clock, step_columns, with_parts
from harness.why.known_causes import diagnose_sweep
from tests.labs.factories import make_launch, make_point, make_run, write_report, write_study
from tests.labs.sentences import count_said
from tests.mpi.launch import run_ranks

SAME = HostClock(begin=Offset(at=0.0, offset_s=0.0, error_s=0.0), end=Offset(at=100.0, offset_s=0.0, error_s=0.0))


def shifted(offset: float, drift: float) -> HostClock:
    """Return a clock that shows t + offset + drift * t when rank 0's shows t, estimated at 0 and at 100 s."""
    ahead = {t: offset + drift * t for t in (0, 100)}
    ends = [Offset(at=t + ahead[t], offset_s=ahead[t], error_s=error) for t, error in ((0, 1e-6), (100, 2e-6))]
    return HostClock(begin=ends[0], end=ends[1])


def columns(rank: int, begin: float, calls: np.ndarray) -> dict:
    return step_columns(
        rank=rank, epoch=0, begin=begin, losses=np.zeros(len(calls), np.float32), calls=calls - begin, period=0
    )


@given(st.floats(-1e5, 1e5), st.floats(-1e-4, 1e-4))
def test_times_of_another_host_come_back_on_rank_0s_clock(offset: float, drift: float) -> None:
    clock = shifted(offset, drift)
    true = np.linspace(3.0, 90.0, 7)
    assert clock.common(true * (1 + drift) + offset) == pytest.approx(true, abs=1e-7)
    assert clock.drift == pytest.approx(drift / (1 + drift), abs=1e-8)  # per second of its own
    assert clock.error_s == 2e-6


@given(st.floats(-1e4, 1e4), st.integers(0, 2**31))
def test_skew_is_the_wait_for_the_last_rank_and_wire_the_rest(offset: float, seed: int) -> None:
    """Whatever the clocks show: rank 1 enters last, so rank 0 waits and rank 1 does not."""
    generator = np.random.default_rng(seed)
    entry = np.cumsum(generator.uniform(1e-3, 2e-3, 20)) + 5
    late = generator.uniform(1e-4, 9e-4, 20)
    left = entry + late + 5e-5
    clock = shifted(offset, 1e-6)
    steps = [
        [columns(0, 5.0, np.column_stack([entry, left]))],
        [columns(1, clock_of(offset, 5.0), clock_of(offset, np.column_stack([entry + late, left])))],
    ]
    (first,), (second,) = on_one_clock(steps, [SAME, clock])
    assert first["skew_s"] == pytest.approx(late, abs=1e-7)
    assert second["skew_s"] == pytest.approx(0, abs=1e-7)
    for part in (first, second):
        assert part["wire_s"] == pytest.approx(5e-5, abs=1e-7)
        assert part["skew_s"] + part["wire_s"] == pytest.approx(part["exit_s"] - part["entry_s"], abs=1e-12)
        assert part["begin_s"] == pytest.approx(0, abs=1e-7)


def clock_of(offset, times):
    return times * (1 + 1e-6) + offset


def test_steps_without_a_call_have_no_parts_and_cost_nothing() -> None:
    steps = [
        [
            step_columns(
                rank=rank,
                epoch=0,
                begin=1.0,
                losses=np.zeros(6, np.float32),
                calls=np.array([[0.2, 0.3], [0.5, 0.6]]) + rank / 100,
                period=3,
            )
        ]
        for rank in range(2)
    ]
    converted = on_one_clock(steps, [SAME, SAME])
    assert np.isnan(converted[0][0]["wire_s"]).sum() == 4
    record = EpochRecord(epoch=0, steps=6, seconds=(1.0, 1.0), sync_seconds=(0.2, 0.2), train_loss=None)
    (found,) = with_parts([record], converted)
    assert found.skew_seconds == pytest.approx((0.02, 0.0))
    assert np.add(found.skew_seconds, found.wire_seconds) == pytest.approx(found.sync_seconds)


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
