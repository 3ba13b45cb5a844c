"""A study over commits: one series for each quantity, and the changes in it that noise does not explain."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.regression.measurements import group_by_code, state_names
from harness.regression.noise import learn_noise
from harness.regression.quantities import (
    CURVE,
    RELATIVE,
    TIME,
    CostSample,
    Values,
    as_cost,
    samples,
)
from harness.regression.significance import PRACTICAL, ComparedRow, row_of_sessions
from harness.schema.layout import Layout
from harness.schema.measurement import Measurement

SHORTEST = 4  # launches before and after a change
CHANCE = 0.05  # of a split in a series without a change, as in the paper
_PERMUTATIONS = 199


def change_points(
    values: Values, *, shortest: int = SHORTEST, chance: float = CHANCE, seed: int = 0
) -> tuple[int, ...]:
    """Return the indices, in order, at which a new chance of `values` [launches] begins.

    The permutations are seeded: the same series gives the same answer.
    """
    random = np.random.default_rng(seed)
    found: list[int] = []
    parts = [(0, len(values))]
    while parts:
        begin, end = parts.pop()
        if end - begin < 2 * shortest:
            continue
        distances = np.abs(np.subtract.outer(values[begin:end], values[begin:end]))
        split, gain = best_split(distances, shortest)
        if _chance(distances, gain, shortest, random) > chance:
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


def _chance(distances: Values, gain: float, shortest: int, random: np.random.Generator) -> float:
    """Return how often launches in random order have a split at least as good."""
    better = 0
    for _ in range(_PERMUTATIONS):
        order = random.permutation(len(distances))
        better += best_split(distances[np.ix_(order, order)], shortest)[1] >= gain
    return (better + 1) / (_PERMUTATIONS + 1)


_NEAR = 2  # launches by which a change may be found too early or too late


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSeries:
    """One quantity at one layout (None: the curve). `costs` [launches or blocks] run through all states.

    `states` [as costs] is the number of the state (of `History.states`) that each belongs to, `sessions` [as costs]
    the number of its session; each state was measured in sessions of its own.
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

    def part(self, begin: int, end: int) -> CostSample:
        """Return the sample of the launches from `begin` to `end`."""
        return CostSample(
            quantity=self.quantity,
            layout=self.layout,
            costs=self.costs[begin:end],
            blocks=tuple(range(begin, end)),
            sessions=self.sessions[begin:end],
            value=float(np.median(self.values[begin:end])),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A step in a series at launch `index`: the `row` compares the launches after it with those before.

    `state` is the first state after the step, None where the step lies among launches of the same code: then
    it was not the code.
    """

    series: CostSeries
    index: int
    row: ComparedRow
    state: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """All that was measured of one study on one machine, states of the code in the order of their first launch.

    `assumed` says that what lies between sessions was assumed, for want of sessions of the same code.
    """

    states: tuple[Measurement, ...]
    series: tuple[CostSeries, ...]
    changes: tuple[ChangePoint, ...]
    assumed: bool

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
    found = [_changes(one, len(series)) for one in series]
    return History(
        states=states,
        series=series,
        changes=tuple(change for changes, _ in found for change in changes),
        assumed=any(assumed for _, assumed in found),
    )


def _series(states: Sequence[Measurement], layouts: Sequence[Layout]) -> tuple[CostSeries, ...]:
    parts: dict[tuple[str, Layout | None], list[tuple[int, CostSample]]] = {}
    for number, state in enumerate(states):
        own = [layout for layout in layouts if state.of(layout)]
        for sample in samples(state, state, own):
            if _same_base(sample, own, layouts):
                parts.setdefault(sample.key, []).append((number, sample))
    found = []
    for (quantity, layout), samples_of_states in parts.items():
        sessions = [(number, session) for number, sample in samples_of_states for session in sample.sessions]
        found.append(
            CostSeries(
                quantity=quantity,
                layout=layout,
                costs=np.concatenate([sample.costs for _, sample in samples_of_states]),
                states=tuple(number for number, _ in sessions),
                sessions=tuple(map(sessions.index, sessions)),
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


def _changes(series: CostSeries, comparisons: int) -> tuple[list[ChangePoint], bool]:
    """Return the changes in `series`, and whether what lies between sessions was assumed."""
    points = change_points(series.costs)
    edges = (0, *points, len(series.costs))
    # The step was looked for at all these places, and either up or down.
    comparisons *= 2 * max(1, len(series.costs) - 2 * SHORTEST + 1)
    noise = learn_noise(_same_code(series, edges))
    found = []
    for before, index, after in zip(edges, points, edges[2:], strict=False):
        row = row_of_sessions(series.part(before, index), series.part(index, after), noise, comparisons=comparisons)
        if abs(as_cost(row.slowdown, True)) > as_cost(max(row.floor or 0.0, PRACTICAL), True):
            state = _attribute(series.states, index)
            found.append(ChangePoint(series=series, index=index, row=row, state=state))
    return found, noise is None or noise.assumed


def _same_code(series: CostSeries, edges: Sequence[int]) -> list[list[Values]]:
    """Return the launches of each state between two changes, session by session: A/A runs."""
    parts = [sum(edge <= place for edge in edges) for place in range(len(series.costs))]
    keys = list(zip(series.states, parts, series.sessions, strict=True))
    found: dict[tuple[int, int], list[Values]] = {}
    for key in dict.fromkeys(keys):
        found.setdefault(key[:2], []).append(series.costs[[own == key for own in keys]])
    return list(found.values())


def _attribute(states: Sequence[int], index: int) -> int | None:
    """Return the state that begins at `index` or very near it."""
    borders = [place for place in range(1, len(states)) if states[place] != states[place - 1]]
    near = min(borders, key=lambda place: abs(place - index), default=None)
    return states[near] if near is not None and abs(near - index) <= _NEAR else None
