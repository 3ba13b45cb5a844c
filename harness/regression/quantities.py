"""What a check compares: one number per launch or block for each quantity, all on one scale of cost.

Cost is the natural logarithm of a time (or of its ratio to another) where a relative change is meant, and a
share of the reference's epoch where a part of it is meant: a step up of 0.1 is a loss of about 10 % either way.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.regression.hodges_lehmann import Values
from harness.schema.layout import Layout
from harness.schema.measurement import Launch, Measurement

TIME = "epoch time"
EFFICIENCY = "efficiency"
CURVE = "curve"
SKEW = "skew"
WIRE = "wire"
CONTENTION = "USL contention"
COHERENCY = "USL coherency"

RELATIVE = frozenset({TIME, EFFICIENCY, CURVE})  # costs that are logarithms
USL_POINTS = 4  # below this two coefficients fit any curve


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One quantity at one layout (None: over all of them). `costs` [launches or blocks], in order of time.

    `value` is what a reader sees: seconds for `TIME`, `SKEW` and `WIRE`, a fraction for `EFFICIENCY` and
    `CURVE`, the coefficient for the USL. Only quantities that `decide` can fail a check; the others say
    where a loss comes from.
    """

    quantity: str
    layout: Layout | None
    costs: Values
    value: float
    decides: bool

    @property
    def key(self) -> tuple[str, Layout | None]:
        """What two measurements' samples are matched by."""
        return self.quantity, self.layout


def as_cost(loss: float, relative: bool) -> float:
    """Return the step up in cost that takes `loss` (fraction below 1) of the speed or efficiency."""
    return -math.log(1 - loss) if relative else loss


def as_loss(distance: float, relative: bool) -> float:
    """Return the part of the speed or efficiency that a step up of `distance` in cost takes."""
    return 1 - math.exp(-distance) if relative else distance


def samples(measurement: Measurement, reference: Measurement, layouts: Sequence[Layout]) -> tuple[Sample, ...]:
    """Return the samples of `measurement` at `layouts`, fewest ranks first; the first one is the base.

    Shares are of the `reference`'s median epoch at the layout. Efficiency is of launches of the same block
    (repeat), which ran close to each other, so that the machine's drift falls out of it.
    """
    found: list[Sample] = []
    for layout in layouts:
        found += _at(measurement, reference, layout)
    base, others = layouts[0], layouts[1:]
    for layout in others:
        if layout.ranks == base.ranks:
            continue  # the same ranks with other threads: no efficiency over the base
        costs = _inefficiency(measurement, base, layout)
        if len(costs):
            found.append(_sample(EFFICIENCY, layout, costs, float(np.exp(-np.median(costs)))))
    found += _curve(measurement, base, [layout for layout in others if layout.ranks != base.ranks])
    return tuple(found)


def _at(measurement: Measurement, reference: Measurement, layout: Layout) -> Iterator[Sample]:
    launches = measurement.of(layout)
    if not launches:
        return
    seconds = np.array([launch.seconds for launch in launches])
    yield _sample(TIME, layout, np.log(seconds), float(np.median(seconds)))
    if layout.ranks == 1:
        return
    epoch = float(np.median([launch.seconds for launch in reference.of(layout)]))
    for quantity, field in ((SKEW, "skew_seconds"), (WIRE, "wire_seconds")):
        parts = np.array([getattr(launch, field) for launch in launches])
        yield _sample(quantity, layout, parts / epoch, float(np.median(parts)), decides=False)


def _sample(quantity: str, layout: Layout | None, costs: Values, value: float, *, decides: bool = True) -> Sample:
    return Sample(quantity=quantity, layout=layout, costs=costs, value=value, decides=decides)


def _blocks(measurement: Measurement, layouts: Sequence[Layout]) -> tuple[tuple[Launch, ...], ...]:
    """Return the launches of `layouts` block by block, whole blocks only, in order of time."""
    by_place = {(launch.layout, launch.repeat): launch for launch in measurement.launches}
    repeats = sorted({launch.repeat for launch in measurement.launches})
    whole = [
        tuple(by_place[layout, repeat] for layout in layouts)
        for repeat in repeats
        if all((layout, repeat) in by_place for layout in layouts)
    ]
    return tuple(sorted(whole, key=lambda block: min(launch.started for launch in block)))


def _slowdown(measurement: Measurement, base: Launch, launch: Launch) -> float:
    """Return the inverse of the efficiency of `launch` over `base`: 1 is ideal, 2 is half."""
    ideal = launch.layout.ranks / base.layout.ranks if measurement.scaling == "strong" else 1.0
    return launch.seconds * ideal / base.seconds


def _inefficiency(measurement: Measurement, base: Layout, layout: Layout) -> Values:
    blocks = _blocks(measurement, (base, layout))
    costs: Values = np.log(np.array([_slowdown(measurement, one, other) for one, other in blocks]))
    return costs


def _curve(measurement: Measurement, base: Layout, others: Sequence[Layout]) -> Iterator[Sample]:
    """Yield what all points together say: the geometric mean of the efficiencies, and the USL's coefficients."""
    if len(others) < 2:
        return
    blocks = _blocks(measurement, (base, *others))
    if not blocks:
        return
    slow = np.array([[_slowdown(measurement, block[0], launch) for launch in block[1:]] for block in blocks])
    costs = np.log(slow).mean(axis=1)
    yield _sample(CURVE, None, costs, float(np.exp(-np.median(costs))))
    p = np.array([layout.ranks / base.ranks for layout in others])
    if len(others) + 1 < USL_POINTS:
        return
    # Gunther's universal scalability law, 1/efficiency = 1 + a (p - 1) + b p (p - 1): linear in a and b.
    terms = np.stack([p - 1, p * (p - 1)], axis=1)
    coefficients = np.linalg.lstsq(terms, (slow - 1).T, rcond=None)[0]
    for quantity, coefficient, term in zip((CONTENTION, COHERENCY), coefficients, terms[-1], strict=True):
        # The cost is the coefficient's part of the time at the most ranks.
        yield _sample(quantity, None, coefficient * term, float(np.median(coefficient)), decides=False)
