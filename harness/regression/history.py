"""A study over commits: one series for each quantity.

A history shows and judges nothing: each commit was measured in sessions of its own, and between sessions the machine
changes too. What the code did is decided by versions in turns (`regression.variant_turns`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.regression.measurement import (
    CURVE,
    RELATIVE,
    TIME,
    CostSample,
    Measurement,
    Values,
    group_by_code,
    samples,
    state_names,
)
from harness.schema.layout import Layout, layout_order


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
class History:
    """All that was measured of one study on one machine, states of the code in the order of their first launch."""

    states: tuple[Measurement, ...]
    series: tuple[CostSeries, ...]

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
    return History(states=states, series=_series(states, layouts))


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
