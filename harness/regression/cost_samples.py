"""The costs of a measurement: one number for each launch and quantity, all on one scale.

For a relative change the scale is the natural logarithm of a time, or of its ratio to another. For a part of an epoch
it is a share of the reference's epoch. On both, 0.1 more is a slowdown of about 10 %.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis import units
from harness.analysis.sessions import sessions
from harness.regression.measurement import MeasuredLaunch, Measurement
from harness.schema.layout import Layout

Values = NDArray[np.float64]

TIME = "epoch time"
STEP = "step time"
EFFICIENCY = "efficiency"
CURVE = "curve"
SKEW = "skew"
WIRE = "wire"

RELATIVE = frozenset({TIME, EFFICIENCY, CURVE})  # costs that are logarithms


@dataclass(frozen=True, kw_only=True, slots=True)
class CostSample:
    """One quantity at one layout (None: over all of them). `costs` [launches or repeats], in order of time.

    `value` is what a reader sees: seconds for `TIME`, `SKEW` and `WIRE`, a fraction for `EFFICIENCY` and `CURVE`.
    """

    quantity: str
    layout: Layout | None
    costs: Values
    value: float

    @property
    def key(self) -> tuple[str, Layout | None]:
        """What two measurements' samples are matched by."""
        return self.quantity, self.layout


def quantity_value(quantity: str, value: float) -> str:
    """Return a quantity's value with its unit: seconds, or per cent."""
    return units.percent(value, 1) if quantity.startswith((EFFICIENCY, CURVE)) else units.seconds(value)


def as_cost(slowdown: float, relative: bool) -> float:
    """Return the step up in cost that takes `slowdown` (fraction below 1) of the speed or efficiency."""
    return -math.log(1 - slowdown) if relative else slowdown


def as_slowdown(distance: float, relative: bool) -> float:
    """Return the part of the speed or efficiency that a step up of `distance` in cost takes."""
    return 1 - math.exp(-distance) if relative else distance


def samples(measurement: Measurement, reference: Measurement, layouts: Sequence[Layout]) -> tuple[CostSample, ...]:
    """Return the samples of `measurement` at `layouts`, fewest ranks first; the first one is the base.

    Shares are of the `reference`'s median epoch at the layout. Efficiency is of launches of the same repeat and
    session, which ran close to each other, so that the machine's drift falls out of it.
    """
    cost_samples: list[CostSample] = []
    for layout in layouts:
        cost_samples += _samples_at(measurement, reference, layout)
    base = layouts[0]
    # The same ranks with other threads: no efficiency over the base.
    larger = [layout for layout in layouts[1:] if layout.ranks != base.ranks]
    for layout in larger:
        cost_samples += _efficiency(measurement, base, [layout], layout)
    if len(larger) > 1:  # the curve: the geometric mean of all
        cost_samples += _efficiency(measurement, base, larger, None)
    return tuple(cost_samples)


def _samples_at(measurement: Measurement, reference: Measurement, layout: Layout) -> Iterator[CostSample]:
    """Yield the samples of one layout by itself: its time, and on several ranks the shares of waits and sums."""
    launches = measurement.of(layout)
    if not launches:
        return
    seconds = np.array([launch.seconds for launch in launches])
    yield CostSample(quantity=TIME, layout=layout, costs=np.log(seconds), value=float(np.median(seconds)))
    if layout.ranks == 1:
        return
    epoch_s = float(np.median([launch.seconds for launch in reference.of(layout)]))
    for quantity, field in ((SKEW, "skew_seconds"), (WIRE, "wire_seconds")):
        parts = np.array([getattr(launch, field) for launch in launches])
        if not parts.any():  # sums on GPUs, whose times are not known
            continue
        yield CostSample(quantity=quantity, layout=layout, costs=parts / epoch_s, value=float(np.median(parts)))


def _efficiency(
    measurement: Measurement, base: Layout, compared: Sequence[Layout], layout: Layout | None
) -> Iterator[CostSample]:
    """Yield the sample of the efficiency of the `compared` layouts over `base`, their geometric mean; none without one.

    `layout` is what it is told of, None for the curve.
    """
    slowdowns = []
    for base_launch, *launches in _whole_repeats(measurement, (base, *compared)):
        slowdowns.append([_slowdown(measurement, base_launch, launch) for launch in launches])
    if slowdowns:
        costs = np.log(np.array(slowdowns)).mean(axis=1)
        yield CostSample(
            quantity=CURVE if layout is None else EFFICIENCY,
            layout=layout,
            costs=costs,
            value=float(np.exp(-np.median(costs))),
        )


def _whole_repeats(measurement: Measurement, layouts: Sequence[Layout]) -> list[tuple[MeasuredLaunch, ...]]:
    """Return the launches of `layouts` repeat by repeat, in order of time: whole repeats of one session only."""
    times = [(launch.started, launch.ended) for launch in measurement.launches]
    session = dict(zip(measurement.launches, sessions(times), strict=True))
    by_place = {(launch.layout, launch.repeat): launch for launch in measurement.launches}
    whole = []
    for repeat in sorted({launch.repeat for launch in measurement.launches}):
        launches = tuple(by_place[layout, repeat] for layout in layouts if (layout, repeat) in by_place)
        if len(launches) == len(layouts) and len({session[launch] for launch in launches}) == 1:
            whole.append(launches)
    return sorted(whole, key=lambda launches: min(launch.started for launch in launches))


def _slowdown(measurement: Measurement, base: MeasuredLaunch, launch: MeasuredLaunch) -> float:
    """Return the inverse of the efficiency of `launch` over `base`: 1 is ideal, 2 is half."""
    ideal = launch.layout.ranks / base.layout.ranks if measurement.scaling == "strong" else 1.0
    return launch.seconds * ideal / base.seconds
