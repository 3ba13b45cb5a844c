"""Every kind of page in a real browser: all widths, light and dark, in print; what moves; numbers as in the JSON."""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.report.svg import Drawing
from tests.labs.browser import PRINTED_WIDTH, PROGRAM, Browser
from tests.labs.report_pages import KINDS, WrittenPage, write_pages

FACTS = (Path(__file__).parents[1] / "labs" / "page_facts.js").read_text()
WIDTHS = (400, 500, 700, 1000, 1280, 1600)
LEAST_ON_SCREEN = 11.5  # pixels of the smallest text
LEAST_ON_PAPER = 9.3  # 7 pt
ESCAPE = ("Escape", 27)
A4_POINTS = (595, 842)

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH (Debian package chromium)"),
    pytest.mark.slow,
]
Pages = dict[str, WrittenPage]


@pytest.fixture(scope="module")
def report_pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drawing, "file", lambda *_: b"")  # a page shows the drawings that are inside it
        return write_pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def opened(request: pytest.FixtureRequest, browser: Browser, report_pages: Pages) -> Browser:
    """The browser at the page of the kind that the test's parameter names, as on a laptop."""
    browser.show(1280)
    browser.open(report_pages[request.param].path)
    browser.evaluate(f"{FACTS};0")
    return browser


each_kind = pytest.mark.parametrize("opened", KINDS, indirect=True)


@each_kind
def test_a_page_can_be_read_at_every_width_light_dark_and_on_paper(opened: Browser) -> None:
    """Nothing wider than the page, no column out of sight, no text over text, too small or too faint."""
    assert opened.errors() == []
    assert opened.requests() == []
    faults: dict[str, list[str]] = defaultdict(list)

    def look(where: str, width: int, least: float) -> None:
        for question in (f"tooWide({width})", f"unreadable({least})", "collisions()"):
            for fault in opened.evaluate(f"facts.{question}"):
                faults[fault].append(where)

    for dark in (False, True):
        for width in WIDTHS:
            opened.show(width, dark=dark)
            look(f"{width} {'dark' if dark else 'light'}", width, LEAST_ON_SCREEN)
    opened.show(PRINTED_WIDTH, media="print")
    look("paper", PRINTED_WIDTH, LEAST_ON_PAPER)
    assert dict(faults) == {}


@each_kind
def test_what_moves_works(opened: Browser) -> None:
    """Pictures have alternative texts and open enlarged, copy buttons copy, tables sort by every column."""
    assert opened.evaluate("facts.nameless()") == []
    for place in range(opened.evaluate("facts.figures().length")):
        enlarged = opened.evaluate(f"facts.enlarge({place})")
        assert enlarged["open"] and enlarged["fits"]
        assert enlarged["larger"] > 1.2
        if place % 2:
            opened.evaluate("document.querySelector('dialog.viewer button').click()")
        else:
            opened.press(*ESCAPE)
        assert not opened.evaluate("facts.isOpen()")
    assert opened.evaluate("facts.copies()") == []
    assert opened.evaluate("facts.unsorted()") == []
    assert opened.errors() == []


@pytest.mark.parametrize("opened", ["sweep", "claims"], indirect=True)
def test_a_figure_on_a_telephone_opens_larger_than_its_window(opened: Browser) -> None:
    opened.show(400)
    assert opened.evaluate("facts.enlarge(0)")["larger"] > 1.5


@pytest.mark.parametrize("opened", ["sweep", "bench"], indirect=True)
def test_a_wide_table_is_a_table_on_a_laptop_and_a_list_on_a_telephone(opened: Browser) -> None:
    stacked = "document.querySelectorAll('table.stacked').length"
    assert opened.evaluate(stacked) == 0
    opened.show(400)
    assert opened.evaluate(stacked) > 0


@pytest.mark.parametrize("opened", ["sweep"], indirect=True)
def test_question_answer_numbers_and_command_are_on_the_first_screen(opened: Browser) -> None:
    assert opened.evaluate("document.querySelector('.again').getBoundingClientRect().bottom") < 900


@pytest.mark.parametrize("opened", ["sweep", "bench", "claims"], indirect=True)
def test_a_page_is_printed_on_a4(opened: Browser, tmp_path: Path) -> None:
    printed = opened.printed()
    sizes = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed))
    assert [tuple(map(float, size)) for size in sizes] == [pytest.approx(A4_POINTS, abs=1)]
    picture = tmp_path / "page.png"
    opened.picture(picture)
    assert picture.stat().st_size > 50_000  # an empty page takes a tenth of that


@pytest.mark.parametrize("opened", ["index"], indirect=True)
def test_the_index_finds_a_study_and_compares_two(opened: Browser) -> None:
    search = """(() => { const field = document.querySelector("#search"); field.value = "bench";
      field.dispatchEvent(new Event("input"));
      return [...document.querySelectorAll("#studies tbody tr")].filter((row) => !row.hidden).length; })()"""
    assert opened.evaluate(search) == 1
    pick = """(() => { document.querySelectorAll("#studies input").forEach((box) => box.click());
      return document.querySelector("#pick pre").textContent; })()"""
    assert sorted(opened.evaluate(pick).split()[2:]) == ["faulty", "mnist-dnn-6x2"]


