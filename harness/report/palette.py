"""Colours that colour-blind readers can tell apart, on white paper and on a dark screen.

The series are Okabe and Ito's set (2008), yellow left out because it vanishes on white; markers differ
too, so no meaning hangs on colour alone. Figures are drawn in the light colours; in a page each one
becomes a CSS variable, so that one drawing serves both themes.
"""

from dataclasses import dataclass


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
