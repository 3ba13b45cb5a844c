"""A slow node is named, and no other: simulated launches whose nodes, starts and sessions all have noise."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from harness.regression.history import history_of
from harness.regression.measurement import HostTime, MeasuredLaunch
from harness.regression.session_check import check_sessions
from harness.regression.slow_node import SlowNode, slow_node
from harness.report.answer import plain
from harness.report.history_answer import history_details
from harness.report.session_answer import session_answer
from tests.labs.histories import make_measurement, make_summary
from tests.labs.sentences import says

SLOW = "node1"
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def normal(deviation: float) -> Draw:
    return lambda random, shape: random.normal(0, deviation, shape)


def heavy_tails(deviation: float) -> Draw:
    return lambda random, shape: deviation / 3**0.5 * random.standard_t(3, shape)


def simulated(
    random: np.random.Generator,
    noise: Draw,
    *,
    nodes: int,
    sessions: int,
    slower: float = 0.0,
    since: int = 0,
    apart: float = 0.0,
    blocks: int = 3,
) -> list[list[MeasuredLaunch]]:
    """Return `sessions` a day apart in which `SLOW` needs so much more time from the session `since` on.

    A launch as a whole has a deviation of 3 %, its nodes that of `noise`. Nodes always differ by the deviation `apart`.
    """
    own = random.normal(0, apart, nodes)
    found = []
    for session in range(sessions):
        common = random.normal(0, 0.03, (blocks, 1))
        costs = common + own + noise(random, (blocks, nodes))
        if session >= since:
            costs[:, 1] += math.log1p(slower)
        launches = []
        for block in range(blocks):
            hosts = tuple(
                HostTime(name=f"node{node}", row_seconds=math.exp(costs[block, node])) for node in range(nodes)
            )
            summary = make_summary(nodes, session * blocks + block, 1.0, minutes=1440 * session + block)
            launches.append(replace(summary, hosts=hosts))
        found.append(launches)
    return found


def named(noise: Draw, *, draws: int, nodes: int, sessions: int, slower: float = 0.0, apart: float = 0.0) -> float:
    """Return how often a node is named; where one is slower, how often that one is."""
    random = np.random.default_rng(1)
    count = 0
    for _ in range(draws):
        found = slow_node(simulated(random, noise, nodes=nodes, sessions=sessions, slower=slower, apart=apart))
        count += found is not None and (not slower or found.name == SLOW)
    return count / draws


@pytest.mark.parametrize(("nodes", "sessions"), [(2, 1), (2, 4), (4, 1), (4, 4), (8, 4)])
def test_nodes_that_are_alike_are_rarely_named(nodes: int, sessions: int) -> None:
    assert named(normal(0.02), draws=300, nodes=nodes, sessions=sessions) <= 0.05


@pytest.mark.parametrize(("nodes", "sessions", "slower", "least"), [(2, 4, 0.05, 0.9), (4, 4, 0.1, 0.99)])
def test_a_slow_node_is_named(nodes: int, sessions: int, slower: float, least: float) -> None:
    assert named(normal(0.01), draws=150, nodes=nodes, sessions=sessions, slower=slower) >= least


@pytest.mark.campaign
@pytest.mark.slow
def test_slow_nodes_on_all_machines() -> None:
    """Prints the table of docs/regression.md."""
    for nodes, sessions, deviation in itertools.product((2, 4, 8), (1, 4, 8), (0.01, 0.02)):
        noise = normal(deviation)
        where = {"nodes": nodes, "sessions": sessions}
        alike = named(noise, draws=1000, **where)
        apart = named(noise, draws=1000, **where, apart=0.005)
        tails = named(heavy_tails(deviation), draws=1000, **where)
        power = [named(noise, draws=200, **where, slower=slower) for slower in (0.05, 0.1)]
        print(f"{nodes} nodes, {sessions} sessions, {deviation:.0%}: {alike:.1%} {apart:.1%} {tails:.1%}, {power}")
        assert max(alike, apart, tails) <= 0.05


def named_in(sessions: list[list[MeasuredLaunch]]) -> SlowNode:
    found = slow_node(sessions)
    assert found is not None
    return found


def test_it_is_told_since_which_session_and_by_how_much() -> None:
    sessions = simulated(np.random.default_rng(2), normal(0.01), nodes=4, sessions=7, slower=0.25, since=4)
    found = named_in(sessions)
    assert (found.name, found.others, found.sessions) == (SLOW, 3, 3)
    assert found.since == sessions[4][0].started
    assert found.slowdown == pytest.approx(0.2, abs=0.02)


def test_a_node_that_is_fast_again_is_not_slow() -> None:
    random = np.random.default_rng(2)
    slow = simulated(random, normal(0.01), nodes=2, sessions=4, slower=0.2)
    alike = simulated(random, normal(0.01), nodes=2, sessions=1)
    assert slow_node([*slow, *alike]) is None


def test_one_node_or_unknown_times_tell_nothing() -> None:
    sessions = simulated(np.random.default_rng(2), normal(0.01), nodes=2, sessions=3, slower=0.2)
    alone = [[replace(launch, hosts=launch.hosts[:1]) for launch in launches] for launches in sessions]
    names_only = [
        [replace(launch, hosts=tuple(HostTime(name=host.name) for host in launch.hosts)) for launch in launches]
        for launches in sessions
    ]
    assert slow_node(alone) is None and slow_node(names_only) is None


def test_history_and_check_name_it() -> None:
    sessions = simulated(np.random.default_rng(2), normal(0.01), nodes=2, sessions=5, slower=0.2, since=3)
    for launches in sessions:
        launches += [
            replace(launch, layout=make_summary(1, 0, 1.0).layout, started=launch.started + timedelta(seconds=1))
            for launch in launches
        ]
    before = make_measurement([launch for launches in sessions[:4] for launch in launches])
    now = make_measurement([launch for launches in sessions[4:] for launch in launches])
    history = history_of([before, now], before)
    check = check_sessions(before, now)
    for found in (history.slow_node, check.slow_node):
        assert found is not None and (found.name, found.sessions) == (SLOW, 2)
    for details in (history_details(history), session_answer(check, "harness check").details):
        says(plain(" ".join(details)), SLOW, "slow", "2 newest sessions", str(sessions[3][0].started.date()))
