"""Figures for print: files that journals take, legends that are whole, colours that everyone can tell apart."""

import csv
import io
import itertools
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from harness.report import figures
from harness.report.figures.breakdown import EPOCH, LAUNCH
from harness.report.run_words import layout_words
from harness.report.svg import SERIES, draw
from harness.schema.layout import Layout
from harness.schema.point import Point
from tests.conftest import leave_out_pictures
from tests.labs.factories import make_run, make_workload, write_report, write_run
from tests.labs.page_text import Text
from tests.labs.sentences import says

MEMORY = '''
"""Memory against ranks: a figure that this test adds."""

from collections.abc import Iterator

from harness.report.answer import PageFigure
from harness.report.figures import SweepView, figure
from harness.report.svg import draw


@figure("time")
def memory(view: SweepView) -> Iterator[PageFigure]:
    peak = view.ratios.groupby("ranks")["peak_memory_bytes"].max()
    picture = draw("peak-memory", "Peak memory", lambda axes: axes.plot(peak.index, peak / 2**30, "o") and None)
    table = peak.reset_index()
    yield PageFigure(picture=picture, title="Memory", caption=f"Peak memory of {view.subject}.", table=table)
'''

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"

# Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision Deficiency,
# IEEE TVCG 15(6), 2009, severity 1.0, on linear RGB.
MACHADO = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
SEEN = 10.0  # CIE 1976 difference that is seen at a glance; 2.3 is the least that is seen at all
SHADE = 4.0  # difference in CIE lightness of a grey print


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    ratios = XYZ @ light / (XYZ @ np.ones(3))
    f = np.where(ratios > (6 / 29) ** 3, np.cbrt(ratios), ratios / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", MACHADO)
def test_no_two_series_look_alike_to_anyone(sight: str, theme: str) -> None:
    seen = {tone.name: lab(np.clip(np.array(MACHADO[sight]) @ linear(getattr(tone, theme)), 0, 1)) for tone in SERIES}
    near = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in itertools.combinations(seen, 2)}
    assert min(near.values()) >= SEEN, min(near.items(), key=lambda item: item[1])


def test_series_differ_in_a_grey_print() -> None:
    shades = sorted(float(lab(np.full(3, XYZ[1] @ linear(tone.light)))[0]) for tone in SERIES)
    assert min(np.diff(shades)) >= SHADE and shades[-1] < 82, shades  # the lightest is still seen on white


def test_no_part_of_one_bar_chart_has_the_looks_of_another_part_of_the_other() -> None:
    looks = {}
    for part in (*EPOCH, *LAUNCH):
        looks.setdefault((part.tone.name, part.hatch), set()).add(part.label)
    assert all(len(labels) == 1 for labels in looks.values()), looks
    waiting, compiling = (
        next(p for p in parts if word in p.label) for parts, word in ((EPOCH, "wait"), (LAUNCH, "comp"))
    )
    assert waiting.tone is not compiling.tone


@pytest.fixture
def as_printed(no_pictures: pytest.MonkeyPatch) -> Iterator[None]:
    """Let files of figures be what they are to users."""
    no_pictures.undo()
    yield
    leave_out_pictures(no_pictures)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(SWEEP, tmp_path_factory.mktemp("reports")).parent


