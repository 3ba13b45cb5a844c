"""Scaling, strong and weak: every number recomputed by hand from records made for it."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.launch_frames import curve_frame
from harness.analysis.scaling import Scaling, needed_launches, scale
from harness.analysis.time_parts import breakdown_frame
from harness.schema.record import RunRecord
from tests.labs.factories import (
    epoch_frame,
    launch_frame,
    make_launch,
    make_point,
    make_run,
)
from tests.labs.sentences import refuses, says

POSITIVE = st.floats(min_value=1e-3, max_value=1e3)


def scaled(runs: list[RunRecord]) -> Scaling:
    result = scale(launch_frame(runs))
    assert result is not None
    return result


def test_strong_scaling_by_hand() -> None:
    base = [make_launch(1, repeat, seconds) for repeat, seconds in enumerate((4.0, 4.2, 3.9))]
    four = [make_launch(4, repeat, seconds) for repeat, seconds in enumerate((1.25, 1.2, 1.6))]
    scaling = scaled([*four, *base])
    point = scaling.points[1]
    base_seconds = (4.0 * 4.2 * 3.9) ** (1 / 3)
    seconds = (1.25 * 1.2 * 1.6) ** (1 / 3)
    assert scaling.base.ranks == 1 and scaling.base.speedup == 1 and scaling.base.blocks == 0
    assert scaling.base.seconds == pytest.approx(base_seconds) and point.seconds == pytest.approx(seconds)
    assert point.speedup == pytest.approx(base_seconds / seconds) and point.blocks == 3
    assert point.efficiency == pytest.approx(base_seconds / seconds / 4)
    assert needed_launches(scaling) == 0


def test_strong_scaling_has_intervals_from_three_launches_on() -> None:
    times = (1.0, 1.1, 1.2)
    other = (1.2, 1.0, 1.1)
    runs = [make_launch(1, k, 2 * t) for k, t in enumerate(times)] + [make_launch(2, k, t) for k, t in enumerate(other)]
    point = scaled(runs).points[1]
    logs = np.log(other)
    log_ratios = np.log(2 * np.array(times)) - logs
    quantile = 4.302653  # Student's, 2 degrees of freedom, 97.5 %
    assert point.seconds_interval is not None and point.speedup_interval is not None
    half = quantile * logs.std(ddof=1) / np.sqrt(3)
    assert np.log([point.seconds_interval.low, point.seconds_interval.high]) == pytest.approx(
        [logs.mean() - half, logs.mean() + half]
    )
    half = quantile * log_ratios.std(ddof=1) / np.sqrt(3)
    assert point.speedup == pytest.approx(2)
    assert np.log([point.speedup_interval.low, point.speedup_interval.high]) == pytest.approx(
        [np.log(2) - half, np.log(2) + half]
    )
    assert point.efficiency_interval is not None
    assert point.efficiency_interval.low == pytest.approx(point.speedup_interval.low / 2)
    assert needed_launches(scaled(runs)) == 0
    few = scaled([run for run in runs if run.point.repeat < 2])
    assert few.points[1].speedup_interval is None and few.points[1].seconds_interval is None
    assert needed_launches(few) == 1


def test_a_point_of_missing_repeats_has_the_time_that_its_ratio_says() -> None:
    """Of several sessions only whole repeats are compared; the machine was slower in the second one."""
    runs = []
    for repeat in range(8):
        slower = 1.0 if repeat < 4 else 1.3
        launches = [make_launch(1, repeat, 2 * slower), make_launch(2, repeat, slower)]
        runs += [at(launch, repeat // 4) for launch in launches]
    lost = [run for run in runs if (run.point.layout.ranks, run.point.repeat) != (2, 7)]
    point = scaled(lost).points[1]
    assert (point.launches, point.blocks) == (7, 7)
    assert point.speedup == pytest.approx(2) and point.seconds == pytest.approx(scaled(lost).base.seconds / 2)


def at(run: RunRecord, day: int) -> RunRecord:
    """Return `run` as of another day."""
    by = timedelta(days=day)
    return replace(run, started=run.started + by, ended=run.ended + by)


def test_weak_scaling_by_hand() -> None:
    runs = [
        make_run(make_point(ranks, scaling="weak", samples=1000 * ranks), rows=1000 * ranks, seconds=[[t] * ranks])
        for ranks, t in ((2, 1.0), (8, 1.25))
    ]
    point = scaled(runs).points[1]
    assert point.ideal == 4 and point.efficiency == pytest.approx(0.8) and point.speedup == pytest.approx(3.2)
    assert point.rows_per_second == pytest.approx(8000 / 1.25)


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
    assert [p.seconds for p in scaling.points] == pytest.approx([2.0, 1.0]) and [
        p.excluded for p in scaling.points
    ] == [1, 1]
    launches = launch_frame(valid + bad)
    assert breakdown_frame(launches)["compute_seconds"].max() < 3
    assert curve_frame(epoch_frame(valid + bad))["launches"].max() == 1
    assert scale(launch_frame(bad)) is None


def test_base_can_be_chosen_among_what_was_measured() -> None:
    launches = launch_frame([make_launch(1, 0, 4.0), make_launch(2, 0, 2.5), make_launch(4, 0, 1.25)])
    chosen = scale(launches, base_ranks=2)
    assert chosen is not None
    assert [p.speedup for p in chosen.points] == pytest.approx([0.625, 1.0, 2.0])
    assert chosen.points[2].efficiency == pytest.approx(1.0)
    with refuses("no valid launch: choose", "16", "1", "2"):
        scale(launches, base_ranks=16)


@settings(max_examples=10)
@given(st.lists(POSITIVE, min_size=1, max_size=5), st.lists(POSITIVE, min_size=1, max_size=5))
def test_base_has_speedup_one_and_ratios_are_of_geometric_means(base: list[float], two: list[float]) -> None:
    runs = [make_launch(1, k, t) for k, t in enumerate(base)] + [make_launch(2, k, t) for k, t in enumerate(two)]
    first, second = scaled(runs).points
    assert first.speedup == 1 and first.efficiency == 1 and first.speedup_interval is None
    means = [np.exp(np.log(times).mean()) for times in (base, two)]
    assert second.speedup == pytest.approx(means[0] / means[1])
    assert second.blocks == (len(two) if len(base) == len(two) else 0)
