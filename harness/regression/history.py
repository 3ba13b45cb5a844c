"""A study over commits: one series for each quantity, and the steps in it.

A history shows where a series changed and does not say why: each commit was measured in sessions of its own, and
between sessions the machine changes too. What the code did is decided by versions in turns (`regression.version_duel`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.confidence_intervals import CHANGE_ERROR, change_points
from harness.regression.checks import PRACTICAL
from harness.regression.cost_samples import (
    CURVE,
    RELATIVE,
    TIME,
    CostSample,
    Values,
    as_cost,
    as_slowdown,
    samples,
)
from harness.regression.measurement import Measurement, group_by_code, state_names
from harness.schema.sweep import Layout, layout_order

_NEAR = 2  # launches by which a change may be found too early or too late


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSeries:
    """One quantity at one layout (None: the curve). `costs` [launches or repeats] run through all states.

    `states` [as costs] is the number of the state (of `History.states`) that each belongs to.
    """

    quantity: str
    layout: Layout | None
    costs: Values
    states: tuple[int, ...]

    @property
    def values(self) -> Values:
        """What a reader sees of the costs: seconds, or an efficiency as a fraction."""
        values: Values = np.exp(self.costs if self.quantity == TIME else -self.costs)
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A step in a series at launch `index`, by `slowdown` (above 0 is worse) of the speed or the efficiency.

    `state` is the first state after the step, None where the step lies among launches of the same code: then it was
    not the code. Otherwise it may have been the code or the machine.
    """

    series: CostSeries
    index: int
    slowdown: float
    state: int | None


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
    states = tuple(sorted(group_by_code(measured), key=_first_start))
    layouts = sorted({layout for state in states for layout in state.layouts}, key=layout_order)
    all_series = _series(states, layouts)
    changes: list[ChangePoint] = []
    for series in all_series:
        changes += _changes(series, len(all_series))
    return History(states=states, series=all_series, changes=tuple(changes))


def _first_start(state: Measurement) -> float:
    return min(launch.started for launch in state.launches).timestamp()


def _series(states: Sequence[Measurement], layouts: Sequence[Layout]) -> tuple[CostSeries, ...]:
    parts: dict[tuple[str, Layout | None], list[tuple[int, CostSample]]] = {}
    for number, state in enumerate(states):
        launched = [layout for layout in layouts if state.of(layout)]
        for sample in samples(state, state, launched):
            if _is_shared(sample, launched, layouts):
                parts.setdefault(sample.key, []).append((number, sample))
    series = []
    for (quantity, layout), samples_of_states in parts.items():
        numbers = [np.full(len(sample.costs), number) for number, sample in samples_of_states]
        series.append(
            CostSeries(
                quantity=quantity,
                layout=layout,
                costs=np.concatenate([sample.costs for _, sample in samples_of_states]),
                states=tuple(np.concatenate(numbers).tolist()),
            )
        )
    return tuple(series)


def _is_shared(sample: CostSample, launched: Sequence[Layout], layouts: Sequence[Layout]) -> bool:
    """Say whether a state's sample means the same as those of the states that `launched` other of the `layouts`."""
    if sample.quantity not in RELATIVE:
        return False
    if sample.quantity == CURVE:
        return list(launched) == list(layouts)
    return sample.quantity == TIME or launched[0] == layouts[0]


def _changes(series: CostSeries, comparisons: int) -> Iterator[ChangePoint]:
    """Yield the steps in `series`, one of `comparisons` series, that make a difference to anyone."""
    points = change_points(series.costs, error=CHANGE_ERROR / comparisons)
    edges = (0, *points, len(series.costs))
    for before, index, after in zip(edges, points, edges[2:], strict=False):
        distance = float(np.median(series.costs[index:after]) - np.median(series.costs[before:index]))
        if abs(distance) > as_cost(PRACTICAL, True):
            state = _state_from(series, index)
            yield ChangePoint(series=series, index=index, slowdown=as_slowdown(distance, True), state=state)


def _state_from(series: CostSeries, index: int) -> int | None:
    """Return the state whose launches begin at `index`, or up to 2 launches from there; None where none does."""
    borders = [place for place in range(1, len(series.states)) if series.states[place] != series.states[place - 1]]
    nearest = min(borders, key=lambda place: abs(place - index), default=None)
    if nearest is None or abs(nearest - index) > _NEAR:
        return None
    return series.states[nearest]
