"""One figure for each series of a history: every launch, each commit's median, and where it changed."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from harness.analysis.history import Change, History, Series
from harness.analysis.quantities import TIME
from harness.report import numbers
from harness.report.canvas import Picture, draw
from harness.report.page_parts import FigureBlock
from harness.report.palette import BLUE, MUTED, VERMILLION
from harness.report.scaling_figures import time_unit

_MOST_LABELS = 12


def history_blocks(history: History, subject: str) -> tuple[FigureBlock, ...]:
    """Return the figures of every series, with the numbers behind them."""
    return tuple(_block(history, series, subject) for series in history.series)


def series_name(series: Series) -> str:
    """Return a series as a reader names it: ``epoch time on 2 ranks``."""
    where = f"on {numbers.ranks(series.layout.ranks)}" if series.layout else "of all points"
    return f"{series.quantity} {where}"


def series_values(series: Series) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what a reader sees of the costs: seconds, or an efficiency as a fraction."""
    return np.exp(series.costs if series.quantity == TIME else -series.costs)


def _block(history: History, series: Series, subject: str) -> FigureBlock:
    changes = [change for change in history.changes if change.series is series]
    name = f"{series.quantity}-{series.layout or 'all'}".replace(" ", "-")
    title = series_name(series)
    picture: Picture = draw(
        name, f"{title} of {subject} over commits", lambda axes: _paint(axes, history, series, changes)
    )
    found = "; ".join(f"{numbers.percent(abs(c.loss), 1)} {'lost' if c.loss > 0 else 'gained'}" for c in changes)
    caption = "Every launch, the median of each commit, " + (
        f"and {numbers.plural(len(changes), 'change')}: {found}." if found else "and no change."
    )
    caption += " The vertical axis does not begin at 0."
    return FigureBlock(picture=picture, title=title.capitalize(), caption=caption, table=_table(history, series))


def _paint(axes: Axes, history: History, series: Series, changes: list[Change]) -> None:
    values = series_values(series)
    time = series.quantity == TIME
    factor, unit = time_unit(float(values.max())) if time else (1.0, "")
    values = values * factor
    places = np.arange(len(values))
    axes.plot(places, values, "o", color=MUTED.light, alpha=0.6, markersize=3.2, markeredgewidth=0, label="launch")
    states = np.array(series.states)
    for number, state in enumerate(dict.fromkeys(series.states)):
        own = places[states == state]
        label = "median of a commit" if number == 0 else ""
        axes.hlines(np.median(values[own]), own[0] - 0.4, own[-1] + 0.4, color=BLUE.light, linewidth=2, label=label)
    for number, change in enumerate(changes):
        label = "change" if number == 0 else ""
        axes.axvline(change.index - 0.5, color=VERMILLION.light, linestyle=(0, (4, 2)), linewidth=1.2, label=label)
    _commit_axis(axes, history, series)
    axes.set_ylabel(f"{series.quantity.capitalize()} ({unit})" if time else series.quantity.capitalize())
    if not time:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))


def _commit_axis(axes: Axes, history: History, series: Series) -> None:
    states = np.array(series.states)
    order = list(dict.fromkeys(series.states))
    step = -(-len(order) // _MOST_LABELS)
    middles = {float(np.flatnonzero(states == state).mean()): history.states[state].software.name for state in order}
    shown = list(middles)[::step]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: middles.get(value, "")[:8]))
    if len(shown) > 4:
        axes.tick_params(axis="x", pad=1)
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_xlabel("Commit, in the order of the first launch")


def _table(history: History, series: Series) -> pd.DataFrame:
    column = "seconds" if series.quantity == TIME else "efficiency"
    commits = [history.states[state].software.name for state in series.states]
    return pd.DataFrame({"commit": commits, column: series_values(series)})
