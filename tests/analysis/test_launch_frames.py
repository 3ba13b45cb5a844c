"""Tables of launches and epochs: every number recomputed by hand from records made for it."""

import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from harness.analysis.launch_frames import final_frame
from harness.analysis.scaling import Scaling, scale
from harness.schema.record import RunRecord, Segment
from tests.labs.factories import (
    epoch_frame,
    launch_frame,
    make_launch,
    make_point,
    make_run,
)


def scaled(runs: list[RunRecord]) -> Scaling:
    result = scale(launch_frame(runs))
    assert result is not None
    return result


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


def test_final_metrics_are_of_the_last_epoch() -> None:
    final = final_frame(launch_frame([make_launch(1, 0, 1.0), make_launch(1, 1, 1.0)])).iloc[0]
    assert final["test_accuracy"] == pytest.approx(1 - 0.2 / 3) and final["launches"] == 2
    assert math.isnan(final["test_auc"])
