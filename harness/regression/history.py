"""A study over sessions: a control chart for each quantity, where the stack changed, and where the level did."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from harness.analysis.confidence_intervals import LEVEL, Interval, mean_over_blocks
from harness.analysis.sessions import STEP
from harness.regression.measurement import (
    MeasuredLaunch,
    Measurement,
    StackLine,
    compare_stacks,
    session_numbers,
    without,
)
from harness.regression.session_check import choose_scatter
from harness.regression.session_model import (
    LevelChange,
    LimitRun,
    ScatterSource,
    Sessions,
    level_change,
    limit_run,
    new_session_reach,
)
from harness.regression.session_samples import SessionSample, readable, session_samples
from harness.regression.slow_node import SlowNode, sessions_of, slow_node
from harness.schema.layout import Layout, layout_order

_USUAL_BLOCKS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class HistorySession:
    """One session of one state of the code: its measurement, when it began, its launches, what changed before it.

    `nodes` are the names of the hosts, none where they are not known.
    `changes` are the parts of the stack that differ from the session before.
    """

    measurement: Measurement
    started: datetime
    launches: int
    nodes: tuple[str, ...]
    changes: tuple[StackLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartPoint:
    """The mean of a session's blocks as a reader sees it, with its interval over blocks, None below 3."""

    session: int
    value: float
    interval: Interval | None
    blocks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlChart:
    """One quantity at one layout over the sessions.

    `level` is the baseline's mean and `limits` what a new session of the same level is within with 95 %; None without a
    baseline. `beyond` are the newest sessions that all lie beyond them. `change` is where the level changed. Places of
    both are among `points`.
    """

    quantity: str
    layout: Layout
    points: tuple[ChartPoint, ...]
    level: float | None
    limits: Interval | None
    beyond: LimitRun | None
    change: LevelChange | None

    @property
    def outside(self) -> tuple[ChartPoint, ...]:
        """The points beyond the limits."""
        limits = self.limits
        return tuple(point for point in self.points if limits and not limits.low <= point.value <= limits.high)

    def is_outside(self, session: int) -> bool:
        """Say whether the session of this number is beyond the limits."""
        return any(point.session == session for point in self.outside)


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """All sessions of one study on one machine, in order of time, and the charts of all quantities."""

    sessions: tuple[HistorySession, ...]
    charts: tuple[ControlChart, ...]
    baseline: str
    slow_node: SlowNode | None


def history_of(measured: Sequence[Measurement], baseline: Measurement | None = None) -> History:
    """Return the history of `measured` (at least one), all of one study and machine; each launch counts once.

    `baseline` is one of the study that gives the limits.
    """
    layouts = sorted({layout for measurement in measured for layout in measurement.layouts}, key=layout_order)
    distinct = _without_repeated(measured)
    places = _places(distinct)
    sessions: list[HistorySession] = []
    launches_of: list[tuple[MeasuredLaunch, ...]] = []
    for measurement, number in places:
        launches = sessions_of(measurement)[number]
        launches_of.append(launches)
        changes: tuple[StackLine, ...] = ()
        if sessions:
            lines = compare_stacks(sessions[-1].measurement, measurement)
            changes = tuple(line for line in lines if line.changed)
        started = min(launch.started for launch in launches)
        nodes = dict.fromkeys(host.name for launch in launches for host in launch.hosts)
        sessions.append(
            HistorySession(
                measurement=measurement,
                started=started,
                launches=len(launches),
                nodes=tuple(nodes),
                changes=changes,
            )
        )
    return History(
        sessions=tuple(sessions),
        charts=_charts(places, layouts, baseline),
        baseline=baseline.label if baseline else "",
        slow_node=slow_node(launches_of),
    )


_Place = tuple[Measurement, int]  # a measurement, and the number of one of its sessions


