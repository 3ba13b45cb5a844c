"""The history of a study as a page that stands alone: a control chart for each quantity, and its numbers as files."""

import math
import shlex
from collections.abc import Sequence
from typing import Any

import pandas as pd

from harness.analysis import units
from harness.analysis.sessions import STEP
from harness.base.own_matplotlib import Axes, ticker
from harness.regression.history import ControlChart, History, HistorySession
from harness.regression.measurement import quantity_value, state_names
from harness.regression.session_check import MADE_UP
from harness.regression.session_model import LevelChange, LimitRun
from harness.report import sweep_sentences
from harness.report.answer import Answer, PageFigure, Section, Table, facts
from harness.report.measurement_words import measurement_warnings, skipped_notes, slow_node_words
from harness.report.rank_axes import time_unit
from harness.report.run_words import days, machine_words
from harness.report.svg import BLUE, MUTED, ORANGE, draw

_MOST_LABELS = 12
_MOST_CHANGES = 4  # of a stack, in a cell


def history_answer(history: History, *, skipped: Sequence[str] = ()) -> Answer:
    """Return what a history says: each session's means, a control chart of every quantity.

    `skipped` has a sentence on each sweep that could not be read.
    """
    last = history.sessions[-1].measurement
    workload = last.workload
    machine = machine_words(last.machine)
    subject = sweep_sentences.subject(workload)
    measured = list(dict.fromkeys(session.measurement.label for session in history.sessions))
    by_label = {session.measurement.label: session.measurement for session in history.sessions}
    starts = [session.started for session in history.sessions]
    conditions = (
        f"{last.scaling.capitalize()} scaling, preset {workload.preset}, synchronisation {workload.sync}, "
        f"{last.data_kind} data"
    )
    table = _session_table(history)
    return Answer(
        question=f"How did {subject} change from session to session?",
        sentence=history_sentence(history),
        details=history_details(history),
        table=table,
        banners=measurement_warnings(measured, [by_label[label] for label in measured]),
        data={"sessions": table.rows, "charts": history.charts, "slow_node": history.slow_node},
        notes=skipped_notes(skipped),
        facts=facts([("Machine", machine), ("Date", days(starts)), ("Study", conditions)]),
        sections=(
            Section(
                title="Control charts",
                name="figures",
                elements=[_chart_figure(history, chart, subject) for chart in history.charts],
            ),
            Section(title="Levels", name="levels", elements=[_level_table(history)]),
            Section(title="Sessions", name="sessions", elements=[table]),
        ),
        command=shlex.join(["harness", "history", last.label]),
        kind="history",
        place=f"history-{workload.name}-{workload.preset}",
        title=f"History of {subject}",
        when=max(starts),
        machine=machine,
    )


def history_sentence(history: History) -> str:
    """Return the whole history in a sentence: since when it is beyond the limits, else where the level changed."""
    over = units.plural(len(history.sessions), "session")
    beyond = _worst([chart for chart in history.charts if chart.beyond])
    if beyond is not None and beyond.beyond is not None:
        run = beyond.beyond
        all_sessions = f"all {run.sessions} sessions from {_begin(history, beyond, run.first)} UTC on"
        return f"{over}: {_chart_name(beyond)} is beyond the baseline's limits in {all_sessions}."
    changed = _worst([chart for chart in history.charts if chart.change])
    if changed is not None and changed.change is not None:
        since = _begin(history, changed, changed.change.first)
        return f"{over}: {_chart_name(changed)} changed by {_step(changed, changed.change)} from {since} UTC on."
    last = len(history.sessions) - 1
    outside = [chart for chart in history.charts if chart.is_outside(last)]
    if outside:
        names = ", ".join(_chart_name(chart) for chart in outside[:3])
        return f"{over}: no change of level is sure; the last one is beyond the baseline's limits in {names}."
    limits = f"the limits of baseline '{history.baseline}'" if history.baseline else ""
    inside = f", and the last one is within {limits}" if limits else "; a baseline would give limits"
    return f"{over}: no change of level is sure{inside}."


