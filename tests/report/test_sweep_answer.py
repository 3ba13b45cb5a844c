"""The first screen of a page, its words, the command that repeats it, and what a paper needs."""

import csv
import re
from pathlib import Path
from statistics import geometric_mean

import pytest

from harness.report.html_pages import anchor, glossary
from harness.report.sweep_answer import report_sweep
from harness.schema.sweep_folder import RUN_FILE
from harness.why.known_causes import MOST_LAUNCHES
from tests.labs.factories import make_data, make_point, make_run, write_report, write_run, write_study
from tests.labs.file_reads import opened_files
from tests.labs.page_text import Text
from tests.labs.sentences import says

TRAINING = {"dataset": "imagenet", "model": "resnet50", "preset": "jupiter"}
ROWS = 6400
SECONDS = (4.0, 4.1, 4.2, 4.3, 4.4, 4.5)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of six launches of a piece of HIGGS at 1 and 2 ranks."""
    folder = tmp_path_factory.mktemp("results") / "study"
    piece = make_data(name="higgs", rows=8000)
    write_study(folder, dataset="higgs")
    for repeat in range(6):
        for ranks in (1, 2):
            point = make_point(ranks, repeat, dataset="higgs")
            seconds = [[(1 + repeat / 100) / ranks] * ranks] * 3
            write_run(folder, make_run(point, rows=8000, data=piece, seconds=seconds))
    return write_report(folder, tmp_path_factory.mktemp("reports"))


def test_first_screen_has_question_answer_accuracy_place_data_cost_and_command(page: Path) -> None:
    text = str(Text(page.read_text())).replace("\u00a0", " ")
    first = text[: text.index("Where the time goes")]
    for expected in (
        "How much faster do 2 ranks train HIGGS-DNN than 1 rank?",
        "2 ranks train HIGGS-DNN 2.00 times as fast as 1 rank (95 % CI",
        "test accuracy 2 ranks are 2.00 times as fast as 1 rank (95 % CI",
        "Speedup to equal accuracy",
        "node1: Example CPU 2.5 GHz, 8 cores, 16.0 GiB",
        "2026-01-05 12:00 to 12:05 UTC",
        "HIGGS, partial: 8,000 of 10,900,000 training samples",
        "per rank 64, global 64 on 1 rank and 128 on 2 ranks",
        "0123456789ab",
        "0.16 core-hours in 12 launches",  # 30 s and 2 s of imports, of one core and of two, six times each
        "harness sweep --dataset=higgs --model=dnn",
        "--data-dir FOLDER",
    ):
        assert expected in first, expected


def test_every_term_of_a_page_is_in_the_glossary_beside_it(page: Path) -> None:
    content, written = page.read_text(), (page.parents[1] / "glossary.html").read_text()
    links = re.findall(r'href="(\.\./glossary\.html#([^"]+))"', content)
    assert len(links) >= 3
    for _, place in links:
        assert f'id="{place}"' in written
    anchors = re.findall(r'<div id="([^"]+)"', written)
    assert {anchor(term) for term in glossary()} == set(anchors)
    assert len(glossary()) > 30


def test_a_page_has_what_a_paper_needs(page: Path) -> None:
    text = str(Text(page.read_text()))
    for expected in (
        "TensorFlow 2.21.0",
        "Open MPI v5.0.11",
        "SHA-256 of the source abababababababab",
        "@article{vishnu",
    ):
        assert expected in text, expected
    assert "http" not in page.read_text()


def runs():
    """Return six launches of one rank that train 6,400 images in `SECONDS`."""
    points = [make_point(1, repeat, scaling="weak", **TRAINING) for repeat in range(6)]
    return [make_run(point, seconds=[[s]] * 3, rows=ROWS) for point, s in zip(points, SECONDS, strict=True)]


def test_the_metric_is_on_the_page_in_json_csv_and_formats(tmp_path: Path) -> None:
    sweep = tmp_path / "results" / "jupiter"
    write_study(sweep, ranks=(1,), **TRAINING)
    for run in runs():
        write_run(sweep, run)
    answer = report_sweep(sweep, tmp_path / "reports")
    seconds = 90 * 1_281_167 / (ROWS / geometric_mean(SECONDS))
    assert answer.page is not None
    says(answer.page.read_text().replace("&#39;", "'"), "JUPITER's time to report")
    (time,) = answer.data["time_to_report"].values()
    assert time.seconds == pytest.approx(seconds)
    rows = list(csv.DictReader((answer.page.parent / "launches.csv").open()))
    expected = [90 * 1_281_167 / (ROWS / value) for value in SECONDS]
    assert [float(row["time_to_report_s"]) for row in rows] == pytest.approx(expected)


def test_a_report_reads_each_launch_once_and_again_those_that_it_examines(tmp_path: Path) -> None:
    sweep = tmp_path / "study"
    write_study(sweep)
    launches = []
    for repeat in range(MOST_LAUNCHES):
        for ranks in (1, 2):
            point = make_point(ranks, repeat)
            seconds = [[(1 + repeat / 100) / ranks] * ranks] * 3
            launches.append(write_run(sweep, make_run(point, seconds=seconds)))
    with opened_files() as opened:
        report_sweep(sweep, tmp_path / "reports")
    reads = [opened[launch / RUN_FILE] for launch in launches]
    examined = MOST_LAUNCHES + 1  # and the launch on one rank beside which they are
    assert min(reads) == 1 and sum(reads) <= len(launches) + examined
