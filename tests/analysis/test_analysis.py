"""Analysis: every number recomputed by hand from records made for it."""

import math
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis import launch_frames
from harness.analysis.confidence_intervals import median_interval, ratio_interval
from harness.analysis.launch_frames import curve_frame, final_frame
from harness.analysis.read_results import load_sweep
from harness.analysis.scaling import Scaling, needed_launches, scale
from harness.analysis.time_parts import breakdown_frame
from harness.report.sweep_warnings import doubts
from harness.schema.record import RunRecord, Segment
from harness.schema.sweep_folder import RUN_FILE, STEPS_FILE
from tests.labs.factories import (
    epoch_frame,
    launch_frame,
    make_launch,
    make_point,
    make_run,
    write_failure,
    write_run,
    write_study,
)
from tests.labs.sentences import refuses, says

POSITIVE = st.floats(min_value=1e-3, max_value=1e3)


def scaled(runs: list[RunRecord]) -> Scaling:
    result = scale(launch_frame(runs))
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("launches", "ranks"), [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (20, (6, 15)), (0, None)]
)
def test_the_order_statistics_of_a_median_are_the_exact_ones(launches: int, ranks: tuple[int, int] | None) -> None:
    interval = median_interval(np.arange(launches, 0, -1))
    assert (interval and (interval.low, interval.high)) == ranks


