"""Times to an accuracy, and the JUPITER suite's time of 90 epochs."""

import math
from dataclasses import replace
from statistics import geometric_mean

import pytest

from harness.analysis.accuracy_times import default_accuracy, report_times, speedups_to_accuracy, times_to_accuracy
from harness.analysis.scaling import scale
from tests.labs.factories import epoch_frame, launch_frame, make_point, make_run
from tests.labs.policy_sweeps import learning

BASE = "1 rank"

TRAINING = {"dataset": "imagenet", "model": "resnet50", "preset": "jupiter"}
ROWS = 6400
SECONDS = (4.0, 4.1, 4.2, 4.3, 4.4, 4.5)
MEAN = geometric_mean(SECONDS)


def runs():
    """Return six launches of one rank that train 6,400 images in `SECONDS`."""
    points = [make_point(1, repeat, scaling="weak", **TRAINING) for repeat in range(6)]
    return [make_run(point, seconds=[[s]] * 3, rows=ROWS) for point, s in zip(points, SECONDS, strict=True)]


def test_the_metric_and_its_interval_are_90_epochs_at_the_rate() -> None:
    scaling = scale(launch_frame(runs()))
    assert scaling
    (time,) = report_times(scaling).values()
    assert time.images_per_second == pytest.approx(ROWS / MEAN)
    assert time.seconds == pytest.approx(90 * 1_281_167 / (ROWS / MEAN))
    rates = scaling.base.rows_interval
    assert time.interval and rates
    assert time.interval.low == pytest.approx(90 * 1_281_167 / rates.high)
    assert time.interval.high == pytest.approx(90 * 1_281_167 / rates.low)


def test_speed_to_accuracy_counts_the_epochs_that_it_takes() -> None:
    runs = [learning(1, k, 2.0, (0.8, 0.9, 0.95)) for k in range(6)]
    runs += [learning(2, k, 1.0, (0.5, 0.7, 0.93)) for k in range(6)]  # twice as fast an epoch, slower to learn
    epochs = epoch_frame(runs)
    times = times_to_accuracy(epochs, 0.9)
    base, two = speedups_to_accuracy(times, times[times["ranks"] == 1])
    assert (base.seconds, base.speedup, base.interval) == (4.0, 1.0, None)
    assert (base.epochs, two.epochs) == (2.0, 3.0)
    assert (two.seconds, two.reached) == (3.0, 6) and two.speedup == pytest.approx(4 / 3)
    assert two.interval is not None and two.interval.low == two.interval.high == pytest.approx(4 / 3)
    assert default_accuracy(launch_frame(runs), BASE) == pytest.approx(0.94)


def test_a_launch_that_never_arrives_takes_for_ever() -> None:
    runs = [learning(1, k, 2.0, (0.9,)) for k in range(6)]
    runs += [learning(2, k, 1.0, (0.9 if k < 4 else 0.8,)) for k in range(6)]
    runs += [learning(4, k, 0.5, (0.9 if k < 3 else 0.8,)) for k in range(6)]
    times = times_to_accuracy(epoch_frame(runs), 0.9)
    _, most, half = speedups_to_accuracy(times, times[times["ranks"] == 1])
    assert (most.reached, most.seconds, most.speedup, most.interval) == (4, 1.0, 2.0, None)
    assert (most.epochs, half.epochs) == (1.0, None)
    assert (half.reached, half.seconds, half.speedup) == (3, None, None)
    assert times_to_accuracy(epoch_frame(runs), 0.99)["seconds"].eq(math.inf).all()


def test_untested_runs_have_no_target() -> None:
    run = make_run()
    silent = replace(run, epochs=tuple(replace(e, test_accuracy=None) for e in run.epochs))
    assert default_accuracy(launch_frame([silent]), BASE) is None
    assert default_accuracy(launch_frame([learning(1, 0, 1.0, (0.005,))]), BASE) is None  # below what it would be
