"""Whatever text stands in a record, no rendering of an answer steers a terminal or is computed by a spreadsheet."""

import csv
import io
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.__main__ import run_command_line
from harness.base.hostlock import HostLock
from harness.cli.answer_output import print_answer
from harness.report.answer import Answer, Banner, Card, Cell, Fact, Items, Prose, Section, Table, document, markdown
from harness.report.html_pages import csv_cell, csv_text, render_page
from tests.base.test_record_words import BAD, is_steering

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"
WRITTEN = BAD[:-1]  # half a character cannot be in a record, which is UTF-8
TEXTS = st.text(st.characters(), max_size=8) | st.sampled_from([BAD, "\x1b[2J", "=1+1", "\x9b"])
TEXTS_OF_RECORDS = TEXTS.filter(lambda text: text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text))


def answer_of(text: str) -> Answer:
    """Return an answer with `text` at every place that shows text of a record."""
    fact = Fact(name=text, value=text, detail=text)
    table = Table(title=text, headings=(text, text), rows=[(text, Cell(text=text, note=text))], note=text)
    prose = Prose(text=text, lead=text)
    items = Items(texts=[text, (text, text)])
    card = Card(title=text, facts=[fact], copy=text)
    return Answer(
        sentence=text,
        question=text,
        table=table,
        data={"host": text},
        notes=[text],
        banners=[Banner(kind="warning", text=text)],
        tiles=[fact],
        facts=[fact],
        sections=[Section(title=text, name="a", elements=[table, prose, items, card])],
        command=text,
        title=text,
        machine=text,
    )


@settings(max_examples=20, deadline=None)
@given(TEXTS)
def test_no_rendering_of_an_answer_steers(text: str) -> None:
    answer = answer_of(text)
    with pytest.MonkeyPatch.context() as patch:
        shown = io.StringIO()
        patch.setattr("sys.stdout", shown)
        print_answer(answer, quiet=False)
        print_answer(answer, quiet=True)
    page = render_page("page.html.j2", answer=answer, root="..")
    for rendering in (shown.getvalue(), markdown(answer), document(answer), page):
        assert [sign for sign in rendering if is_steering(sign)] == []


@settings(deadline=None)
@given(st.lists(TEXTS_OF_RECORDS, min_size=1, max_size=3), st.floats(allow_nan=False, allow_infinity=False))
def test_no_cell_of_a_csv_steers_or_is_computed(texts: list[str], number: float) -> None:
    frame = pd.DataFrame({"host": texts, "=seconds": [number] * len(texts)})
    text = csv_text(frame)
    assert [sign for sign in text if is_steering(sign)] == []
    headings, *rows = csv.reader(io.StringIO(text))
    assert headings == ["host", "'=seconds"]
    for host, seconds in rows:
        assert float(seconds) == number
        assert host[:1] not in ("=", "@", "\t", "\r")
        assert host[:1] not in ("+", "-") or float(host) is not None


@pytest.mark.parametrize("number", ["-1", "+1.5", "-1e-3", "3", 4, -0.5])
def test_numbers_stay_numbers(number: object) -> None:
    assert csv_cell(number) == number


@pytest.mark.slow
def test_a_foreign_record_is_reported_without_what_steers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], coarse_pictures: None
) -> None:
    shutil.copytree(SWEEP, tmp_path / "results/s")
    for file in (tmp_path / "results/s").glob("n*/run.json"):
        record = json.loads(file.read_text())
        record["provenance"]["machine"] |= {"cpu": WRITTEN}
        record["provenance"] |= {"mpi_library": WRITTEN, "launcher": WRITTEN}
        record["invalid"] = [WRITTEN] if "r5" in file.parent.name else []
        file.write_text(json.dumps(record))
    folders = ["--results", str(tmp_path / "results"), "--reports", str(tmp_path / "reports")]
    for words in (["report", "s"], ["report", "s", "--json"], ["report", "s", "--format", "markdown"]):
        assert run_command_line([*words, *folders]) == 0
        said = "".join(capfd.readouterr())
        assert "\\u001b" in said
        assert [sign for sign in said if is_steering(sign)] == []
    assert run_command_line(["status", "s", "--results", str(tmp_path / "results")]) in (0, 1)
    assert [sign for sign in "".join(capfd.readouterr()) if is_steering(sign)] == []
    written = [path for path in (tmp_path / "reports").rglob("*") if path.suffix in (".html", ".csv", ".svg", ".md")]
    assert len(written) > 5
    for path in written:
        text = path.read_bytes().decode()
        assert (path, [sign for sign in text if is_steering(sign)]) == (path, [])


def test_what_another_user_wrote_into_the_lock_steers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path))
    holder = HostLock()
    assert holder.take() is None
    (tmp_path / "harness-timed.lock").write_text(WRITTEN + 5000 * "x")
    said = HostLock().take()
    assert said is not None and len(said) < 400
    assert [sign for sign in said if is_steering(sign)] == []
    holder.release()
