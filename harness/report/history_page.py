"""The history of a study as a page that stands alone: a figure for each series, and its numbers as files."""

import shlex
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from harness.analysis import numbers
from harness.analysis.stats import SITTING
from harness.regression.history import ChangePoint, CostSeries, History
from harness.regression.quantities import TIME
from harness.report import captions
from harness.report.answer import Answer, FigureBlock, Items, Section, Table, facts
from harness.report.axes import time_unit
from harness.report.launch_summary import days, machine_words
from harness.report.provenance import measured_origin
from harness.report.svg import BLUE, MUTED, VERMILLION, Picture, draw

_MOST_LABELS = 12


def history_blocks(history: History, subject: str) -> tuple[FigureBlock, ...]:
    """Return the figures of every series, with the numbers behind them."""
    return tuple(_block(history, series, subject) for series in history.series)


def series_name(series: CostSeries) -> str:
    """Return a series as a reader names it: ``epoch time on 2 ranks``."""
    where = f"on {numbers.ranks(series.layout.ranks)}" if series.layout else "of all points"
    return f"{series.quantity} {where}"


def series_values(series: CostSeries) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what a reader sees of the costs: seconds, or an efficiency as a fraction."""
    return np.exp(series.costs if series.quantity == TIME else -series.costs)


def _block(history: History, series: CostSeries, subject: str) -> FigureBlock:
    changes = [change for change in history.changes if change.series is series]
    name = f"{series.quantity}-{series.layout or 'all'}".replace(" ", "-")
    title = series_name(series)
    picture: Picture = draw(
        name,
        f"{title} of {subject} over commits",
        lambda axes: _paint(axes, history, series, changes),
        numbers=_spoken(history, series),
    )
    found = "; ".join(f"{numbers.percent(abs(c.loss), 1)} {'lost' if c.loss > 0 else 'gained'}" for c in changes)
    paired = "Every repeat: its launch over the base's launch beside it, so that drift falls out, and the median"
    caption = (
        ("Every launch, the median" if series.quantity == TIME else paired)
        + " of each commit, "
        + (f"and {numbers.plural(len(changes), 'change')}: {found}." if found else "and no change.")
    )
    caption += " The vertical axis does not begin at 0."
    return FigureBlock(picture=picture, title=title.capitalize(), caption=caption, table=_table(history, series))


def _spoken(history: History, series: CostSeries) -> str:
    """Return every state's median to those who cannot see the figure."""
    states, values = np.array(series.states), series_values(series)
    told = numbers.seconds if series.quantity == TIME else numbers.percent
    return "; ".join(
        f"{history.names[n]}: {told(float(np.median(values[states == n])))}" for n in dict.fromkeys(states)
    )


def _paint(axes: Axes, history: History, series: CostSeries, changes: list[ChangePoint]) -> None:
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


def _commit_axis(axes: Axes, history: History, series: CostSeries) -> None:
    states = np.array(series.states)
    order = list(dict.fromkeys(series.states))
    step = -(-len(order) // _MOST_LABELS)
    names = [_short(history.names[state]) for state in order]
    middles = {float(np.flatnonzero(states == state).mean()): name for state, name in zip(order, names, strict=True)}
    shown = list(middles)[::step]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: middles.get(value, "")))
    if len(shown) > 4:
        axes.tick_params(axis="x", pad=1)
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_xlabel("Commit, in the order of the first launch")


def _short(name: str) -> str:
    """Return what tells a state apart: its versions, else eight digits of its commit or of the code behind a plus."""
    return name.partition(" (")[2].rstrip(")") or name.rpartition("+")[2][:8]


def _table(history: History, series: CostSeries) -> pd.DataFrame:
    column = "seconds" if series.quantity == TIME else "efficiency"
    commits = [history.names[state] for state in series.states]
    return pd.DataFrame({"commit": commits, column: series_values(series)})


