"""The sweep's page: what it says, what it leaves out, and that it stands alone."""

import csv
import json
import re
import time
import tomllib
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import geometric_mean

import pandas as pd
import pytest
from click.testing import CliRunner

from harness.base import ADDRESS
from harness.base.removal import MARK
from harness.report.html_pages import render_page
from harness.report.svg import TONES
from harness.schema.record import encode
from tests.labs.factories import (
    make_data,
    make_launch,
    make_point,
    make_run,
    write_failure,
    write_report,
    write_run,
    write_study,
)
from tests.labs.page_text import Text
from tests.labs.sentences import refuses, says

FIGURES = ("speedup", "efficiency", "epoch-time", "throughput", "epoch-breakdown", "launch-breakdown")
CURVES = ("loss-time", "loss-samples", "accuracy-time", "accuracy-samples")


def test_page_stands_alone(report: Path, page: Text) -> None:
    content = report.read_text()
    if ADDRESS:  # of the project, in the BibTeX entry: it is text
        content = content.replace(ADDRESS, "")
    assert page.loads == [] and page.tags.count("script") == 1 and "@import" not in content
    assert not re.search(r"https?:|//[a-z]+\.|fetch\(|XMLHttp|import\(", content)
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r'href="#([^"]+)"', content)) <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", content)) <= set(page.ids)


def test_it_offers_the_study_of_what_it_shows(report: Path, page: Text) -> None:
    study = tomllib.loads((report.parent / "study.toml").read_text())
    assert (study["data"]["dataset"], study["ranks"]["nodes"]) == ("mnist", [1, 2])
    assert "study.toml" in page.links


def test_every_figure_is_inlined_in_theme_colours_and_written_as_files(report: Path) -> None:
    content = report.read_text()
    assert content.count("<svg") == len(FIGURES + CURVES)
    drawings = content[content.index("<figure") :]
    for tone in TONES:
        assert tone.light not in drawings, f"{tone.name} does not follow the theme"
    for name in FIGURES + CURVES:
        assert (report.parent / f"{name}.png").exists() and (report.parent / f"{name}.pdf").exists()
        assert (report.parent / f"{name}.svg").read_text().startswith("<?xml")
        assert (report.parent / f"{name}.csv").stat().st_size > 50
    assert [path.name for path in report.parent.parent.glob(".*")] == [MARK]


def test_launches_link_to_their_folders_by_relative_path(report: Path, page: Text) -> None:
    from urllib.parse import unquote

    links = [link for link in page.links if "n2x1x1" in link and not link.startswith("#")]
    assert len(links) == 4
    for link in links:
        assert ((report.parent / unquote(link)) / "run.json").is_file()


def test_every_dot_of_a_figure_leads_to_its_launch(report: Path, page: Text) -> None:
    dots = [link for link in page.links if link.startswith("#run-n2x1x1")]
    assert len(set(dots)) == 3 and len(dots) == 3 * 4  # four figures of three valid launches at 2 ranks
    rows = [name for name in page.ids if name.startswith("run-")]
    assert len(rows) == 7 and {link[1:] for link in dots} < set(rows)
    assert "launch:" not in report.read_text() and "launch:" not in (report.parent / "speedup.svg").read_text()


def test_csv_holds_the_numbers_of_the_figure(report: Path) -> None:
    rows = list(csv.DictReader((report.parent / "speedup.csv").open()))
    assert [(r["kind"], r["ranks"]) for r in rows[:2]] == [("mean", "1"), ("mean", "2")]
    raw = sorted(float(r["speedup"]) for r in rows if r["kind"] == "launch" and r["ranks"] == "2")
    assert float(rows[1]["speedup"]) == pytest.approx(geometric_mean(raw)) and rows[1]["launches"] == "3"
    assert float(rows[1]["low"]) < float(rows[1]["speedup"]) < float(rows[1]["high"])
    times = pd.read_csv(report.parent / "epoch-time.csv")
    assert times[times["kind"] == "launch"]["seconds"].max() == 2.1  # the invalid launch is in no figure
    launches = pd.read_csv(report.parent / "launches.csv")
    assert len(launches) == 7 and launches["seconds"].max() == 77.0  # but it is kept


