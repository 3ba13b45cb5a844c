"""The history of a study as a page that stands alone: a figure for each series, and its numbers as files."""

import shlex
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis import units
from harness.base.own_matplotlib import Axes, ticker
from harness.regression.history import CostSeries, History
from harness.regression.measurement import TIME
from harness.report import sweep_sentences
from harness.report.answer import Answer, PageFigure, Section, Table, facts
from harness.report.measurement_words import measurement_warnings
from harness.report.rank_axes import time_unit
from harness.report.run_words import days, machine_words
from harness.report.svg import BLUE, MUTED, draw

_MOST_LABELS = 12


def _series_name(series: CostSeries) -> str:
    """Return a series as a reader names it: ``epoch time on 2 ranks``."""
    where = f"on {units.ranks(series.layout.ranks)}" if series.layout else "of all points"
    return f"{series.quantity} {where}"


def _series_figure(history: History, series: CostSeries, subject: str) -> PageFigure:
    name = f"{series.quantity}-{series.layout or 'all'}".replace(" ", "-")
    title = _series_name(series)
    picture = draw(
        name,
        f"{title} of {subject} over commits",
        lambda axes: _paint(axes, history, series),
        numbers="; ".join(f"{history.names[state]}: {median}" for state, median in _medians(series).items()),
    )
    what = "Every launch"
    if series.quantity != TIME:
        what = "Every repeat: its launch over the base's launch beside it, so that drift cancels"
    caption = f"{what}, and the median of each commit. The vertical axis does not begin at 0."
    commits = [history.names[state] for state in series.states]
    column = "seconds" if series.quantity == TIME else "efficiency"
    table = pd.DataFrame({"commit": commits, column: series.values})
    return PageFigure(picture=picture, title=title.capitalize(), caption=caption, table=table)


def _medians(series: CostSeries, places: int = 0) -> dict[int, str]:
    """Return the median of each state that has values, in words; an efficiency with `places` decimal places."""
    states = np.array(series.states)
    medians = {state: float(np.median(series.values[states == state])) for state in dict.fromkeys(series.states)}
    as_text = units.seconds if series.quantity == TIME else lambda value: units.percent(value, places)
    return {state: as_text(value) for state, value in medians.items()}


def _paint(axes: Axes, history: History, series: CostSeries) -> None:
    values = series.values
    time = series.quantity == TIME
    factor, unit = time_unit(float(values.max())) if time else (1.0, "")
    values = values * factor
    places = np.arange(len(values))
    axes.plot(places, values, "o", color=MUTED.light, alpha=0.6, markersize=3.2, markeredgewidth=0, label="launch")
    states = np.array(series.states)
    for number, state in enumerate(dict.fromkeys(series.states)):
        launches = places[states == state]
        label = "median of a commit" if number == 0 else ""
        left = launches[0] - 0.4
        right = launches[-1] + 0.4
        axes.hlines(np.median(values[launches]), left, right, color=BLUE.light, linewidth=2, label=label)
    _commit_axis(axes, history, series)
    axes.set_ylabel(f"{series.quantity.capitalize()} ({unit})" if time else series.quantity.capitalize())
    if not time:
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(xmax=1, symbol=" %"))


def _commit_axis(axes: Axes, history: History, series: CostSeries) -> None:
    states = np.array(series.states)
    order = list(dict.fromkeys(series.states))[:: -(-len(set(series.states)) // _MOST_LABELS)]
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(order) > 4 else {}
    places = [float(np.flatnonzero(states == state).mean()) for state in order]
    axes.set_xticks(places, [_short(history.names[state]) for state in order], **turned)
    if turned:
        axes.tick_params(axis="x", pad=1)
    axes.set_xlabel("Commit, in the order of the first launch")


def _short(name: str) -> str:
    """Return what distinguishes a state: its versions, else eight digits of its commit, or after a plus of its code."""
    return name.partition(" (")[2].rstrip(")") or name.rpartition("+")[2][:8]


def history_answer(history: History) -> Answer:
    """Return what a history says: each commit's medians, a figure of every series."""
    workload = history.states[0].workload
    machine = machine_words(history.states[-1].machine)
    subject = sweep_sentences.subject(workload)
    starts = [launch.started for state in history.states for launch in state.launches]
    last = history.states[-1]
    conditions = (
        f"{last.scaling.capitalize()} scaling, preset {workload.preset}, synchronisation {workload.sync}, "
        f"{last.data_kind} data"
    )
    command = shlex.join(["harness", "history", last.label])
    medians = [_medians(series, 1) for series in history.series]
    rows = []
    for number, state in enumerate(history.states):
        first = min(launch.started for launch in state.launches)
        values = (by_state.get(number, units.NONE) for by_state in medians)
        rows.append((history.names[number], units.moment(first), str(len(state.launches)), *values))
    series_names = (_series_name(series).capitalize() for series in history.series)
    commits = Table(
        title="Commits",
        headings=("Commit", "First launch (UTC)", "Launches", *series_names),
        rows=rows,
        left=2,
        texts=(),
        note="Medians over launches. Commits are measured in sessions of their own, between which the machine changes "
        "too: `harness compare commit:A commit:B` trains two of them in turns. A plus sign marks uncommitted changes.",
    )
    figures = [_series_figure(history, series, subject) for series in history.series]
    return Answer(
        question=f"What was measured of {subject} at each commit?",
        sentence=history_sentence(history),
        table=commits,
        banners=measurement_warnings(history.names, history.states),
        data={"states": commits.rows},
        facts=facts([("Machine", machine), ("Date", days(starts)), ("Study", conditions)]),
        sections=(
            Section(title="Figures", name="figures", elements=figures),
            Section(title="Commits", name="commits", elements=[commits]),
        ),
        command=command,
        kind="history",
        place=f"history-{workload.name}-{workload.preset}",
        title=f"History of {subject}",
        when=max(starts),
        machine=machine,
    )


def history_sentence(history: History) -> str:
    """Return the whole history in a sentence."""
    launches = sum(len(state.launches) for state in history.states)
    over = f"{units.plural(len(history.states), 'commit')} in {units.plural(launches, 'launch')}"
    return f"{over}; `harness compare commit:A commit:B` trains two of them in turns."
