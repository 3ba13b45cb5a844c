"""Figures and tables know their launches, wherever they are taken, and `harness report --whence` names them."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from harness.__main__ import run
from harness.report.answer import FigureSource, Origin
from harness.report.publish import origin_text, read_origin
from harness.report.svg import draw
from tests.factories import write_report

SWEEP = Path(__file__).parent / "data" / "mnist-dnn-6x2"
KEYS = sorted(folder.name[-12:] for folder in SWEEP.glob("n*"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the records of a sweep and its report."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(SWEEP, folder / "results" / SWEEP.name)
    write_report(folder / "results" / SWEEP.name, folder / "reports", base=1, style="paper")
    return folder


def whence(place: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(
        ["report", "--whence", str(file), "--results", str(place / "results"), "--reports", str(place / "reports")]
    )
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.mark.slow
def test_every_file_of_a_report_tells_its_launches_and_commands(place: Path) -> None:
    files = [
        path for path in (place / "reports" / SWEEP.name).iterdir() if path.suffix in (".svg", ".png", ".pdf", ".csv")
    ]
    assert len(files) > 40
    for file in files:
        origin = read_origin(file)
        assert origin is not None, file
        (source,) = origin.sources
        assert sorted(mark.partition("@")[0] for mark in source.launches) == KEYS
        assert source.command.startswith("make sweep DATASET=mnist MODEL=dnn")
        assert origin.command == f"harness report {SWEEP.name} --base 1 --style paper"


@pytest.mark.slow
def test_tables_are_read_as_ever(place: Path) -> None:
    table = pd.read_csv(place / "reports" / SWEEP.name / "launches.csv")
    assert len(table) == 12 and table.columns[0] == "run"


@pytest.mark.slow
def test_a_table_that_was_moved_is_known_by_its_content(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.copy(place / "reports" / SWEEP.name / "speedup.csv", tmp_path / "mine.csv")
    assert whence(place, moved, capsys)[0] == 0
    moved.write_text(moved.read_text() + "\n")
    code, said = whence(place, moved, capsys)
    assert code == 2 and "does not say what it was made of" in said


@pytest.mark.slow
def test_whence_says_which_launches_are_gone_or_replaced(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = place / "reports" / SWEEP.name / "speedup.png"
    code, said = whence(place, figure, capsys)
    assert code == 0 and "12 launches" in said and "all of them in" in said
    shutil.copytree(place / "results", tmp_path / "results")
    first, second, *_ = sorted((tmp_path / "results" / SWEEP.name).glob("n*"))
    shutil.rmtree(first)
    record = json.loads((second / "run.json").read_text())
    (second / "run.json").write_text(json.dumps(record | {"started": "2030-01-01T00:00:00Z"}))
    code, said = whence(tmp_path, figure, capsys)
    assert code == 1 and "2 of them not in" in said and said.count("not there") == 2


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_an_origin_survives_every_sign(kind: str, tmp_path: Path) -> None:
    odd = 'a (b) <c> & "d" \\ \'é\' %\n}],"end":0'
    origin = Origin(command=odd, sources=(FigureSource(sweep=odd, command="", launches=tuple(map(str, range(1000)))),))
    file = tmp_path / f"x.{kind}"
    file.write_bytes(draw("x", "X", lambda axes: None).file(kind, origin_text(origin)))
    assert read_origin(file) == origin


def test_a_file_of_others_tells_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in (("a.svg", b"<svg/>"), ("b.png", b""), ("c.pdf", b'{"harness":1,"end":1}'), ("d.csv", b"x\n")):
        (tmp_path / name).write_bytes(content)
        code, said = whence(tmp_path, tmp_path / name, capsys)
        assert code == 2 and "does not say" in said
    (tmp_path / "csv-metadata.json").write_text("{")
    code, said = whence(tmp_path, tmp_path / "d.csv", capsys)
    assert code == 2 and "cut or damaged" in said
    code, said = whence(tmp_path, tmp_path / "none.svg", capsys)
    assert code == 2 and "cannot be read" in said


@pytest.mark.slow
def test_the_page_itself_has_no_such_metadata(place: Path) -> None:
    page = (place / "reports" / SWEEP.name / "index.html").read_text()
    assert not re.search(r"<metadata>|rdf:", page)
