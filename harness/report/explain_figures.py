"""The figures of an explanation: efficiencies over rank counts, and from the ideal to the measured epoch."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from harness.analysis import numbers
from harness.report import captions
from harness.report.answer import FigureBlock
from harness.report.axes import time_unit
from harness.report.figures.breakdown import EPOCH
from harness.report.svg import BLUE, INK, MUTED, ORANGE, PAPER, draw
from harness.why.explanation import TREE, Explanation, PointEfficiencies
from harness.why.overheads import PointOverheads

_MOST_COLUMNS = 9
_DEEPEST = 0.45  # of a cell's colour, behind text that must stay readable on light and on dark pages
_WORST = 0.5  # the efficiency from which a cell is not coloured deeper


def heat_map(found: Explanation, subject: str) -> FigureBlock:
    """Draw the efficiencies, a column for each point, a row for each metric."""
    table = pd.DataFrame(
        [
            {
                "layout": tree.layout,
                "ranks": tree.ranks,
                "metric": name,
                "value": one.value,
                "low": one.interval.low if one.interval else None,
                "high": one.interval.high if one.interval else None,
            }
            for tree in found.efficiencies
            for name, one in tree.metrics.items()
        ]
    )
    step = -(-len(found.efficiencies) // _MOST_COLUMNS)
    shown = found.efficiencies[::-1][::step][::-1]  # the largest is always among them
    last = shown[-1]
    spoken = ", ".join(f"{name} {numbers.percent(one.value, 1)}" for name, one in last.metrics.items())
    return FigureBlock(
        picture=draw(
            "efficiencies",
            f"Efficiencies of {subject} over rank counts",
            lambda axes: _cells(axes, shown),
            (2.6 + 0.75 * len(shown), 3.0),
            numbers=f"On {numbers.ranks(last.ranks)}: {spoken}",
        ),
        title="Efficiencies over rank counts",
        caption="POP's tree in percent; the deeper a cell's colour, the lower the efficiency; blue is above 100 %. "
        + captions.drawn(len(found.efficiencies), len(shown)) * (step > 1)
        + captions.conditions(found.scaling, found.loaded.runs, bars=False),
        table=table,
    )


def _cells(axes: Axes, shown: tuple[PointEfficiencies, ...]) -> None:
    for row, metric in enumerate(TREE):
        for column, tree in enumerate(shown):
            one = tree.metrics.get(metric.name)
            value = 1.0 if one is None else one.value
            depth = min(abs(1 - value) / (1 - _WORST), 1.0) * _DEEPEST
            tone = ORANGE if value <= 1 else BLUE
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=tone.light, alpha=depth, linewidth=0))
            text = numbers.NONE if one is None else f"{100 * value:.1f}"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=INK.light)
    axes.set_xlim(0, len(shown))
    axes.set_ylim(len(TREE), 0)
    axes.set_xticks([column + 0.5 for column in range(len(shown))], [str(tree.ranks) for tree in shown])
    axes.set_yticks([row + 0.5 for row in range(len(TREE))], [f"{'   ' * m.depth}{m.name}" for m in TREE], ha="left")
    axes.tick_params(axis="y", pad=128, length=0)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("MPI ranks")


def waterfall(point: PointOverheads, found: Explanation, subject: str) -> FigureBlock:
    """Draw what each cause adds to the ideal time of a point, or saves, up to the measured one."""
    table = pd.DataFrame(
        [{"cause": item.cause.name, "seconds": item.seconds, "fraction": item.fraction} for item in point.items]
    )
    spoken = ", ".join(f"{item.cause.name} {numbers.seconds(item.seconds)}" for item in point.listed)
    rest = "What is below 0.1 % of the epoch is left out. "
    return FigureBlock(
        picture=draw(
            "overheads",
            f"From the ideal to the measured epoch of {subject} on {numbers.ranks(point.ranks)}",
            lambda axes: _steps(axes, point),
            (4.8, 1.3 + 0.3 * len(point.listed)),
            numbers=f"Ideal {numbers.seconds(point.ideal)}, measured {numbers.seconds(point.measured)}: {spoken}",
        ),
        title=f"From ideal to measured on {numbers.ranks(point.ranks)}",
        caption="Each bar is what one cause adds to the ideal time, or saves; the colour is its part of the epoch. "
        f"The axis does not begin at 0. {rest}{captions.conditions(found.scaling, found.loaded.runs)}",
        table=table,
    )


def _steps(axes: Axes, point: PointOverheads) -> None:
    factor, unit = time_unit(point.measured)
    bars = {part.column: part for part in EPOCH}
    at, labelled = point.ideal, set[str]()
    names = ["ideal", *(item.cause.name for item in point.listed), "measured"]
    for row, item in enumerate(point.listed, start=1):
        bar = bars[item.cause.part]
        label = None if bar.column in labelled else bar.label
        labelled.add(bar.column)
        axes.barh(
            row, item.seconds * factor, left=at * factor, height=0.62, color=bar.tone.light, hatch=bar.hatch,
            edgecolor=PAPER.light, linewidth=0.6, label=label,
        )  # fmt: skip
        ends = [item.fraction_interval.low, item.fraction_interval.high] if item.fraction_interval else []
        places = [(at + end * point.measured) * factor for end in ends]
        if places:
            axes.plot(places, [row, row], color=INK.light, linewidth=1, marker="|", markersize=5)
        at += item.seconds
        axes.plot([at * factor] * 2, [row - 0.31, row + 1], color=MUTED.light, linewidth=0.7)
    for row, seconds in ((0, point.ideal), (len(names) - 1, point.measured)):
        axes.plot(seconds * factor, row, marker="D", color=INK.light)
        axes.annotate(
            numbers.seconds(seconds), (seconds * factor, row), xytext=(7, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    low, high = axes.dataLim.intervalx
    axes.set_xlim(low - 0.04 * (high - low), high + 0.18 * (high - low))  # the value stands right of its mark
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"Time of an epoch ({unit})")
