"""The first screen of a page, its words, the command that repeats it, and what a paper needs."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from harness.report.html_pages import anchor, glossary
from harness.schema.command_lines import sweep_command_line
from harness.schema.layout import Layout
from harness.schema.presets import resolve, script_workload
from harness.schema.record import encode
from harness.schema.setting_words import study_name
from harness.schema.sweep import Sweep
from harness.sweep.plan import Axes, combine
from tests.labs.asked import asked
from tests.labs.factories import make_data, make_point, make_run, write_failure, write_report, write_run, write_study
from tests.labs.page_text import Text
from tests.labs.sentences import says

MNIST = {"dataset": "mnist", "model": "dnn"}
GPUS = combine(Axes(gpus=(1, 2, 4, 6), ranks_per_node=(4,)), None)[0]
UNEVEN = combine(Axes(cores=(2, 4, 10), ranks_per_node=(4,)), None)[0]
GRID = combine(Axes(nodes=(1, 2), ranks_per_node=(1, 2), threads=(1, 2)), None)[0]
SWEEPS = [
    Sweep(workload=resolve(**MNIST), layouts=(Layout(nodes=1), Layout(nodes=2)), repeats=6),
    Sweep(workload=resolve(**MNIST, preset="paper-2016-03", epochs=2, samples=2000), layouts=GRID),
    Sweep(workload=resolve(**MNIST, global_batch=256, sync="weights:4", seed=7), layouts=UNEVEN, repeats=1),
    Sweep(workload=resolve(**MNIST, samples=1000, data="synthetic"), layouts=UNEVEN, scaling="weak"),
    Sweep(workload=resolve(dataset="imagenet", model="resnet50", image_size=64, xla=True), layouts=GPUS),
    Sweep(
        workload=resolve(dataset="imagenet", model="alexnet", global_batch=64, classes=10), layouts=(Layout(nodes=2),)
    ),
]


@pytest.mark.parametrize("sweep", SWEEPS, ids=study_name)
def test_the_command_on_a_page_gives_the_same_study(sweep: Sweep) -> None:
    parts = [asked(line) for line in sweep_command_line(sweep).splitlines()]
    assert {part.name for part in parts} == {sweep.name}
    assert {layout for part in parts for layout in part.layouts} == set(sweep.layouts)
    assert {part.repeats for part in parts} == {sweep.repeats}


def test_a_script_with_hard_arguments_survives_shell_and_make(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text("")
    workload = script_workload(script, ["--name", "a $HOME 'b'"], sync="weights:epoch", batch="global")
    sweep = Sweep(workload=workload, layouts=(Layout(nodes=2),))
    assert asked(sweep_command_line(sweep)).name == sweep.name


def test_a_file_of_ones_own_names_its_study(tmp_path: Path) -> None:
    workload = resolve(dataset="file", model="dnn", data_file=str(tmp_path / "iris.csv"))
    assert workload.name == "iris.csv-dnn"  # no data set has a dot: a file called mnist.csv is not the paper's MNIST


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
        "2 ranks train HIGGS-DNN 2.00 times as fast as 1 rank (efficiency 100 %), 95 % interval",
        "test accuracy 2 ranks are 2.00 times as fast as 1 rank, 95 % interval",
        "Speedup to equal accuracy",
        "node1: Example CPU 2.5 GHz, 8 cores, 16.0 GiB",
        "2026-01-05 12:00 to 12:05 UTC",
        "HIGGS, partial: 8,000 of 10,900,000 training rows",
        "64 per rank, 64 to 128 global",
        "0123456789ab",
        "0.16 core-hours in 12 launches",  # 30 s and 2 s of imports, of one core and of two, six times each
        "make sweep DATASET=higgs MODEL=dnn",
        "DATA_DIR=folder",
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


def test_the_index_lists_pages_the_newest_first(page: Path) -> None:
    results = page.parents[1] / "records"
    failure = write_failure(results / "drawn", make_point(1), "rank 0: out of memory")
    (path,) = (results / "drawn").rglob("*.json")
    path.write_bytes(encode(replace(failure, ended=failure.ended + timedelta(days=365))))
    write_report(results / "drawn", page.parents[1])
    index = page.parents[1] / "index.html"
    text = str(Text(index.read_text()))
    assert [link for link in Text(index.read_text()).links if link.endswith("study/index.html")]
    says(text, "failed or damaged, listed", "MNIST-DNN")
    names = [link.split("/")[-2] for link in Text(index.read_text()).links if link.endswith("/index.html")]
    assert names.index("drawn") < names.index("study")  # launched a year before
    assert json.loads((page.parent / "summary.json").read_text())["kind"] == "sweep"
    own_page = "my own page"
    index.write_text(own_page)
    write_report(results / "drawn", page.parents[1])
    assert index.read_text() == own_page
