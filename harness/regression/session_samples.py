"""What is compared between sessions: for every layout the time of a step, the efficiency, and each of its factors.

Every number is the natural logarithm of a cost, so that 0.01 more is about 1 % worse: of a step's time, of an epoch's
time over the ideal one, of one over a factor of the efficiency. A factor is judged by itself because factors differ
between sessions by different amounts: computation by what the host gives, the others by what software and network do.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.sessions import EFFICIENCY, STEP
from harness.analysis.useful_time import (
    COMPUTATION,
    LOAD_BALANCE,
    PARALLEL,
    SERIALISATION,
    TRANSFER,
    efficiency_factors,
)
from harness.regression.measurement import (
    MeasuredLaunch,
    Measurement,
    Values,
    session_numbers,
    slowdown_over,
    whole_repeats,
)
from harness.schema.layout import Layout

FACTORS = (PARALLEL, LOAD_BALANCE, SERIALISATION, TRANSFER, COMPUTATION)
"""Factors of the efficiency. The first is the product of the three after it, and with the last of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSample:
    """One quantity at one layout: the logarithmic costs of the blocks of every session, in order of time.

    `numbers` are those of the sessions, from 0, among all of the measurement.
    """

    quantity: str
    layout: Layout
    sessions: tuple[Values, ...]
    numbers: tuple[int, ...]

    @property
    def key(self) -> tuple[str, Layout]:
        """What two measurements' samples are matched by."""
        return self.quantity, self.layout

    @property
    def mean_cost(self) -> float:
        """The mean of the sessions' means."""
        return float(np.mean([blocks.mean() for blocks in self.sessions]))

    @property
    def value(self) -> float:
        """What a reader sees of the mean: seconds of a step, or a fraction."""
        return readable(self.quantity, self.mean_cost)


def readable(quantity: str, cost: float) -> float:
    """Return what a reader sees of a logarithmic cost: seconds of a step, an efficiency as a fraction."""
    return math.exp(cost if quantity == STEP else -cost)


def session_samples(measurement: Measurement, layouts: Sequence[Layout]) -> tuple[SessionSample, ...]:
    """Return the samples of `measurement` at `layouts`, fewest ranks first; the first one is the base.

    A quantity that a launch does not tell (`MeasuredLaunch.useful`) has no value of its block.
    """
    costs: dict[tuple[str, Layout], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    numbers = session_numbers(measurement)
    for launch in measurement.launches:
        if launch.layout in layouts:
            step_s = launch.seconds / launch.steps
            costs[STEP, launch.layout][numbers[launch]].append(math.log(step_s))
    base = layouts[0]
    for layout in layouts[1:]:
        if layout.ranks == base.ranks:  # with other threads: no efficiency over the base
            continue
        for base_launch, launch in whole_repeats(measurement, (base, layout)):
            for quantity, cost in _ratio_costs(measurement, base_launch, launch):
                costs[quantity, layout][numbers[launch]].append(cost)
    samples = []
    for (quantity, layout), by_session in costs.items():
        ordered = sorted(by_session)
        values = tuple(np.array(by_session[number]) for number in ordered)
        samples.append(SessionSample(quantity=quantity, layout=layout, sessions=values, numbers=tuple(ordered)))
    return tuple(sorted(samples, key=lambda sample: (layouts.index(sample.layout), _ORDER.index(sample.quantity))))


_ORDER = (STEP, EFFICIENCY, *FACTORS)


def _ratio_costs(measurement: Measurement, base: MeasuredLaunch, launch: MeasuredLaunch) -> Iterator[tuple[str, float]]:
    """Yield the costs of `launch` beside the launch of the base of its block, by quantity."""
    yield EFFICIENCY, math.log(slowdown_over(measurement, base, launch))
    times = _times(launch)
    base_times = _times(base)
    if times is None or base_times is None:
        return
    factors = efficiency_factors(times, base_times)
    for name in FACTORS:
        yield name, -math.log(float(factors[name]))


def _times(launch: MeasuredLaunch) -> Values | None:
    """Return the times that `efficiency_factors` takes, None where the launch does not tell them."""
    useful = launch.useful
    if useful is None or min(useful.whole, useful.mean, useful.longest, useful.ideal) <= 0:
        return None
    row_core_seconds = useful.mean * launch.layout.cores / launch.rows
    return np.array([useful.whole, useful.mean, useful.longest, useful.ideal, row_core_seconds])
