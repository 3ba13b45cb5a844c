"""The history of a study as a page that stands alone, with its figures and numbers as files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.analysis.history import Change, History
from harness.analysis.quantities import TIME
from harness.files import folder_atomic
from harness.report import captions, numbers, render
from harness.report.history_figures import history_blocks, series_name, series_values
from harness.report.page_parts import PAGE, check_replaceable, write_figures


@dataclass(frozen=True, kw_only=True, slots=True)
class StateRow:
    """One commit's row: `medians` has one text for each series, a dash where it was not measured."""

    commit: str
    since: str
    launches: int
    medians: tuple[str, ...]


def write_history(history: History, reports: Path) -> Path:
    """Write ``REPORTS/history-<workload>/index.html`` whole or not at all, and return its path.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    workload = history.states[0].workload
    target = reports / f"history-{workload.name}-{workload.preset}"
    check_replaceable(target)
    subject = captions.subject(workload)
    blocks = history_blocks(history, subject)
    with folder_atomic(target) as staging:
        write_figures(staging, blocks)
        content = render.page(
            "history.html.j2",
            subject=subject,
            headline=headline(history),
            conditions=_conditions(history),
            changes=[sentence(history, change) for change in history.changes],
            names=[series_name(series) for series in history.series],
            rows=state_rows(history),
            figures=blocks,
        )
        (staging / PAGE).write_text(content, encoding="utf-8")
    return target / PAGE


def headline(history: History) -> str:
    """Return the whole history in one sentence."""
    launches = sum(len(state.launches) for state in history.states)
    over = f"{numbers.plural(len(history.states), 'commit')} and {numbers.plural(launches, 'launch')}"
    if not history.changes:
        return f"No change beyond the noise over {over}."
    return f"{numbers.plural(len(history.changes), 'change')} beyond the noise over {over}."


def sentence(history: History, change: Change) -> str:
    """Return what changed, by how much, and where."""
    word = "lost" if change.loss > 0 else "gained"
    what = "speed" if change.series.quantity == TIME else "efficiency"
    size = (
        f"{numbers.percent(abs(change.loss), 1)} of the {what} {word} (noise floor {numbers.percent(change.floor, 1)})"
    )
    if change.state is None:
        number = change.series.states[change.index]
        where = f"among launches of {history.states[number].software.name}: not the code, so look at the machine"
    else:
        after = history.states[change.state].software.name
        where = f"at {after}" + _before(history, change)
    return f"{series_name(change.series).capitalize()}: {size}, {where}"


def _conditions(history: History) -> str:
    """Return what all launches have in common."""
    state = history.states[-1]
    machine, workload = state.machine, state.workload
    return (
        f"{state.scaling.capitalize()} scaling, preset {workload.preset}, synchronisation {workload.sync}, "
        f"{state.data_kind} data; on {machine.hostname}: {machine.cpu}, {numbers.plural(machine.cores, 'core')}."
    )


def state_rows(history: History) -> tuple[StateRow, ...]:
    """Return one row for each state of the code, oldest first."""
    return tuple(
        StateRow(
            commit=state.software.name,
            since=numbers.moment(min(launch.started for launch in state.launches)),
            launches=len(state.launches),
            medians=tuple(_medians(history, number)),
        )
        for number, state in enumerate(history.states)
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


def _before(history: History, change: Change) -> str:
    earlier = [state for state in dict.fromkeys(change.series.states) if change.state and state < change.state]
    return f" after {history.states[earlier[-1]].software.name}" if earlier else ""