@pytest.mark.slow
@pytest.mark.usefixtures("as_printed")
def test_every_figure_is_a_pdf_with_fonts_inside_in_the_widths_of_a_paper(tmp_path: Path) -> None:
    paper = write_report(SWEEP, tmp_path, style="paper").parent
    names = [file.stem for file in paper.glob("*.svg")]
    assert len(names) >= 9
    for name in names:
        assert (paper / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        for suffix, inches in (("", None), ("-one-column", 3.5), ("-two-columns", 7.16)):
            content = (paper / f"{name}{suffix}.pdf").read_bytes()
            fonts = b"".join(_streams(content))
            assert b"/Type3" not in fonts and (b"/CIDFontType2" in fonts or b"/TrueType" in fonts), name
            box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", content + fonts)
            assert box and (inches is None or float(box[1]) == pytest.approx(72 * inches, abs=1))


def _streams(content: bytes) -> list[bytes]:
    """The objects of a PDF, those inside compressed streams too."""
    found = [content]
    for match in re.finditer(rb"stream\r?\n(.*?)endstream", content, flags=re.DOTALL):
        try:
            found.append(zlib.decompress(match[1]))
        except zlib.error:
            continue
    return found


@pytest.mark.usefixtures("as_printed")
def test_pixels_are_enough_for_print() -> None:
    picture = draw("empty", "Empty", lambda axes: None)
    height, width, _ = matplotlib.image.imread(io.BytesIO(picture.draw().file("png"))).shape
    assert width == 4.8 * 300 and height >= 3.3 * 300


@pytest.mark.usefixtures("as_printed")
def test_a_long_legend_is_whole() -> None:
    def paint(axes: object) -> None:
        for number in range(7):
            axes.plot([0, 1], [number, number], label=f"a series with a long name that says much, number {number}")  # type: ignore[attr-defined]

    picture = draw("long", "Long", paint)
    pixels = matplotlib.image.imread(io.BytesIO(picture.draw().file("png")))
    edges = np.concatenate([pixels[:, :6, :3], pixels[:, -6:, :3]])
    assert np.ptp(edges) < 0.02  # nothing but paper at the left and right ends
    assert pixels.shape[0] > 3.3 * 300  # the figure grows, its axes do not shrink


def test_figures_tell_their_numbers_to_those_who_cannot_see_them(report: Path) -> None:
    labels = dict(
        re.findall(r'<figure id="([^"]+)">.*?aria-label="([^"]+)"', (report / "index.html").read_text(), re.DOTALL)
    )
    assert re.search(r"2\u00a0ranks: \d\.\d\d \(\d\.\d\d to \d\.\d\d\)", labels["speedup"])
    assert "computation" in labels["epoch-breakdown"]
    says(labels["accuracy-time"], "training time (without evaluation")


@pytest.mark.slow
def test_thread_counts_are_series_of_their_own_and_efficiency_is_per_core(tmp_path: Path) -> None:
    for repeat in range(6):
        for ranks, threads, seconds in ((1, 1, 4.0), (2, 1, 2.0), (1, 2, 3.0), (2, 2, 1.6)):
            layout = Layout(nodes=ranks, threads=threads)
            point = Point(workload=make_workload(), layout=layout, repeat=repeat)
            write_run(tmp_path / "s", make_run(point, seconds=[[seconds + repeat / 1000] * ranks] * 3))
    page = write_report(tmp_path / "s", tmp_path / "reports")
    labels = dict(re.findall(r'<figure id="([^"]+)">.*?aria-label="([^"]+)"', page.read_text(), re.DOTALL))
    one_of_two, two_of_two = (f"{ranks} of 2\u00a0threads: " for ranks in ("1\u00a0rank", "2\u00a0ranks"))
    assert f"{one_of_two}1.33" in labels["speedup"]
    assert f"{one_of_two}67\u00a0%" in labels["efficiency"]  # 1.33 on two cores
    assert f"{two_of_two}62\u00a0%" in labels["efficiency"]
    words, text = layout_words(Layout(nodes=2, threads=2), True), str(Text(page.read_text()))
    assert words.replace("\u00a0", " ") in text.replace("\u00a0", " ")


def test_of_many_thread_counts_some_are_drawn_and_all_are_in_the_files(tmp_path: Path) -> None:
    counts = range(1, 30)
    for threads in counts:
        point = Point(workload=make_workload(), layout=Layout(nodes=1, threads=threads))
        write_run(tmp_path / "s", make_run(point, seconds=[[4.0 / threads]] * 3))
    page = write_report(tmp_path / "s", tmp_path / "reports")
    with (page.parent / "speedup.csv").open() as file:
        means = [row for row in csv.DictReader(file) if row["kind"] == "mean"]
    assert len(means) == len(counts)
    captions = re.findall(r'<figure id="speedup">.*?<figcaption>(.*?)</figcaption>', page.read_text(), re.DOTALL)
    says(captions, f"21 of {len(counts)}")


def test_a_figure_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory_of_ranks.py").write_text(MEMORY)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "harness.report.figures.memory_of_ranks", raising=False)
    page = write_report(SWEEP, tmp_path / "reports")
    monkeypatch.delitem(sys.modules, "harness.report.figures.memory_of_ranks")
    text = page.read_text(encoding="utf-8")
    assert "Peak memory of MNIST-DNN." in text
    assert text.index('id="time"') < text.index('id="peak-memory"') < text.index('id="learning"')
    assert all((page.parent / f"peak-memory.{kind}").stat().st_size for kind in ("svg", "png", "csv"))