def test_median_interval_takes_the_order_statistics() -> None:
    interval = median_interval([10.0, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    assert interval is not None and (interval.low, interval.high) == (2, 9)
    assert median_interval([1, 2, 3, 4, 5]) is None


@given(st.lists(POSITIVE, min_size=6, max_size=40))
def test_median_interval_contains_the_median(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval is not None and interval.low <= np.median(values) <= interval.high


@settings(max_examples=20)
@given(st.lists(POSITIVE, min_size=6, max_size=12), st.lists(POSITIVE, min_size=6, max_size=12))
def test_ratio_interval_lies_within_the_extremes(top: list[float], bottom: list[float]) -> None:
    interval = ratio_interval(top, bottom)
    assert interval is not None
    assert min(top) / max(bottom) * (1 - 1e-9) <= interval.low <= interval.high <= max(top) / min(bottom) * (1 + 1e-9)
    assert ratio_interval(top, bottom) == interval  # seeded
    assert ratio_interval(top[:5], bottom) is None


def test_launch_time_is_the_median_epoch_of_the_slowest_rank() -> None:
    run = make_run(make_point(2), seconds=[[1.0, 3.0], [5.0, 2.0], [4.0, 4.5]], sync=0.1)
    launch = launch_frame([run]).iloc[0]
    assert launch["seconds"] == 4.5  # of 3.0, 5.0, 4.5
    assert launch["sync_seconds"] == pytest.approx(np.median([0.2, 0.35, 0.425]))
    assert launch["compute_seconds"] == pytest.approx(4.5 - 0.35)
    assert launch["rows_per_second"] == pytest.approx(6400 / 4.5)
    assert launch["import_s"] == 2.1  # the later of two ranks
    assert launch["trained_s"] == pytest.approx(12.5)


def test_epochs_accumulate_time_and_samples() -> None:
    frame = epoch_frame([make_run(make_point(2), seconds=[[1.0, 3.0], [5.0, 2.0]])])
    assert list(frame["trained_s"]) == [3.0, 8.0]
    assert list(frame["rows_seen"]) == [6400, 12800]


def test_a_resumed_launch_has_the_time_of_its_timed_epochs() -> None:
    run = make_run(make_point(1), seconds=[[9.0], [7.0], [2.0], [4.0]])
    hour = timedelta(hours=1)
    first = Segment(started=run.started - 2 * hour, ended=run.started - hour, begin=(0, 0), end=(1, 9), ranks=1)
    last = replace(first, started=run.started, ended=run.ended, begin=(1, 9), end=(4, 0))
    whole = launch_frame([run]).iloc[0]
    launch = launch_frame([replace(run, segments=(first, last))]).iloc[0]
    assert (whole["seconds"], launch["seconds"]) == (5.5, 3.0)
    assert launch["trained_s"] == whole["trained_s"] == 22.0
    assert launch["inside_s"] == pytest.approx(whole["inside_s"] + 3600)


def test_rows_of_a_dropped_batch_are_not_counted() -> None:
    run = make_run(make_point(2, drop_remainder=True), rows=6500)
    launch = launch_frame([run]).iloc[0]
    assert launch["rows"] == 50 * 128
    assert "100 rows" in " ".join(scaled([run]).base.flags)


def test_strong_scaling_by_hand() -> None:
    base = [make_launch(1, repeat, seconds) for repeat, seconds in enumerate((4.0, 4.2, 3.9))]
    four = [make_launch(4, repeat, seconds) for repeat, seconds in enumerate((1.25, 1.2, 1.6))]
    scaling = scaled([*four, *base])
    point = scaling.points[1]
    assert scaling.base.ranks == 1 and scaling.base.seconds == 4.0 and scaling.base.speedup == 1
    assert point.seconds == 1.25 and point.speedup == 4.0 / 1.25 and point.efficiency == 3.2 / 4
    assert point.speedup_interval is None and point.seconds_interval is None
    assert needed_launches(scaling) == 3


def test_strong_scaling_has_intervals_from_six_launches_on() -> None:
    times = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    other = reversed(times)
    runs = [make_launch(1, k, 2 * t) for k, t in enumerate(times)] + [make_launch(2, k, t) for k, t in enumerate(other)]
    point = scaled(runs).points[1]
    assert point.seconds_interval is not None and point.speedup_interval is not None
    assert (point.seconds_interval.low, point.seconds_interval.high) == (1.0, 1.5)
    assert point.speedup == 2 and point.speedup_interval.low < 2 < point.speedup_interval.high
    assert point.efficiency_interval is not None
    assert point.efficiency_interval.low == pytest.approx(point.speedup_interval.low / 2)


def test_weak_scaling_by_hand() -> None:
    runs = [
        make_run(make_point(ranks, scaling="weak", samples=1000 * ranks), rows=1000 * ranks, seconds=[[t] * ranks])
        for ranks, t in ((2, 1.0), (8, 1.25))
    ]
    point = scaled(runs).points[1]
    assert point.ideal == 4 and point.efficiency == 0.8 and point.speedup == pytest.approx(3.2)
    assert point.rows_per_second == 8000 / 1.25


def test_weak_scaling_is_refused_when_work_per_rank_varies() -> None:
    runs = [
        make_run(make_point(ranks, scaling="weak", samples=1000), rows=1000, seconds=[[1.0] * ranks])
        for ranks in (1, 2)
    ]
    point = scaled(runs).points[1]
    assert point.speedup is None and point.efficiency is None
    says(point.flags[0], "not the same work", 500, "1,000")


def test_superlinear_and_indivisible_points_are_flagged() -> None:
    scaling = scaled([make_launch(1, 0, 3.0), make_launch(3, 0, 0.9)])
    assert scaling.points[0].flags == ()
    superlinear, indivisible = scaling.points[1].flags
    says(superlinear, "100 %", "too few")
    says(indivisible, "rows do not divide", "6,400", 3)


def test_invalid_launches_count_nowhere_and_are_counted() -> None:
    valid = [make_launch(1, 0, 2.0), make_launch(2, 0, 1.0)]
    bad = [make_launch(1, 1, 99.0, invalid=("load 3.0",)), make_launch(2, 1, 99.0, invalid=("load 3.0",))]
    scaling = scaled(valid + bad)
    assert [p.seconds for p in scaling.points] == [2.0, 1.0] and [p.excluded for p in scaling.points] == [1, 1]
    launches = launch_frame(valid + bad)
    assert breakdown_frame(launches)["compute_seconds"].max() < 3
    assert curve_frame(epoch_frame(valid + bad))["launches"].max() == 1
    assert scale(launch_frame(bad)) is None


def test_base_can_be_chosen_among_what_was_measured() -> None:
    launches = launch_frame([make_launch(1, 0, 4.0), make_launch(2, 0, 2.5), make_launch(4, 0, 1.25)])
    chosen = scale(launches, base_ranks=2)
    assert chosen is not None
    assert [p.speedup for p in chosen.points] == [0.625, 1.0, 2.0] and chosen.points[2].efficiency == 1.0
    with refuses("no valid launch: choose", "16", "1", "2"):
        scale(launches, base_ranks=16)


@settings(max_examples=30)
@given(st.lists(POSITIVE, min_size=1, max_size=5), st.lists(POSITIVE, min_size=1, max_size=5))
def test_base_has_speedup_one_and_ratios_are_of_medians(base: list[float], two: list[float]) -> None:
    runs = [make_launch(1, k, t) for k, t in enumerate(base)] + [make_launch(2, k, t) for k, t in enumerate(two)]
    first, second = scaled(runs).points
    assert first.speedup == 1 and first.efficiency == 1 and first.speedup_interval is None
    assert second.speedup == pytest.approx(np.median(base) / np.median(two))


def test_split_adds_up_to_the_epoch() -> None:
    launches = launch_frame([make_launch(2, 0, 1.0, sync=0.25)])
    split = breakdown_frame(launches).iloc[0]
    assert split["skew_seconds"] + split["wire_seconds"] == 0.25 and split["compute_seconds"] == 0.75
    assert split["trained_compute_s"] + split["trained_sync_s"] == pytest.approx(3.2)
    assert (split["import_s"], split["compile_s"], split["evaluate_s"]) == (2.1, 1.5, 0.5)
    assert split["overhead_s"] == pytest.approx(30 - 0.25 - 1.5 - 3.2 - 0.5)  # of 30 s from the import to the record


def test_final_metrics_are_of_the_last_epoch() -> None:
    final = final_frame(launch_frame([make_launch(1, 0, 1.0), make_launch(1, 1, 1.0)])).iloc[0]
    assert final["test_accuracy"] == pytest.approx(1 - 0.2 / 3) and final["launches"] == 2
    assert math.isnan(final["test_auc"])


def test_a_launch_that_trains_for_a_moment_says_how_many_epochs_are_enough() -> None:
    brief = [make_run(make_point(ranks), seconds=[[0.1 / ranks] * ranks] * 3) for ranks in (1, 2)]
    (sentence,) = doubts(brief, launch_frame(brief))
    says(sentence, "2 of 2", "1 s", "EPOCHS=100", "5 s")
    assert not doubts([make_run()], launch_frame([make_run()]))
    in_turns = [replace(run, block="b") for run in brief]  # they go on for the rounds that ratios are of
    assert not doubts(in_turns, launch_frame(in_turns))


@pytest.mark.parametrize("many", [1000, 1])
def test_loading_names_what_is_damaged_and_keeps_the_rest(
    many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, and shared out to several as for a sweep of many launches."""
    monkeypatch.setattr("harness.analysis.read_results.MANY", many)
    write_study(tmp_path)
    kept = write_run(tmp_path, make_launch(1, 0, 1.0))
    cut = write_run(tmp_path, make_launch(1, 1, 1.0)) / RUN_FILE
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    steps = write_run(tmp_path, make_launch(1, 2, 1.0)) / STEPS_FILE
    steps.write_bytes(steps.read_bytes()[:20])
    (write_run(tmp_path, make_launch(1, 3, 1.0)) / STEPS_FILE).unlink()
    shutil.copytree(kept, tmp_path / "copy-of-a-run")
    write_run(tmp_path, make_run(make_point(1, 0, learning_rate=0.5)))
    write_run(tmp_path, make_run(make_point(1, 4), epochs=()))
    write_failure(tmp_path, make_point(2), "rank 1 lost")
    write_failure(tmp_path, make_point(1, 0), "finished on a later attempt")
    (tmp_path / "failures" / "torn.json").write_text("{")
    (tmp_path / ".staging").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / make_point(1, 7).folder).mkdir()

    loaded = load_sweep(tmp_path)
    assert [run.point.repeat for run in loaded.runs] == [0] and loaded.study is not None
    assert [failure.reason for failure in loaded.failures] == ["rank 1 lost"]
    assert loaded.runs[0].epochs == () and len(loaded.epochs) == 3  # a frame: records of 10,000 launches fill memory
    assert launch_frames.launch_frame(loaded.runs, loaded.epochs).iloc[0]["seconds"] == 1.0
    with refuses("read without its epochs", error=AssertionError):
        launch_frame(loaded.runs)
    text = "\n".join(loaded.damaged)
    assert len(loaded.damaged) == 8
    for reason in ("cut or damaged", "has no steps.parquet", "moved by hand", "another workload", "0 epochs"):
        assert reason in text


def test_loading_without_a_study_still_reads_the_launches(tmp_path: Path) -> None:
    write_run(tmp_path, make_launch(2, 0, 1.0))
    (tmp_path / "sweep.json").write_text("{")
    loaded = load_sweep(tmp_path)
    assert loaded.study is None and len(loaded.runs) == 1 and "sweep.json" in loaded.damaged[0]
    with refuses("not a folder: give"):
        load_sweep(tmp_path / "absent")