def history_answer(history: History) -> Answer:
    """Return what a history says: each commit's medians, the commits at which it changed, a figure of every series."""
    workload = history.states[0].workload
    machine = machine_words(history.states[-1].machine)
    subject = captions.subject(workload)
    starts = [launch.started for state in history.states for launch in state.launches]
    changes = [f"{sentence(history, change)}." for change in history.changes]
    command = shlex.join(["harness", "history", history.states[-1].label])
    commits = Table(
        title="Commits",
        headings=(
            "Commit", "First launch (UTC)", "Launches", *(series_name(one).capitalize() for one in history.series)
        ),
        rows=[
            (
                history.names[number],
                numbers.moment(min(launch.started for launch in state.launches)),
                str(len(state.launches)),
                *_medians(history, number),
            )
            for number, state in enumerate(history.states)
        ],
        left=2,
        texts=(),
        note="Medians over launches. Changes are found by E-divisive (Matteson and James, 2014) among single launches, "
        "at a level of 5 %, and kept when they exceed the noise floor of launches of the same commit. A plus sign "
        "marks uncommitted changes.",
    )  # fmt: skip
    return Answer(
        question=f"Did {subject} change from commit to commit?",
        sentence=" ".join([headline(history), *changes[:1]]),
        table=commits,
        data={"states": commits.rows, "changes": changes},
        facts=facts([("Machine", machine), ("Date", days(starts)), ("Study", _conditions(history))]),
        sections=(
            Section(title="", name="", blocks=[Items(texts=changes)] if changes else []),
            Section(title="Figures", name="figures", blocks=history_blocks(history, subject)),
            Section(title="Commits", name="commits", blocks=[commits]),
        ),
        command=command,
        kind="history",
        place=f"history-{workload.name}-{workload.preset}",
        title=f"History of {subject}",
        when=max(starts),
        machine=machine,
        origin=measured_origin(command, history.states),
    )


def headline(history: History) -> str:
    """Return the whole history in a sentence, and what its errors rest on."""
    launches = sum(len(state.launches) for state in history.states)
    over = f"{numbers.plural(len(history.states), 'commit')} and {numbers.plural(launches, 'launch')}"
    found = numbers.plural(len(history.changes), "change") if history.changes else "No change"
    assumed = f" Between sittings a deviation of {numbers.percent(SITTING)} is assumed." if history.assumed else ""
    return f"{found} beyond the noise over {over}.{assumed}"


def sentence(history: History, change: ChangePoint) -> str:
    """Return what changed, by how much, and where."""
    word = "lost" if change.loss > 0 else "gained"
    what = "speed" if change.series.quantity == TIME else "efficiency"
    size = (
        f"{numbers.percent(abs(change.loss), 1)} of the {what} {word} (noise floor {numbers.percent(change.floor, 1)})"
    )
    if change.state is None:
        number = change.series.states[change.index]
        where = f"among launches of {history.names[number]}: not the code, so look at the machine"
    else:
        after = history.names[change.state]
        where = f"at {after}" + _before(history, change)
    return f"{series_name(change.series).capitalize()}: {size}, {where}"


def _conditions(history: History) -> str:
    """Return what all launches have in common."""
    state = history.states[-1]
    workload = state.workload
    return (
        f"{state.scaling.capitalize()} scaling, preset {workload.preset}, synchronisation {workload.sync}, "
        f"{state.data_kind} data"
    )


def _medians(history: History, state: int) -> Sequence[str]:
    texts = []
    for series in history.series:
        own = series_values(series)[np.array(series.states) == state]
        if not len(own):
            texts.append(numbers.NONE)
            continue
        median = float(np.median(own))
        texts.append(numbers.seconds(median) if series.quantity == TIME else numbers.percent(median, 1))
    return texts


def _before(history: History, change: ChangePoint) -> str:
    earlier = [state for state in dict.fromkeys(change.series.states) if change.state and state < change.state]
    return f" after {history.names[earlier[-1]]}" if earlier else ""
