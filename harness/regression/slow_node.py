"""A node whose ranks are slower than those of the other nodes of the same launches: which, by how much, since when.

A launch has a useful time of a row for each of its nodes. All nodes share what the launch as a whole is slower by, so a
node is compared with the others of its launch. The newest session decides whether a node is slower. How far nodes
differ by chance from launch to launch is told by all sessions on the same nodes: it is the rest of the two-way table of
launches and nodes. Simulated in tests/regression/test_slow_node.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from scipy.special import stdtr

from harness.analysis.confidence_intervals import LEVEL
from harness.regression.change_threshold import DEFAULT_THRESHOLD
from harness.regression.measurement import MeasuredLaunch, Measurement, Values, as_cost, as_slowdown, session_numbers

_FEWEST_FREEDOM = 2
_ALIKE = 0.01  # by as much nodes of one kind may differ always


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowNode:
    """A node that is slower than the `others`, so many nodes, in each of the `sessions` newest sessions on them.

    `slowdown` is the part of their speed that it lacks, a mean over these sessions. `since` is when the first of them
    began.
    """

    name: str
    others: int
    slowdown: float
    sessions: int
    since: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class _NodeTimes:
    """The logarithms of the useful seconds of a row in one session, [launches, nodes]."""

    started: datetime
    costs: Values

    @property
    def excess(self) -> Values:
        """What each node has more than the mean of the others, [nodes]."""
        nodes = self.costs.shape[1]
        mean = self.costs.mean(axis=0)
        above: Values = (mean - mean.mean()) * nodes / (nodes - 1)
        return above

    @property
    def rest(self) -> Values:
        """What neither the launch nor the node explains, [launches, nodes]."""
        by_launch = self.costs - self.costs.mean(axis=1, keepdims=True)
        rest: Values = by_launch - by_launch.mean(axis=0)
        return rest

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the rest."""
        launches, nodes = self.costs.shape
        freedom: int = (launches - 1) * (nodes - 1)
        return freedom


def sessions_of(measurement: Measurement) -> tuple[tuple[MeasuredLaunch, ...], ...]:
    """Return the launches of `measurement` by session, in order of time."""
    by_session: dict[int, list[MeasuredLaunch]] = {}
    for launch, number in session_numbers(measurement).items():
        by_session.setdefault(number, []).append(launch)
    return tuple(tuple(by_session[number]) for number in sorted(by_session))


def slow_node(sessions: Sequence[Sequence[MeasuredLaunch]]) -> SlowNode | None:
    """Return the node that is slower in the last of `sessions`, in order of time, and in those before it without a gap.

    None where none is: it has to be slower than nodes of one kind may be (1 %), with an error of 5 % that the nodes
    share, and the estimate above DEFAULT_THRESHOLD. Only launches of one layout count, on the nodes of the last
    one on most ranks.
    """
    last = max(sessions[-1], key=lambda launch: (launch.layout.ranks, launch.started))
    nodes = sorted(host.name for host in last.hosts)
    if len(nodes) < 2:
        return None
    tables = [_node_times(launches, last, nodes) for launches in sessions]
    times = [table for table in tables if table is not None]
    if tables[-1] is None or sum(table.freedom for table in times) < _FEWEST_FREEDOM:
        return None
    newest = times[-1]
    worst = int(newest.excess.argmax())
    limit = as_cost(DEFAULT_THRESHOLD)
    if newest.excess[worst] < limit or _chance(newest, times) > (1 - LEVEL) / len(nodes):
        return None
    series = []
    for table in reversed(times):
        if table.excess[worst] < limit:
            break
        series.append(table)
    return SlowNode(
        name=nodes[worst],
        others=len(nodes) - 1,
        slowdown=as_slowdown(float(np.mean([table.excess[worst] for table in series]))),
        sessions=len(series),
        since=series[-1].started,
    )


def _node_times(launches: Sequence[MeasuredLaunch], last: MeasuredLaunch, nodes: Sequence[str]) -> _NodeTimes | None:
    """Return the times of the `launches` of the layout of `last` on the same `nodes`, None without one."""
    rows = []
    for launch in launches:
        seconds = {host.name: host.row_seconds for host in launch.hosts if host.row_seconds is not None}
        if launch.layout == last.layout and sorted(seconds) == list(nodes):
            rows.append([math.log(seconds[node]) for node in nodes])
    if not rows:
        return None
    return _NodeTimes(started=min(launch.started for launch in launches), costs=np.array(rows))


def _chance(newest: _NodeTimes, times: Sequence[_NodeTimes]) -> float:
    """Return the p-value of nodes that are alike beside the largest excess of the `newest` session."""
    freedom = sum(table.freedom for table in times)
    variance = sum(float((table.rest**2).sum()) for table in times) / freedom
    launches, nodes = newest.costs.shape
    error = math.sqrt(variance * nodes / (nodes - 1) / launches)
    if error == 0:
        return 0.0
    return float(stdtr(freedom, (_ALIKE - float(newest.excess.max())) / error))
