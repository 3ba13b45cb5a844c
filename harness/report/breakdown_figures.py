"""Where the time goes, as stacked bars: one epoch, and a whole launch."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from harness.report.axes import some_of
from harness.report.scaling_figures import time_unit
from harness.report.svg import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, SKY, VERMILLION, Picture, Tone, draw

MOST_BARS = 16
_LEAST = 0.0001  # a part that takes less than this of every bar is not seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of a bar: its column of `analysis.split.split_frame`, its label, and how it looks."""

    column: str
    label: str
    tone: Tone
    hatch: str = ""


EPOCH: tuple[Part, ...] = (
    Part(column="compute_seconds", label="computation", tone=BLUE),
    Part(column="input_seconds", label="input", tone=SKY, hatch=".."),
    Part(column="skew_seconds", label="waiting (skew)", tone=ORANGE, hatch="\\\\"),
    Part(column="wire_seconds", label="sum (wire)", tone=VERMILLION, hatch="//"),
)
LAUNCH: tuple[Part, ...] = (
    Part(column="import_s", label="import", tone=MUTED),
    Part(column="load_s", label="load", tone=SKY, hatch=".."),
    Part(column="distribute_s", label="distribute", tone=PURPLE, hatch="xx"),
    Part(column="compile_s", label="compile", tone=ORANGE, hatch="\\\\"),
    Part(column="trained_compute_s", label="computation", tone=BLUE),
    Part(column="trained_input_s", label="input", tone=PURPLE, hatch=".."),
    Part(column="trained_sync_s", label="synchronisation", tone=VERMILLION, hatch="//"),
    Part(column="evaluate_s", label="evaluation", tone=GREEN, hatch="--"),
    Part(column="overhead_s", label="overhead", tone=INK),
)


def split_pictures(split: pd.DataFrame, subject: str) -> tuple[Picture, ...]:
    """Return the pictures `epoch-split` and `launch-split` of at most `MOST_BARS` rows of `split.split_frame`."""
    split = some_of(split, MOST_BARS).reset_index(drop=True)
    return (
        draw("epoch-split", f"Parts of one epoch of {subject}", lambda axes: _bars(axes, split, EPOCH, "an epoch")),
        draw("launch-split", f"Parts of a launch of {subject}", lambda axes: _bars(axes, split, LAUNCH, "a launch")),
    )


def visible(split: pd.DataFrame, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the `parts` that take 0.01 % or more of some row of `split`."""
    totals = split[[part.column for part in parts]].sum(axis=1)
    return tuple(part for part in parts if (split[part.column] > _LEAST * totals).any())


def _bars(axes: Axes, split: pd.DataFrame, parts: Sequence[Part], whole: str) -> None:
    names = bar_labels(split)
    totals = split[[part.column for part in parts]].sum(axis=1)
    factor, unit = time_unit(float(totals.max()))
    left = pd.Series(0.0, index=split.index)
    places = range(len(split))
    for part in visible(split, parts):
        widths = split[part.column] * factor
        axes.barh(
            places, widths, left=left, height=0.62, label=part.label, color=part.tone.light, hatch=part.hatch,
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
