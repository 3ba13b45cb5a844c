"""The page in a real browser: no error, no request, all figures drawn, tables that sort, figures that enlarge."""

import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.labs.factories import write_report

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
NOWHERE = "--host-resolver-rules=MAP * ~NOTFOUND"  # the browser's own calls home go nowhere either

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH (Debian package chromium)")

# Run inside the page: sort a table twice, enlarge a figure, and write down what a reader would see.
PROBE = """
<script>
const seen = {errors: []};
addEventListener("error", (event) => seen.errors.push(event.message));
addEventListener("load", () => {
  const table = document.querySelector("table.sortable");
  const first = () => table.tBodies[0].rows[0].cells[0].textContent.trim();
  const sort = () => [...table.tHead.rows].at(-1).cells[0].querySelector("button").click();
  sort(); seen.up = first(); sort(); seen.down = first();
  const drawn = [...document.querySelectorAll("figure > svg")].map((svg) => svg.getBoundingClientRect());
  seen.figures = drawn.filter((box) => box.width > 200 && box.height > 100).length;
  seen.marks = [...document.querySelectorAll("figure > svg")].map((svg) => svg.querySelectorAll("path, use").length);
  document.querySelector("figure .enlarge").click();
  const viewer = document.querySelector("dialog.viewer");
  seen.open = viewer.open;
  seen.enlarged = viewer.querySelector("svg").getBoundingClientRect().width / drawn[0].width;
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.width = innerWidth;
  seen.ink = getComputedStyle(document.body).color;
  seen.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
  viewer.close();
  seen.closed = !viewer.open;
  setTimeout(() => {
  const wide = [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth + 2);
  seen.wide = wide.length;
  const cells = [...document.querySelectorAll(".scroll tbody td")];
  seen.outside = cells.map((cell) => cell.getBoundingClientRect()).filter((box) => box.right > innerWidth + 1).length;
  seen.stacked = document.querySelectorAll("table.stacked").length;
  seen.nameless = cells.filter((cell) => !cell.dataset.heading).length;
  seen.unnamed = [...document.querySelectorAll("figure > svg, img")].filter(
    (picture) => !(picture.getAttribute("aria-label") || picture.getAttribute("aria-labelledby") || picture.alt ||
      picture.querySelector("title"))).length;
  const copied = [];
  document.execCommand = () => copied.push(document.activeElement.value);
  Object.defineProperty(navigator, "clipboard", {value: {writeText: async (text) => copied.push(text)}});
  const buttons = [...document.querySelectorAll(".copy")];
  buttons.forEach((button) => button.click());
  seen.copied = buttons.map((button, place) => copied[place] === button.parentElement.querySelector("pre").textContent);
  seen.copies = [...document.querySelectorAll(".copy")].filter((button) => !button.hidden).length;
  seen.command = document.querySelector(".again").getBoundingClientRect().bottom;
  const out = document.createElement("pre");
  out.id = "seen"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
  }, 200);
});
</script>
"""


def browse(tmp_path: Path, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [BROWSER, *FLAGS, NOWHERE, profile, *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def requests_of_page(log: Path) -> list[str]:
    """Addresses on a network that a page of files asked for; those that the browser itself asks for have no site."""
    return re.findall(r'site=file://[^"]*","url":"((?!file:|data:)[^"]+)"', log.read_text())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("results") / SWEEP.name
    shutil.copytree(SWEEP, copy)
    return write_report(copy, tmp_path_factory.mktemp("reports"))


@pytest.mark.parametrize(("width", "dark"), [(1600, False), (1280, False), (800, False), (500, True)])
def test_page_works_in_a_browser(report: Path, tmp_path: Path, width: int, dark: bool) -> None:
    page = report.with_name(f"probe-{width}.html")
    page.write_text(report.read_text().replace("<style>", PROBE + "<style>", 1))
    flags = ["--enable-logging=stderr", "--dump-dom", f"--window-size={width},900", "--virtual-time-budget=4000"]
    if dark:
        flags.append("--blink-settings=preferredColorScheme=0")
    log = tmp_path / "net.json"
    done = browse(tmp_path, page, *flags, f"--log-net-log={log}")
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found, done.stderr[-2000:]
    seen = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    figures = report.read_text().count("<figure")
    assert seen["errors"] == [] and "CONSOLE" not in done.stderr
    assert (seen["up"], seen["down"]) == ("1", "2")
    assert width < 1280 or seen["stacked"] == 0  # a table is a table where a laptop's window has room for it
    assert seen["figures"] == figures >= 9 and min(seen["marks"]) > 10
    assert seen["open"] and seen["enlarged"] > (1.3 if width > 600 else 0.9)
    assert seen["overflow"] <= 0 and seen["width"] == width
    assert (seen["ink"] == "rgb(230, 237, 243)") == dark
    assert seen["resources"] == []
    assert seen["wide"] == seen["outside"] == 0  # no column is out of sight
    assert seen["stacked"] >= (1 if width < 600 else 0)
    assert seen["nameless"] == 0 and seen["closed"]
    assert seen["copies"] == 3 and seen["copied"] == [True] * 3
    assert seen["unnamed"] == 0
    assert width < 600 or seen["command"] < 900  # question, answer, numbers and command are on the first screen
    assert requests_of_page(log) == []


@pytest.mark.parametrize("width", [500, 1280])
def test_screenshots(report: Path, tmp_path: Path, width: int) -> None:
    picture = tmp_path / "page.png"
    done = browse(tmp_path, report, f"--screenshot={picture}", f"--window-size={width},2400")
    assert picture.exists(), done.stderr[-2000:]
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (width, 2400)
    assert picture.stat().st_size > 50_000  # an empty page takes a tenth of that


def test_a_request_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://example.invalid/x.png">')
    log = tmp_path / "net.json"
    browse(tmp_path, page, "--dump-dom", "--virtual-time-budget=2000", f"--log-net-log={log}")
    assert "http://example.invalid/x.png" in requests_of_page(log)
