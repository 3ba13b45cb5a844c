"""The JUPITER suite's metric, with planted rates: on the page, in JSON, CSV and other tools' formats."""

import csv
from pathlib import Path

import pytest

from harness.analysis.accuracy_times import report_times
from harness.analysis.scaling import scale
from harness.base.errors import UserError
from harness.report.sweep_answer import report_sweep
from harness.schema.command_lines import repeat_command
from harness.schema.layout import Layout
from harness.schema.presets import resolve, usual_scaling
from harness.schema.sweep import Sweep
from tests.labs.factories import launch_frame, make_point, make_run, write_run, write_study
from tests.labs.sentences import says

TRAINING = {"dataset": "imagenet", "model": "resnet50", "preset": "jupiter"}
ROWS = 6400
SECONDS = (4.0, 4.1, 4.2, 4.3, 4.4, 4.5)


def runs():
    """Return six launches of one rank that train 6,400 images in 4.0 to 4.5 s, the median 4.25."""
    points = [make_point(1, repeat, scaling="weak", **TRAINING) for repeat in range(6)]
    return [make_run(point, seconds=[[s]] * 3, rows=ROWS) for point, s in zip(points, SECONDS, strict=True)]


def test_the_metric_and_its_interval_are_90_epochs_at_the_rate() -> None:
    scaling = scale(launch_frame(runs()))
    assert scaling
    (time,) = report_times(scaling).values()
    assert time.images_per_second == pytest.approx(ROWS / 4.25)
    assert time.seconds == pytest.approx(90 * 1_281_167 / (ROWS / 4.25))
    rates = scaling.base.rows_interval
    assert time.interval and rates
    assert time.interval.low == pytest.approx(90 * 1_281_167 / rates.high)
    assert time.interval.high == pytest.approx(90 * 1_281_167 / rates.low)


def test_the_metric_is_on_the_page_in_json_csv_and_formats(tmp_path: Path) -> None:
    sweep = tmp_path / "results" / "jupiter"
    write_study(sweep, ranks=(1,), **TRAINING)
    for run in runs():
        write_run(sweep, run)
    answer = report_sweep(sweep, tmp_path / "reports")
    seconds = 90 * 1_281_167 / (ROWS / 4.25)
    assert answer.page is not None
    says(answer.page.read_text().replace("&#39;", "'"), "JUPITER's time to report")
    (time,) = answer.data["time_to_report"].values()
    assert time.seconds == pytest.approx(seconds)
    rows = list(csv.DictReader((answer.page.parent / "launches.csv").open()))
    expected = [90 * 1_281_167 / (ROWS / value) for value in SECONDS]
    assert [float(row["time_to_report_s"]) for row in rows] == pytest.approx(expected)


def test_the_preset_scales_weakly_and_a_command_says_where_it_does_not() -> None:
    workload = resolve(**TRAINING)
    assert (workload.batch_per_rank, workload.global_batch) == (512, None)
    assert usual_scaling("jupiter") == "weak"
    assert usual_scaling("default") == "strong"
    layouts = (Layout(nodes=1, gpus_per_rank=1),)
    commands = {}
    for scaling in ("weak", "strong"):
        sweep = Sweep(workload=workload, layouts=layouts, repeats=6, scaling=scaling)
        commands[scaling] = repeat_command(Path("results/x"), sweep)
    assert "SCALING" not in commands["weak"]
    assert "SCALING=strong" in commands["strong"]


def test_the_preset_is_for_imagenet() -> None:
    with pytest.raises(UserError, match="PRESET=jupiter"):
        resolve(dataset="mnist", model="dnn", preset="jupiter")