def test_a_report_never_replaces_anything_but_a_report(tmp_path: Path) -> None:
    record = write_run(tmp_path / "results" / "s", make_launch(1, 0, 1.0)) / "run.json"
    with refuses("would replace the records"):
        write_report(tmp_path / "results" / "s", tmp_path / "results")
    (tmp_path / "other" / "s").mkdir(parents=True)
    (tmp_path / "other" / "s" / "thesis.tex").write_text("x")
    with refuses("made by the harness", "s"):
        write_report(tmp_path / "results" / "s", tmp_path / "other")
    assert record.exists() and (tmp_path / "other" / "s" / "thesis.tex").exists()


@pytest.mark.slow
def test_the_same_records_give_the_same_files(study: Path, report: Path, tmp_path: Path) -> None:
    again = write_report(study, tmp_path)
    for name in ("speedup.svg", "loss-time.svg", "efficiency.csv", "launches.csv"):
        assert (again.parent / name).read_bytes() == (report.parent / name).read_bytes()


@pytest.mark.slow
def test_processes_draw_what_one_draws(
    study: Path, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of many launches, whose figures are drawn beside the page."""
    monkeypatch.setattr("harness.base.parallel_work.MANY", 1)
    monkeypatch.setattr("threading.active_count", lambda: 1)  # a worker of pytest has another thread
    again = write_report(study, tmp_path).parent
    names = {file.name for file in report.parent.iterdir()}
    assert {file.name for file in again.iterdir()} == names
    for name in names:
        if name.endswith((".svg", ".csv")):
            assert (again / name).read_bytes() == (report.parent / name).read_bytes()
    drawings = [
        re.findall(r"<svg.*?</svg>", (page / "index.html").read_text(), re.DOTALL) for page in (again, report.parent)
    ]
    assert drawings[0] == drawings[1] != []


@pytest.mark.slow
def test_a_page_of_300_launches_takes_seconds(tmp_path: Path) -> None:
    for repeat in range(75):
        for ranks in (1, 2, 4, 8):
            write_run(tmp_path / "s", make_launch(ranks, repeat, (1 + repeat / 1000) / ranks))
    start = time.process_time()
    write_report(tmp_path / "s", tmp_path / "reports")
    assert time.process_time() - start < 15


@pytest.mark.slow
def test_command_finds_sweeps_by_name_and_the_newest(study: Path, tmp_path: Path) -> None:
    from harness.cli.command_report import report_command as command
    from harness.cli.sweep_argument import find_sweep

    where = ["--results", str(study.parent), "--reports", str(tmp_path)]
    result = CliRunner().invoke(command, where, catch_exceptions=False)
    assert result.output.splitlines()[-1] == str(tmp_path / study.name / "index.html")
    assert " " in study.name and find_sweep(study.name, study.parent) == find_sweep(str(study), tmp_path) == study
    with refuses("unknown sweep"):
        CliRunner().invoke(command, ["mnist stdy", *where], catch_exceptions=False)
    with refuses("sweep` first, or name"):
        CliRunner().invoke(command, ["--results", str(tmp_path / "none")], catch_exceptions=False)


def test_templates_refuse_unknown_names() -> None:
    import jinja2

    with pytest.raises(jinja2.UndefinedError):
        render_page("page.html.j2", subject="x")


@pytest.fixture(scope="module")
def higgs_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_the_index_lists_pages_the_newest_first(higgs_page: Path) -> None:
    results = higgs_page.parents[1] / "records"
    failure = write_failure(results / "drawn", make_point(1), "rank 0: out of memory")
    (path,) = (results / "drawn").rglob("*.json")
    path.write_bytes(encode(replace(failure, ended=failure.ended + timedelta(days=365))))
    write_report(results / "drawn", higgs_page.parents[1])
    index = higgs_page.parents[1] / "index.html"
    text = str(Text(index.read_text()))
    assert [link for link in Text(index.read_text()).links if link.endswith("study/index.html")]
    says(text, "failed or damaged, listed", "MNIST-DNN")
    names = [link.split("/")[-2] for link in Text(index.read_text()).links if link.endswith("/index.html")]
    assert names.index("drawn") < names.index("study")  # launched a year before
    assert json.loads((higgs_page.parent / "summary.json").read_text())["kind"] == "sweep"
    own_page = "my own page"
    index.write_text(own_page)
    write_report(results / "drawn", higgs_page.parents[1])
    assert index.read_text() == own_page