def history_details(history: History) -> tuple[str, ...]:
    """Return more of what the sentence names: what changed before it, the other charts, a slow node."""
    lines = []
    beyond = [chart for chart in history.charts if chart.beyond]
    named = _worst(beyond) or _worst([chart for chart in history.charts if chart.change])
    if named is not None:
        lines.append(_chart_line(history, named))
        place = named.beyond or named.change
        assert place is not None
        stack = _stack_words(history.sessions[named.points[place.first].session])
        lines.append(f"Before that session changed: {stack}." if stack else "Nothing of the stack changed there.")
    others = [_chart_name(chart) for chart in history.charts if chart is not named and (chart.beyond or chart.change)]
    if others:
        lines.append(f"Also: {_listed(others)} (table of levels).")
    if history.slow_node is not None:
        lines.append(slow_node_words(history.slow_node))
    return tuple(lines)


def _worst(charts: Sequence[ControlChart]) -> ControlChart | None:
    """Return which of `charts` to name: a factor before what it makes up, of these the one that changed most."""

    def size(chart: ControlChart) -> tuple[bool, float]:
        change = chart.beyond or chart.change
        return chart.quantity not in MADE_UP, abs(change.step) if change else 0.0

    return max(charts, key=size, default=None)


def _begin(history: History, chart: ControlChart, place: int) -> str:
    """Return when the session at this place of `chart` began."""
    return units.moment(history.sessions[chart.points[place].session].started)


def _chart_line(history: History, chart: ControlChart) -> str:
    """Return by how much a chart is off the baseline, and whether its level changed by its own sessions."""
    words = []
    if chart.beyond is not None:
        words.append(f"These sessions differ from the baseline by {_step(chart, chart.beyond)} on average")
    if chart.change is not None:
        since = _begin(history, chart, chart.change.first)
        words.append(f"a change of level by {_step(chart, chart.change)} from {since} UTC on is sure")
    else:
        words.append("a change of level is not sure by the series alone")
    line = "; ".join(words)
    return f"{line[0].upper()}{line[1:]}."


def _stack_words(session: HistorySession) -> str:
    """Return what of the stack changed before a session, an empty text for nothing."""
    return _listed([f"{line.name} {line.before or 'not set'} to {line.now or 'not set'}" for line in session.changes])


def _step(chart: ControlChart, change: LevelChange | LimitRun) -> str:
    """Return by how much the level changed, in per cent of time or efficiency; its costs are logarithms."""
    sign = 1 if chart.quantity == STEP else -1
    return f"{100 * math.expm1(sign * change.step):+.1f}\u00a0%"


def _chart_name(chart: ControlChart) -> str:
    """Return a chart as a reader names it: ``step time on 2 ranks``."""
    return f"{chart.quantity} on {units.ranks(chart.layout.ranks)}"


def _session_table(history: History) -> Table:
    names = state_names([session.measurement for session in history.sessions])
    rows = []
    for number, session in enumerate(history.sessions):
        outside = [_chart_name(chart) for chart in history.charts if chart.is_outside(number)]
        rows.append(
            (
                units.moment(session.started),
                names[number],
                str(session.launches),
                _listed(session.nodes) or units.NONE,
                _listed(outside) or units.NONE,
                _stack_words(session) or units.NONE,
            )
        )
    return Table(
        title="Sessions",
        headings=("Session (UTC)", "Commit", "Launches", "Nodes", "Beyond the limits", "Stack changed"),
        rows=rows,
        left=2,
        texts=(3, 4, 5),
        wide=(3,),
        note="A plus sign marks uncommitted changes. `harness check` judges a session.",
    )


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _MOST_CHANGES
    return "; ".join([*names[:_MOST_CHANGES], *([f"{more} more"] if more > 0 else [])])