def _without_repeated(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return `measured`, each launch in the first of them that has it."""
    distinct: list[Measurement] = []
    for measurement in measured:
        rest = measurement
        for earlier in distinct:
            rest = without(rest, earlier)
        if rest.launches:
            distinct.append(rest)
    return distinct


def _places(measured: Sequence[Measurement]) -> list[_Place]:
    """Return the sessions of all of `measured` in order of time."""
    starts: dict[tuple[int, int], datetime] = {}
    for place, measurement in enumerate(measured):
        for launch, number in session_numbers(measurement).items():
            starts[place, number] = min(launch.started, starts.get((place, number), launch.started))
    return [(measured[place], number) for place, number in sorted(starts, key=lambda key: starts[key])]


def _charts(
    places: Sequence[_Place], layouts: Sequence[Layout], baseline: Measurement | None
) -> tuple[ControlChart, ...]:
    samples: dict[int, dict[tuple[str, Layout], SessionSample]] = {}
    for measurement, _ in places:
        if id(measurement) not in samples:
            samples[id(measurement)] = _samples_over(layouts[0], measurement)
    keys = list(dict.fromkeys(key for by_key in samples.values() for key in by_key))
    of_baseline = _samples_over(layouts[0], baseline) if baseline is not None else {}
    charts = []
    for key in sorted(keys, key=lambda key: layout_order(key[1])):
        blocks: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
        for place, (measurement, number) in enumerate(places):
            sample = samples[id(measurement)].get(key)
            if sample is not None and number in sample.numbers:
                blocks[place] = sample.sessions[sample.numbers.index(number)]
        charts.append(_chart(key, blocks, of_baseline.get(key), error=(1 - LEVEL) / len(keys)))
    return tuple(charts)


def _samples_over(base: Layout, measurement: Measurement) -> dict[tuple[str, Layout], SessionSample]:
    """Return the samples of `measurement` by quantity and layout; without launches of the `base`, the step times only.

    An efficiency over another base is another quantity.
    """
    samples = {sample.key: sample for sample in session_samples(measurement, measurement.layouts)}
    if measurement.layouts[0] == base:
        return samples
    return {key: sample for key, sample in samples.items() if sample.quantity == STEP}


def _chart(
    key: tuple[str, Layout],
    blocks: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]],
    baseline: SessionSample | None,
    *,
    error: float,
) -> ControlChart:
    quantity, layout = key
    points = []
    for session, costs in blocks.items():
        over_blocks = mean_over_blocks(costs)
        interval = _readable_interval(quantity, over_blocks.interval) if over_blocks else None
        value = readable(quantity, float(costs.mean()))
        points.append(ChartPoint(session=session, value=value, interval=interval, blocks=len(costs)))
    means = [float(costs.mean()) for costs in blocks.values()]
    limits = None
    beyond = None
    reach = _reach(quantity, baseline.sessions) if baseline is not None else None
    if baseline is not None and reach is not None:
        level = baseline.mean_cost
        limits = _readable_interval(quantity, Interval(low=level - reach, high=level + reach))
        beyond = limit_run(means, level, reach)
    return ControlChart(
        quantity=quantity,
        layout=layout,
        points=tuple(points),
        level=baseline.value if baseline else None,
        limits=limits,
        beyond=beyond,
        change=level_change(means, error=error),
    )


def _reach(quantity: str, sessions: Sessions) -> float | None:
    """Return how far the limits are from the mean of a baseline's `sessions`, None where these tell too little."""
    scatter = choose_scatter(quantity, sessions, (), {})
    most_blocks = max(map(len, sessions))
    if most_blocks == 1 and scatter.source != ScatterSource.COMPARED:
        return None
    return new_session_reach(sessions, scatter, 1 if most_blocks == 1 else _USUAL_BLOCKS)


def _readable_interval(quantity: str, costs: Interval) -> Interval:
    """Return an interval of logarithmic costs as a reader sees it, the smaller end first."""
    ends = sorted((readable(quantity, costs.low), readable(quantity, costs.high)))
    return Interval(low=ends[0], high=ends[1])
