"""A figure as SVG for a page, as SVG for a paper, and as PNG, in colours that colour-blind readers can tell apart."""

import html
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Tone:
    """One colour of the drawings. `light` is unique among the tones: it is what the page replaces."""

    name: str
    light: str
    dark: str


PAPER = Tone(name="paper", light="#fffffe", dark="#161b22")
INK = Tone(name="ink", light="#1f2328", dark="#e6edf3")
MUTED = Tone(name="muted", light="#59636e", dark="#9ba5b0")
GRID = Tone(name="grid", light="#dde2e8", dark="#30363d")
BLUE = Tone(name="blue", light="#0072b2", dark="#58a6e0")
VERMILLION = Tone(name="vermillion", light="#d55e00", dark="#f0813a")
GREEN = Tone(name="green", light="#009e73", dark="#2fc498")
PURPLE = Tone(name="purple", light="#cc79a7", dark="#dd93bd")
ORANGE = Tone(name="orange", light="#e69f00", dark="#f0b429")
SKY = Tone(name="sky", light="#56b4e9", dark="#7cc8f5")

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
        colour=SERIES[number % turn].light,
        marker=MARKERS[number % turn],
        dashes=DASHES[number // turn % len(DASHES)],
    )


SIZE = (4.8, 3.3)  # inches: small, so that the text is still readable at a phone's width
DPI = 200
LAUNCH = "launch:"  # an address of this form in a figure becomes a link to that row of the table of launches
_STYLE = {
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
    "pdf.fonttype": 42,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One finished figure: `inline` for a page (colours are CSS variables), `svg` and `png` as files."""

    name: str
    inline: str
    svg: bytes
    png: bytes


def draw(name: str, title: str, paint: Callable[[Axes], None], size: tuple[float, float] = SIZE) -> Picture:
    """Return the picture that `paint` draws on empty axes; `title` describes it to those who cannot see it.

    `size` in inches. The legend of what `paint` labels goes below the axes, where it hides no data.
    """
    svg, png = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes: Axes = figure.add_subplot()
        axes.tick_params(length=3)
        paint(axes)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(handles)))
        figure.savefig(svg, format="svg", metadata={"Date": None, "Title": title})
        figure.savefig(png, format="png", dpi=DPI, metadata={"Title": title})
    text = svg.getvalue().decode()
    alone = re.sub(rf' xlink:href="{LAUNCH}[^"]*"', "", text)  # a file has no table of launches to point into
    return Picture(name=name, inline=_inline(text, name, title), svg=alone.encode(), png=png.getvalue())


def linked(picture: Picture, addresses: Mapping[str, str]) -> Picture:
    """Return `picture` for a page without a table of launches: its dots lead to `addresses`, by launch."""
    targets = re.compile(r'href="#run-([^"]+)"')
    return replace(picture, inline=targets.sub(lambda found: f'href="{addresses[found[1]]}"', picture.inline))


def _inline(svg: str, name: str, title: str) -> str:
    """Return `svg` for the inside of a page: no prolog, no addresses, its own ids, colours as variables."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    viewbox = re.search(r'viewBox="([^"]+)"', body)
    assert viewbox is not None
    label = html.escape(title, quote=True)
    body = re.sub(r"<svg[^>]*>", f'<svg viewBox="{viewbox[1]}" role="img" aria-label="{label}">', body, count=1)
    body = re.sub(r"<title>.*?</title>", "", body, count=1, flags=re.DOTALL)
    # Ids are per page, not per drawing: glyphs and clips of two figures would get mixed up.
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body).replace("url(#", f"url(#{name}-")
    body = body.replace("xlink:href", "href")
    body = re.sub(rf'href="{LAUNCH}([^"]+)"[^>]*>', r'href="#run-\1"><title>\1</title>', body)
    for tone in TONES:
        body = body.replace(tone.light, f"var(--{tone.name})")
    return re.sub(r"\n\s*", "\n", body)
