"""A figure for a page and as PDF, SVG and PNG, in colours that differ for the colour-blind and in grey."""

import html
import io
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.base.own_matplotlib import Axes, Figure, FigureCanvasAgg, own_settings
from harness.base.record_words import printable


@dataclass(frozen=True, kw_only=True, slots=True)
class Tone:
    """One colour of the drawings. `light` is unique among the tones: it is what the page replaces."""

    name: str
    light: str
    dark: str


# Found by search: the series differ in lightness too, so that they do in a grey print and for the colour-blind.
PAPER = Tone(name="paper", light="#fffffe", dark="#161b22")
INK = Tone(name="ink", light="#1f2328", dark="#e6edf3")
MUTED = Tone(name="muted", light="#59636e", dark="#9ba5b0")
GRID = Tone(name="grid", light="#dde2e8", dark="#30363d")
BLUE = Tone(name="blue", light="#1c6cd6", dark="#4c92e8")
VERMILLION = Tone(name="vermillion", light="#721700", dark="#f0742c")
GREEN = Tone(name="green", light="#17b368", dark="#22c08a")
PURPLE = Tone(name="purple", light="#8a3078", dark="#dd6fb0")
ORANGE = Tone(name="orange", light="#bd7008", dark="#f5c04a")
SKY = Tone(name="sky", light="#9bbdd8", dark="#a8d8f8")

SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
TONES = (PAPER, MUTED, GRID, *SERIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """How one series looks. After seven series the line's dashes change, so that 21 stay distinct."""

    colour: str
    marker: str
    dashes: str | tuple[int, tuple[float, ...]]


def mark(number: int) -> Mark:
    """Return the look of series `number`, from 0."""
    turn = len(SERIES)
    return Mark(
        colour=SERIES[number % turn].light, marker=MARKERS[number % turn], dashes=DASHES[number // turn % len(DASHES)]
    )


IDEAL: dict[str, Any] = {"color": MUTED.light, "linestyle": (0, (5, 3)), "linewidth": 1.2, "zorder": 1}
SIZE = (4.8, 3.3)  # inches: small, so that the text is still readable at a phone's width
DPI = 300
COLUMNS = {"one-column": 3.5, "two-columns": 7.16}  # inches, as in IEEE's and ACM's two-column pages
LAUNCH = "launch:"  # an address of this form in a figure becomes a link to that row of the table of launches
STYLE = {
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.edgecolor": MUTED.light,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK.light,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": PAPER.light,
    "grid.color": GRID.light,
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 6.0,
    "text.color": INK.light,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "xtick.labelcolor": INK.light,
    "ytick.labelcolor": INK.light,
    "svg.fonttype": "path",  # glyphs as paths: looks the same wherever the fonts differ
    "svg.hashsalt": "harness",  # the same records give the same file
    "pdf.fonttype": 42,  # TrueType inside, which journals take and editors can search
}
_PRINT = {
    "font.size": 8.0,
    "axes.labelsize": 8.0,
    "legend.fontsize": 7.0,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "figure.facecolor": "white",
}
_KEYWORDS = "harness:keywords"  # in the SVG of a picture, until it becomes a file
_LEGEND_ROW = 0.17  # inches
_MOST_NAMED = 24  # in a legend: looks come again after 21 series
_LONGEST_LABEL = 56  # characters, which a figure of the usual width has room for


Paint = Callable[[Axes], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure to be drawn: what `paint` draws on empty axes of `size` inches.

    The rows of a long legend are added to that: it goes below the axes, where it hides no data. `title` and the
    `numbers` that it shows describe it to those who cannot see it.
    """

    name: str
    title: str
    paint: Paint
    size: tuple[float, float]
    numbers: str

    def draw(self) -> "Drawing":
        """Return it drawn: that takes a tenth of a second or more."""
        with own_settings(STYLE):
            figure = _figure(self.paint, self.size)
            text = printable(render(figure, "svg", self.title, _KEYWORDS).decode())
        return Drawing(picture=self, figure=figure, svg=text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A picture that is drawn: as `svg`, and as the `figure` that other files are made of."""

    picture: Picture
    figure: Figure
    svg: str

    def inline(self) -> str:
        """Return it for the inside of a page: its colours are variables."""
        picture = self.picture
        spoken = f"{picture.title}. {picture.numbers}" if picture.numbers else picture.title
        return _inline(self.svg, picture.name, spoken, self.figure.get_figwidth())

    def file(self, kind: str, keywords: str = "") -> bytes:
        """Return it as a file of `kind`, ``svg``, ``pdf`` or ``png``, with `keywords`, ASCII, among its metadata."""
        if kind != "svg":
            with own_settings(STYLE):
                return render(self.figure, kind, self.picture.title, keywords)
        # A file has no table of launches to point into.
        return re.sub(rf' xlink:href="{LAUNCH}[^"]*"', "", self.svg.replace(_KEYWORDS, keywords, 1)).encode()


def draw(name: str, title: str, paint: Paint, size: tuple[float, float] = SIZE, *, numbers: str = "") -> Picture:
    """Return the picture that `paint` will draw on empty axes; see `Picture`."""
    return Picture(name=name, title=printable(title), paint=paint, size=size, numbers=numbers)


def printed(picture: Picture, width: float, keywords: str = "") -> bytes:
    """Return `picture` as a PDF `width` inches wide with text of 8 points, for a column of a paper."""
    with own_settings(STYLE | _PRINT):
        figure = _figure(picture.paint, (width, min(0.72 * width, 3.2)))
        return render(figure, "pdf", picture.title, keywords)


def _figure(paint: Paint, size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Axes = figure.add_subplot()
    axes.tick_params(length=3)
    paint(axes)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # The legend has as many columns as the figure is wide enough for.
        texts = [textwrap.fill(label, _LONGEST_LABEL) for label in labels[:_MOST_NAMED]]
        if len(labels) > _MOST_NAMED:
            texts[-1] += f" (and {len(labels) - _MOST_NAMED} more series)"
        handles = handles[:_MOST_NAMED]
        for columns in range(min(4, len(handles)), 0, -1):
            legend = figure.legend(handles, texts, loc="outside lower center", ncols=columns)
            if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                break
            legend.remove()
        rows = -(-len(handles) // columns) + sum(text.count("\n") for text in texts)
        figure.set_figheight(size[1] + _LEGEND_ROW * max(0, rows - 1))
    figure.draw_without_rendering()  # the layout is found once, for all kinds of files
    figure.set_layout_engine(None)
    return figure


def render(figure: Figure, kind: str, title: str, keywords: str) -> bytes:
    """Return a figure as a file of `kind`, with `title` and `keywords` among its metadata."""
    described = {"Title": title} | ({"Keywords": keywords} if keywords else {})
    metadata = described | {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=DPI if kind == "png" else "figure", metadata=metadata)
    return file.getvalue()


def _inline(svg: str, name: str, spoken: str, width: float) -> str:
    """Return `svg` for the inside of a page: no prolog, no addresses, its own ids, colours as variables."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    viewbox = re.search(r'viewBox="([^"]+)"', body)
    assert viewbox is not None
    label = html.escape(spoken, quote=True)
    start = f'<svg viewBox="{viewbox[1]}" style="max-width:{width:g}in" role="img" aria-label="{label}">'
    body = re.sub(r"<svg[^>]*>", lambda _: start, body, count=1)
    body = re.sub(r"<title>.*?</title>", "", body, count=1, flags=re.DOTALL)
    # Ids are per page, not per drawing: glyphs and clips of two figures would get mixed up.
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body).replace("url(#", f"url(#{name}-")
    body = body.replace("xlink:href", "href")
    body = re.sub(rf'href="{LAUNCH}([^"]+)"[^>]*>', r'href="#run-\1"><title>\1</title>', body)
    for tone in TONES:
        body = body.replace(tone.light, f"var(--{tone.name})")
    return re.sub(r"\n\s*", "\n", body)