def _level_table(history: History) -> Table:
    rows = []
    for chart in history.charts:
        limits = units.NONE
        if chart.limits is not None:
            ends = (chart.limits.low, chart.limits.high)
            limits = " to ".join(quantity_value(chart.quantity, end) for end in ends)
        beyond = units.NONE
        if chart.beyond is not None:
            beyond = f"{_step(chart, chart.beyond)} from {_begin(history, chart, chart.beyond.first)}"
        change = units.NONE
        if chart.change is not None:
            change = f"{_step(chart, chart.change)} from {_begin(history, chart, chart.change.first)}"
        level = units.NONE if chart.level is None else quantity_value(chart.quantity, chart.level)
        last = quantity_value(chart.quantity, chart.points[-1].value)
        rows.append((_chart_name(chart).capitalize(), level, limits, last, beyond, change))
    return Table(
        title="Levels",
        headings=("Quantity", "Baseline", "Limits", "Last session", "Beyond the limits", "Level changed"),
        rows=rows,
        left=1,
        texts=(4, 5),
        note="The last session's mean over its blocks. Beyond the limits: three or more of the newest sessions, all of "
        "them, on one side. The numbers of every session are in the files of the figures.",
    )


def _chart_figure(history: History, chart: ControlChart, subject: str) -> PageFigure:
    name = f"{chart.quantity}-{chart.layout}".replace(" ", "-")
    title = _chart_name(chart)
    starts = [units.moment(history.sessions[point.session].started) for point in chart.points]
    values = [quantity_value(chart.quantity, point.value) for point in chart.points]
    picture = draw(
        name,
        f"{title} of {subject} over sessions",
        lambda axes: _paint(axes, history, chart),
        numbers="; ".join(f"{start}: {value}" for start, value in zip(starts, values, strict=True)),
    )
    band = f" The band is what a new session is within with 95 %, if it is as baseline '{history.baseline}'."
    caption = (
        f"Each session's mean, with its 95 % CI over blocks.{band if chart.limits else ''} Dotted lines: the "
        "stack changed. The vertical axis does not begin at 0."
    )
    table = pd.DataFrame(
        {
            "session": starts,
            "value": [point.value for point in chart.points],
            "low": [point.interval.low if point.interval else None for point in chart.points],
            "high": [point.interval.high if point.interval else None for point in chart.points],
        }
    )
    return PageFigure(picture=picture, title=title.capitalize(), caption=caption, table=table)


def _paint(axes: Axes, history: History, chart: ControlChart) -> None:
    time = chart.quantity == STEP
    factor, unit = time_unit(max(point.value for point in chart.points)) if time else (1.0, "")
    if chart.limits is not None and chart.level is not None:
        axes.axhspan(chart.limits.low * factor, chart.limits.high * factor, color=MUTED.light, alpha=0.15)
        axes.axhline(chart.level * factor, color=MUTED.light, linewidth=1.0, label="baseline")
    for point in chart.points:
        colour = (ORANGE if point in chart.outside else BLUE).light
        if point.interval is not None:
            ends = [point.interval.low * factor, point.interval.high * factor]
            axes.plot([point.session, point.session], ends, color=colour, linewidth=1.4)
        axes.plot([point.session], [point.value * factor], "o", color=colour, markersize=4)
    for number, session in enumerate(history.sessions):
        if session.changes:
            axes.axvline(number - 0.5, color=MUTED.light, linewidth=1.0, linestyle=":")
    if chart.change is not None:
        first = chart.points[chart.change.first].session
        axes.axvline(first - 0.5, color=ORANGE.light, linewidth=1.4, label="the level changed")
    _session_axis(axes, history)
    axes.set_ylabel(f"{chart.quantity.capitalize()} ({unit})" if time else chart.quantity.capitalize())
    if not time:
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(xmax=1, symbol=" %"))


def _session_axis(axes: Axes, history: History) -> None:
    count = len(history.sessions)
    labelled = range(0, count, -(-count // _MOST_LABELS))
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(labelled) > 4 else {}
    labels = [f"{history.sessions[place].started:%m-%d %H:%M}" for place in labelled]
    axes.set_xticks(list(labelled), labels, **turned)
    if turned:
        axes.tick_params(axis="x", pad=1)
    axes.set_xlim(-0.6, count - 0.4)
    axes.set_xlabel("Session, by its first launch (UTC)")
