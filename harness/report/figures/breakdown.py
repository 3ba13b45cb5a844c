"""Where the time goes, as stacked bars: of one epoch, and of a whole launch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis import units
from harness.analysis.time_parts import PART_NAMES
from harness.base.own_matplotlib import Axes
from harness.report import captions, rank_axes, svg
from harness.report.answer import PageFigure
from harness.report.figures import SweepView, figure

_MOST_BARS = 16
_FEWEST_WITH_A_MIDDLE = 4  # launches: the middle half of three are all three
_LEAST = 0.0001  # a part that takes less than this of every bar is not seen


@dataclass(frozen=True, kw_only=True, slots=True)
class BarPart:
    """One part of a bar: its column of `analysis.time_parts.breakdown_frame`, and how it looks."""

    column: str
    tone: svg.Tone
    hatch: str = ""

    @property
    def label(self) -> str:
        """Its name in a legend."""
        return PART_NAMES[self.column]


EPOCH: tuple[BarPart, ...] = (
    BarPart(column="compute_seconds", tone=svg.BLUE),
    BarPart(column="input_seconds", tone=svg.SKY, hatch=".."),
    BarPart(column="skew_seconds", tone=svg.ORANGE, hatch="\\\\"),
    BarPart(column="wire_seconds", tone=svg.VERMILLION, hatch="//"),
)
LAUNCH: tuple[BarPart, ...] = (
    BarPart(column="import_s", tone=svg.MUTED, hatch=".."),
    BarPart(column="load_s", tone=svg.SKY),
    BarPart(column="distribute_s", tone=svg.INK, hatch="xx"),
    BarPart(column="compile_s", tone=svg.PURPLE, hatch="xx"),
    BarPart(column="trained_compute_s", tone=svg.BLUE),
    BarPart(column="trained_input_s", tone=svg.SKY, hatch=".."),
    BarPart(column="trained_sync_s", tone=svg.VERMILLION, hatch="xx"),
    BarPart(column="evaluate_s", tone=svg.GREEN, hatch="--"),
    BarPart(column="overhead_s", tone=svg.INK),
)


@figure("time")
def breakdowns(view: SweepView) -> Iterator[PageFigure]:
    """Draw the parts of one epoch, and of a whole launch."""
    launches = "All launches" if view.scaling.repeats[1] < _FEWEST_WITH_A_MIDDLE else "The middle half of the launches"
    text = (
        f"{launches} of {view.subject}, means over ranks. Of a synchronisation call, wait time is "
        "that for the last rank to enter it, allreduce time the rest; input is drawing the order of samples or waiting "
        "for them; computation is the rest of the slowest rank's epoch."
    )
    yield _breakdown(view, "an epoch", EPOCH, f"Parts of one epoch of {view.subject}", text)
    text = (
        f"{launches} of {view.subject}: all epochs, all evaluations and what is done once, "
        "slowest rank; rest is what remains: checks before training, comparing the weights, gathering the record. Only "
        "training counts in a speedup: computation, input and synchronisation."
    )
    yield _breakdown(view, "a launch", LAUNCH, f"Parts of a launch of {view.subject}", text)


def _breakdown(view: SweepView, period: str, parts: Sequence[BarPart], title: str, text: str) -> PageFigure:
    """Return the figure of the `parts` of a `period`: ``an epoch`` or ``a launch``."""
    bars = rank_axes.some_of(view.parts, _MOST_BARS).reset_index(drop=True)
    drawn = captions.drawn(len(view.parts), _MOST_BARS)
    spoken = []
    for _, row in bars.iterrows():
        times = (f"{part.label} {units.seconds(float(row[part.column]))}" for part in visible(bars, parts))
        spoken.append(f"{view.names[str(row['layout'])]}: {', '.join(times)}")
    return PageFigure(
        picture=svg.draw(
            f"{period.split()[1]}-breakdown",
            title,
            lambda axes: _bars(axes, bars, parts, period, bar_labels(bars, view.names)),
            numbers="; ".join(spoken),
        ),
        title=f"Where {period}'s time goes",
        caption=f"{text} {drawn}{captions.conditions_caption(view.scaling, view.runs, bars=False)}",
        table=view.parts,
    )


def visible(rows: pd.DataFrame, parts: Sequence[BarPart]) -> tuple[BarPart, ...]:
    """Return the `parts` that take 0.01 % or more of some row of `rows`."""
    totals = rows[[part.column for part in parts]].sum(axis=1)
    return tuple(part for part in parts if (rows[part.column] > _LEAST * totals).any())


def _bars(axes: Axes, rows: pd.DataFrame, parts: Sequence[BarPart], period: str, names: list[str]) -> None:
    totals = rows[[part.column for part in parts]].sum(axis=1)
    factor, unit = rank_axes.time_unit(float(totals.max()))
    left = pd.Series(0.0, index=rows.index)
    places = range(len(rows))
    for part in visible(rows, parts):
        widths = rows[part.column] * factor
        axes.barh(
            places,
            widths,
            left=left,
            height=0.62,
            label=part.label,
            color=part.tone.light,
            hatch=part.hatch,
            edgecolor=svg.PAPER.light,
            linewidth=0.6,
        )
        left = left + widths
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"Time of {period} ({unit})")
    axes.set_ylabel("MPI ranks" if not rows["ranks"].duplicated().any() else "")


def bar_labels(rows: pd.DataFrame, names: Mapping[str, str]) -> list[str]:
    """Return the rank counts, or the layouts' `names` where two have the same count."""
    if rows["ranks"].duplicated().any():
        return [names[str(layout)] for layout in rows["layout"]]
    return [str(ranks) for ranks in rows["ranks"]]
