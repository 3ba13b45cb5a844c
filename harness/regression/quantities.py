"""What a check compares: one number per launch or block for each quantity, all on one scale of cost.

Cost is the natural logarithm of a time (or of its ratio to another) where a relative change is meant, and a
share of the reference's epoch where a part of it is meant: a step up of 0.1 is a slowdown of about 10 % either way.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis import numbers
from harness.analysis.stats import sessions
from harness.regression.baselines import MeasuredLaunch, Measurement
from harness.schema.sweep import Layout

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
    """One quantity at one layout (None: over all of them). `costs` [launches or blocks], in order of time.

    `sessions` [as costs] has the number of each one's session. `value` is what a reader sees: seconds for `TIME`,
    `SKEW` and `WIRE`, a fraction for `EFFICIENCY` and `CURVE`. Only quantities that `decide` can fail a check; the
    others say where a slowdown comes from.
    """

    quantity: str
    layout: Layout | None
    costs: Values
    sessions: tuple[int, ...]
    value: float
    decides: bool = True

    @property
    def key(self) -> tuple[str, Layout | None]:
        """What two measurements' samples are matched by."""
        return self.quantity, self.layout


def quantity_value(quantity: str, value: float) -> str:
    """Return a quantity's value with its unit: seconds, or per cent."""
    return numbers.percent(value, 1) if quantity.startswith((EFFICIENCY, CURVE)) else numbers.seconds(value)


def as_cost(slowdown: float, relative: bool) -> float:
    """Return the step up in cost that takes `slowdown` (fraction below 1) of the speed or efficiency."""
    return -math.log(1 - slowdown) if relative else slowdown


def as_slowdown(distance: float, relative: bool) -> float:
    """Return the part of the speed or efficiency that a step up of `distance` in cost takes."""
    return 1 - math.exp(-distance) if relative else distance


def samples(measurement: Measurement, reference: Measurement, layouts: Sequence[Layout]) -> tuple[CostSample, ...]:
    """Return the samples of `measurement` at `layouts`, fewest ranks first; the first one is the base.

    Shares are of the `reference`'s median epoch at the layout. Efficiency is of launches of the same block
    (repeat) and session, which ran close to each other, so that the machine's drift falls out of it.
    """
    times = [(launch.started, launch.ended) for launch in measurement.launches]
    session = dict(zip(measurement.launches, sessions(times), strict=True))
    found: list[CostSample] = []
    for layout in layouts:
        found += _at(measurement, reference, layout, session)
    base = layouts[0]
    # The same ranks with other threads: no efficiency over the base.
    others = [layout for layout in layouts[1:] if layout.ranks != base.ranks]
    over: list[tuple[Layout | None, Sequence[Layout]]] = [(layout, [layout]) for layout in others]
    over += [(None, others)] if len(others) > 1 else []  # the curve: the geometric mean of all
    for one, compared in over:
        blocks = _blocks(measurement, (base, *compared), session)
        if blocks:
            slow = [[_slowdown(measurement, block[0], launch) for launch in block[1:]] for block in blocks]
            costs, quantity = np.log(np.array(slow)).mean(axis=1), CURVE if one is None else EFFICIENCY
            found.append(_sample(quantity, one, costs, blocks, session, float(np.exp(-np.median(costs)))))
    return tuple(found)


Blocks = Sequence[tuple[MeasuredLaunch, ...]]
Sessions = Mapping[MeasuredLaunch, int]


def _at(measurement: Measurement, reference: Measurement, layout: Layout, session: Sessions) -> Iterator[CostSample]:
    launches = measurement.of(layout)
    if not launches:
        return
    blocks = [(launch,) for launch in launches]
    seconds = np.array([launch.seconds for launch in launches])
    yield _sample(TIME, layout, np.log(seconds), blocks, session, float(np.median(seconds)))
    if layout.ranks == 1:
        return
    epoch = float(np.median([launch.seconds for launch in reference.of(layout)]))
    for quantity, field in ((SKEW, "skew_seconds"), (WIRE, "wire_seconds")):
        parts = np.array([getattr(launch, field) for launch in launches])
        yield _sample(quantity, layout, parts / epoch, blocks, session, float(np.median(parts)))


def _sample(
    quantity: str, layout: Layout | None, costs: Values, blocks: Blocks, session: Sessions, value: float
) -> CostSample:
    return CostSample(
        quantity=quantity,
        layout=layout,
        costs=costs,
        sessions=tuple(session[block[0]] for block in blocks),
        value=value,
        decides=quantity in RELATIVE,
    )


def _blocks(measurement: Measurement, layouts: Sequence[Layout], session: Sessions) -> Blocks:
    """Return the launches of `layouts` block by block, in order of time: whole blocks of one session only."""
    by_place = {(launch.layout, launch.repeat): launch for launch in measurement.launches}
    repeats = sorted({launch.repeat for launch in measurement.launches})
    found = [tuple(by_place.get((layout, repeat)) for layout in layouts) for repeat in repeats]
    whole = [tuple(launch for launch in block if launch) for block in found if all(block)]
    near = [block for block in whole if len({session[launch] for launch in block}) == 1]
    return sorted(near, key=lambda block: min(launch.started for launch in block))


def _slowdown(measurement: Measurement, base: MeasuredLaunch, launch: MeasuredLaunch) -> float:
    """Return the inverse of the efficiency of `launch` over `base`: 1 is ideal, 2 is half."""
    ideal = launch.layout.ranks / base.layout.ranks if measurement.scaling == "strong" else 1.0
    return launch.seconds * ideal / base.seconds
