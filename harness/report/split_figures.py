"""Where the time goes, as stacked bars: one epoch, and a whole launch."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from harness.report.canvas import Picture, draw
from harness.report.palette import BLUE, GREEN, MUTED, ORANGE, PAPER, PURPLE, SKY, VERMILLION, Tone
from harness.report.scaling_figures import time_unit

Part = tuple[str, str, Tone, str]
"""Column, label, colour and hatch of one part of a bar."""

EPOCH: tuple[Part, ...] = (
    ("compute_seconds", "computation", BLUE, ""),
    ("input_seconds", "input", SKY, ".."),
    ("skew_seconds", "waiting (skew)", ORANGE, "\\\\"),
    ("wire_seconds", "sum (wire)", VERMILLION, "//"),
)
LAUNCH: tuple[Part, ...] = (
    ("import_s", "import", MUTED, ""),
    ("load_s", "load", SKY, ".."),
    ("distribute_s", "distribute", PURPLE, "xx"),
    ("compile_s", "compile", ORANGE, "\\\\"),
    ("trained_compute_s", "computation", BLUE, ""),
    ("trained_input_s", "input", PURPLE, ".."),
    ("trained_sync_s", "synchronisation", VERMILLION, "//"),
    ("evaluate_s", "evaluation", GREEN, "--"),
)


def split_pictures(split: pd.DataFrame, subject: str) -> tuple[Picture, ...]:
    """Return the pictures `epoch-split` and `launch-split` of `analysis.split.split_frame`'s rows."""
    return (
        draw("epoch-split", f"Parts of one epoch of {subject}", lambda axes: _bars(axes, split, EPOCH, "an epoch")),
        draw("launch-split", f"Parts of a launch of {subject}", lambda axes: _bars(axes, split, LAUNCH, "a launch")),
    )


def _bars(axes: Axes, split: pd.DataFrame, parts: Sequence[Part], whole: str) -> None:
    names = bar_labels(split)
    totals = split[[column for column, *_ in parts]].sum(axis=1)
    factor, unit = time_unit(float(totals.max()))
    left = pd.Series(0.0, index=split.index)
    places = range(len(split))
    for column, label, tone, hatch in parts:
        if not (split[column] > 0).any():
            continue
        widths = split[column] * factor
        axes.barh(
            places, widths, left=left, height=0.62, label=label, color=tone.light, hatch=hatch,
            edgecolor=PAPER.light, linewidth=0.6,
        )  # fmt: skip
        left = left + widths
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.set_ylim(len(split) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"Time of {whole} ({unit})")
    axes.set_ylabel("MPI ranks")


def bar_labels(split: pd.DataFrame) -> list[str]:
    """Return the rank counts, or whole layouts where two have the same count."""
    if split["ranks"].duplicated().any():
        return [str(layout) for layout in split["layout"]]
    return [str(ranks) for ranks in split["ranks"]]