@pytest.mark.parametrize("opened", ["index"], indirect=True)
def test_names_in_the_line_to_paste_are_quoted_for_a_shell(opened: Browser) -> None:
    names = ["it's; touch owned", "$(touch owned)`id`"]
    pick = f"""(() => {{ const names = {json.dumps(names)};
      [...document.querySelectorAll("#studies input")].slice(0, 2).forEach((box, number) => {{
        box.value = names[number]; box.checked = true; box.dispatchEvent(new Event("change", {{bubbles: true}})); }});
      return document.querySelector("#pick pre").textContent; }})()"""
    assert shlex.split(opened.evaluate(pick)) == ["harness", "compare", *names]


VERDICT = "Verdict here"  # a heading of the ledger


def test_a_request_and_an_error_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://example.invalid/x.png"><script>missing()</script>')
    browser.open(page)
    assert browser.requests() == ["http://example.invalid/x.png"]
    assert any("missing" in error for error in browser.errors())


# A table's visible rows by heading: cells without their small print, and that beside it.
READ_TABLE = """(title) => {
  const region = [...document.querySelectorAll(".scroll")].find((box) => box.ariaLabel.startsWith(title));
  return [...region.querySelectorAll("tbody tr")].map((row) => Object.fromEntries([...row.cells].map((cell) => {
    const note = cell.querySelector("small");
    const text = cell.innerText.replace(note?.innerText ?? "", "");
    return [cell.dataset.heading, [text, note?.innerText ?? ""].map((part) => part.replaceAll("\\u00a0", " ").trim())];
  })));
}"""
UNITS = {"%": 1e-2, "s": 1.0, "ms": 1e-3, "µs": 1e-6}


def read_table(browser: Browser, title: str) -> list[dict[str, list[str]]]:
    """Return the rows of a table as a reader sees them: by heading a cell's text and its note."""
    rows: list[dict[str, list[str]]] = browser.evaluate(f"({READ_TABLE})({json.dumps(title)})")
    return rows


def assert_shown(text: str, value: float) -> None:
    """The number that `text` begins with is `value`, rounded at its last digit."""
    number, _, unit = text.replace(" (base)", "").partition(" ")
    digits = number.replace(",", "")
    scale = UNITS.get(unit.partition(" ")[0], 1.0)
    places = len(digits.partition(".")[2])
    assert float(digits) * scale == pytest.approx(value, rel=0, abs=0.501 * scale * 10.0**-places), text


def assert_interval(note: str, interval: dict[str, float] | None) -> None:
    """A note such as ``1.67 to 1.78`` or ``212 to 221 ms`` has both ends of `interval`."""
    if interval is None:
        assert " to " not in note
        return
    low, high = note.split(" to ")
    unit = high.partition(" ")[2]
    assert_shown(low if " " in low else f"{low} {unit}", interval["low"])
    assert_shown(high, interval["high"])


@pytest.mark.parametrize("opened", ["sweep"], indirect=True)
def test_the_scaling_table_has_the_numbers_of_the_json(opened: Browser, report_pages: Pages) -> None:
    points = report_pages["sweep"].document["scaling"]["points"]
    rows = read_table(opened, "Scaling")
    assert len(rows) == len(points) == 2
    for row, point in zip(rows, points, strict=True):
        assert row["Ranks"][0] == str(point["ranks"])
        assert row["Launches"][0] == str(point["launches"])
        columns = {
            "Speedup over 1 rank": ("speedup", "speedup_interval"),
            "Efficiency": ("efficiency", "efficiency_interval"),
            "Epoch time": ("seconds", "seconds_interval"),
            "Step time": ("step_seconds", "step_interval"),
        }
        for heading, (value, interval) in columns.items():
            text, note = row[heading]
            assert_shown(text, point[value])
            assert_interval(note, point[interval])
        assert_shown(row["Samples/s"][0], point["rows_per_second"])


@pytest.mark.parametrize("opened", ["claims"], indirect=True)
def test_the_claims_table_has_the_verdicts_and_numbers_of_the_json(opened: Browser, report_pages: Pages) -> None:
    claims: list[dict[str, Any]] = report_pages["claims"].document["claims"]
    rows = []
    for title in ("Vishnu, Siegel, Daily: Distributed", "Vishnu et al."):
        rows += read_table(opened, title)
    assert len(rows) == len(claims) > 30
    shown = {(row["Claim"][0], row["Where"][1]): row for row in rows}
    for claim in claims:
        published = claim["claim"]
        row = shown[published["text"], published["experiment"]]
        assert row[VERDICT][0].startswith(claim["outcome"])
        assert (row["Launches"][0] != "–") == bool(claim["sweeps"])
        if published["value"] is not None:
            assert_shown(row["Published (efficiency)"][0].split(" ±")[0].split(" (")[0], published["value"])
