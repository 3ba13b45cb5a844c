"""A study over commits: one series for each quantity, the steps in it, and which of them the code is to blame for.

Launches of a session share what the machine does, and so may sessions: a machine with two speeds that last makes
steps of its own, which launches alone never tell from a change of the code. The code is blamed by sessions only, where
neither chance nor a lasting speed of the machine puts them in the order that was measured; else nobody can tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

from harness.analysis.sessions import sessions
from harness.regression.baselines import Measurement, group_by_code, state_names
from harness.regression.checks import (
    CURVE,
    PRACTICAL,
    RELATIVE,
    TIME,
    CostSample,
    Values,
    as_cost,
    as_slowdown,
    samples,
)
from harness.schema.sweep import Layout

SHORTEST = 4  # launches before and after a change
CHANCE = 0.05  # of a split in a series without a change, as in the paper, and of blaming a commit for nothing
_PERMUTATIONS = 199


def change_points(values: Values, *, chance: float = CHANCE) -> tuple[int, ...]:
    """Return the indices, in order, at which a new chance of `values` [launches] begins.

    The permutations are seeded: the same series gives the same answer.
    """
    random = np.random.default_rng(0)
    found: list[int] = []
    parts = [(0, len(values))]
    while parts:
        begin, end = parts.pop()
        if end - begin < 2 * SHORTEST:
            continue
        distances = np.abs(np.subtract.outer(values[begin:end], values[begin:end]))
        split, gain = best_split(distances, SHORTEST)
        if _chance(distances, gain, random) > chance:
            continue
        found.append(begin + split)
        parts += [(begin, begin + split), (begin + split, end)]
    return tuple(sorted(found))


def best_split(distances: Values, shortest: int) -> tuple[int, float]:
    """Return the split with the greatest energy distance, scaled by n m / (n + m), and that distance."""
    size = len(distances)
    splits = np.arange(shortest, size - shortest + 1)
    # Sums over the square [0, k) x [0, k) for every k, over its complement, and over what lies between.
    square = np.concatenate([[0.0], np.cumsum(np.cumsum(distances, axis=0), axis=1).diagonal()])
    rows = np.concatenate([[0.0], np.cumsum(distances.sum(axis=1))])
    before = square[splits]
    between = rows[splits] - before
    after = square[size] - before - 2 * between
    n, m = splits.astype(float), (size - splits).astype(float)
    energy: NDArray[np.float64] = 2 * between / (n * m) - before / (n * (n - 1)) - after / (m * (m - 1))
    gains = n * m / (n + m) * energy
    best = int(np.argmax(gains))
    return int(splits[best]), float(gains[best])


def _chance(distances: Values, gain: float, random: np.random.Generator) -> float:
    """Return how often launches in random order have a split at least as good."""
    better = 0
    for _ in range(_PERMUTATIONS):
        order = random.permutation(len(distances))
        better += best_split(distances[np.ix_(order, order)], SHORTEST)[1] >= gain
    return (better + 1) / (_PERMUTATIONS + 1)


_NEAR = 2  # launches by which a change may be found too early or too late


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSeries:
    """One quantity at one layout (None: the curve). `costs` [launches or blocks] run through all states.

    `states` [as costs] is the number of the state (of `History.states`) that each belongs to, `sessions` [as costs]
    the number of its session, in order of time; each state was measured in sessions of its own.
    """

    quantity: str
    layout: Layout | None
    costs: Values
    states: tuple[int, ...]
    sessions: tuple[int, ...]

    @property
    def values(self) -> Values:
        """What a reader sees of the costs: seconds, or an efficiency as a fraction."""
        values: Values = np.exp(self.costs if self.quantity == TIME else -self.costs)
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A step in a series at launch `index`, by `slowdown` (above 0 is worse) of the speed or the efficiency.

    `state` is the first state after the step, None where the step lies among launches of the same code: then
    it was not the code. `doubt` says why nobody can tell whether that state made the step, empty where it did.
    """

    series: CostSeries
    index: int
    slowdown: float
    state: int | None
    doubt: str = ""

    @property
    def blamed(self) -> bool:
        """Whether the code made the step."""
        return self.state is not None and not self.doubt


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """All that was measured of one study on one machine, states of the code in the order of their first launch."""

    states: tuple[Measurement, ...]
    series: tuple[CostSeries, ...]
    changes: tuple[ChangePoint, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What a reader calls each of `states`, no two the same."""
        return state_names(self.states)


def history_of(measured: Sequence[Measurement]) -> History:
    """Return the history of `measured` (at least one), all of one study and machine.

    Measurements of the same code are joined. Layouts that not every state launched have gaps, not zeros.
    """
    states = tuple(sorted(group_by_code(measured), key=lambda state: min(one.started for one in state.launches)))
    layouts = sorted({layout for state in states for layout in state.layouts}, key=lambda one: (one.ranks, str(one)))
    series = _series(states, layouts)
    changes = tuple(change for one in series for change in _changes(one, len(series)))
    return History(states=states, series=series, changes=changes)


def _series(states: Sequence[Measurement], layouts: Sequence[Layout]) -> tuple[CostSeries, ...]:
    parts: dict[tuple[str, Layout | None], list[tuple[int, CostSample]]] = {}
    starts = {}
    for number, state in enumerate(states):
        times = [(launch.started, launch.ended) for launch in state.launches]
        for session, (begin, _) in sorted(zip(sessions(times), times, strict=True), reverse=True):
            starts[number, session] = begin
        own = [layout for layout in layouts if state.of(layout)]
        for sample in samples(state, state, own):
            if _same_base(sample, own, layouts):
                parts.setdefault(sample.key, []).append((number, sample))
    place = {key: order for order, key in enumerate(sorted(starts, key=lambda key: (starts[key], key)))}
    found = []
    for (quantity, layout), samples_of_states in parts.items():
        keys = [(number, session) for number, sample in samples_of_states for session in sample.sessions]
        found.append(
            CostSeries(
                quantity=quantity,
                layout=layout,
                costs=np.concatenate([sample.costs for _, sample in samples_of_states]),
                states=tuple(number for number, _ in keys),
                sessions=tuple(place[key] for key in keys),
            )
        )
    return tuple(found)


def _same_base(sample: CostSample, own: Sequence[Layout], layouts: Sequence[Layout]) -> bool:
    """Return whether a state's sample means the same as those of the other states."""
    if sample.quantity not in RELATIVE:
        return False
    if sample.quantity == CURVE:
        return list(own) == list(layouts)
    return sample.quantity == TIME or own[0] == layouts[0]


def _changes(series: CostSeries, comparisons: int) -> list[ChangePoint]:
    """Return the steps in `series`, one of `comparisons` series, that make a difference to anyone."""
    points = change_points(series.costs, chance=CHANCE / comparisons)
    edges = (0, *points, len(series.costs))
    found = []
    for before, index, after in zip(edges, points, edges[2:], strict=False):
        distance = float(np.median(series.costs[index:after]) - np.median(series.costs[before:index]))
        if abs(distance) > as_cost(PRACTICAL, True):
            borders = [
                place for place in range(1, len(series.states)) if series.states[place] != series.states[place - 1]
            ]
            near = min(borders, key=lambda place: abs(place - index), default=None)
            state = series.states[near] if near is not None and abs(near - index) <= _NEAR else None
            doubt = "" if state is None else _doubt(series, state, comparisons)
            slowdown = as_slowdown(distance, True)
            found.append(ChangePoint(series=series, index=index, slowdown=slowdown, state=state, doubt=doubt))
    return found


def _doubt(series: CostSeries, state: int, comparisons: int) -> str:
    """Return why nobody can tell whether `state` differs from the one before it, empty where its sessions show it.

    They do where all of them lie beyond all of the other's, and both chances of that, for all borders between states
    together, are at most `CHANCE`: by the order of independent sessions (Wilcoxon), and by `lasting_chance`.
    """
    order = list(dict.fromkeys(series.states))
    earlier = order[order.index(state) - 1]
    states, numbers = np.array(series.states), np.array(series.sessions)
    middles = {
        int(one): float(np.median(series.costs[numbers == one]))
        for one in np.unique(numbers[(states == state) | (states == earlier)])
    }
    later = {one: bool(states[numbers == one][0] == state) for one in middles}
    now = [middles[one] for one in middles if later[one]]
    then = [middles[one] for one in middles if not later[one]]
    measured = f"{len(then)} and {len(now)} sessions of the two commits"
    if max(now) >= min(then) and max(then) >= min(now):
        return f"{measured} overlap"
    by_order = 2 / comb(len(middles), len(now)) * comparisons
    if max(by_order, lasting_chance(list(later.values()))) * (len(order) - 1) > CHANCE:
        return f"{measured} are too few to tell a change of the code from a lasting change of the machine's speed"
    return ""


def lasting_chance(later: Sequence[bool]) -> float:
    """Return how likely at most a machine with two speeds is to be at one in all `later` sessions, else at the other.

    Sessions are in order of time. It keeps its speed from one to the next with a chance of a half or more: that for
    which this order is likeliest (maximum likelihood).
    """
    turns = sum(one != other for one, other in pairwise(later))
    stays = len(later) - 1 - turns
    keeps = max(0.5, stays / max(1, stays + turns))
    return float(keeps**stays * (1 - keeps) ** turns)
