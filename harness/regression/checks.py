"""Did it get worse? What a check compares, a verdict for each point and for the curve, and for all of it together.

One number per launch for each quantity, all on one scale of cost: the natural logarithm of a time (or of its ratio to
another) where a relative change is meant, and a share of the reference's epoch where a part of it is meant: a step up
of 0.1 is a slowdown of about 10 % either way.

Only versions that trained in turns are judged (`regression.opponents`). Launches beside each other are compared by the
ratio of their medians.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis import numbers
from harness.analysis.inference import Interval, ratio_interval
from harness.analysis.sessions import sessions
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
    `SKEW` and `WIRE`, a fraction for `EFFICIENCY` and `CURVE`.
    """

    quantity: str
    layout: Layout | None
    costs: Values
    sessions: tuple[int, ...]
    value: float

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


PASS = "pass"
SMALL = "small slowdown"
REGRESSION = "regression"
IMPROVEMENT = "improvement"
INCONCLUSIVE = "inconclusive"
BETTER = "better"
WORSE = "worse"
ALIKE = "alike"
OPEN = "open"

PRACTICAL = 0.03  # part of the speed or efficiency: the least change that makes a difference to anyone


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """One quantity at one layout (None: the curve): what it was (the reference) and what it is (the current one).

    `slowdown` above 0 is worse; a fraction of speed or efficiency, or of the reference's epoch. `interval` is on the
    same scale, None where launches lack. `values` and `launches` (in turns: blocks) are the reference's and the current
    ones. Only rows that `decide` can fail a check. `apart`: they were launched in different sessions, which may differ
    by more than the code.
    """

    quantity: str
    layout: Layout | None
    decides: bool
    values: tuple[float, float]
    launches: tuple[int, int]
    slowdown: float
    interval: Interval | None
    verdict: str = ""
    apart: bool = False

    @property
    def ratio(self) -> float:
        """How many times as good the current value of a `RELATIVE` quantity is: above 1 is faster, more efficient."""
        return 1 - self.slowdown

    @property
    def ratio_interval(self) -> Interval | None:
        """The interval of `ratio`."""
        return Interval(low=1 - self.interval.high, high=1 - self.interval.low) if self.interval else None


def verdict_of(
    estimate: float, bounds: Interval, limit: float, *, upper: float | None = None, borne: Interval | None = None
) -> str:
    """Return what an estimated cost means whose `bounds` are sure, and beside which `limit` is a practical one.

    A change has to be `borne` out by other bounds too, where there are some; a pass is decided by `upper` where that is
    another bound.
    """
    sure = borne or bounds
    if bounds.low > 0 and sure.low > 0 and estimate > limit:
        return REGRESSION
    if bounds.high < 0 and sure.high < 0 and estimate < -limit:
        return IMPROVEMENT
    if (bounds.high if upper is None else upper) < limit:
        return SMALL if bounds.low > 0 else PASS
    return INCONCLUSIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsSpent:
    """What a check in turns took. `epochs` are those of its launches where they are more than the study's, else 0."""

    blocks: int
    rounds: int
    minutes: float
    epochs: int = 0

    def __str__(self) -> str:
        blocks, rounds = numbers.plural(self.blocks, "block"), numbers.plural(self.rounds, "round")
        longer = f", launches of {self.epochs} epochs" if self.epochs else ""
        return f"{blocks}, {rounds}, {self.minutes:.1f} minutes{longer}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A reference, what is compared with it, and the verdicts; a slowdown below `practical` makes no difference.

    `spent` is None where launches were compared that did not train in turns.
    """

    reference: Measurement
    current: Measurement
    practical: float
    rows: tuple[ComparedRow, ...]
    spent: TurnsSpent | None = None

    @property
    def unmeasured(self) -> tuple[Layout, ...]:
        """The reference's layouts that have no launch now."""
        return tuple(layout for layout in self.reference.layouts if not self.current.of(layout))

    @property
    def deciding(self) -> tuple[ComparedRow, ...]:
        """The rows that can fail the check."""
        return tuple(row for row in self.rows if row.decides)

    @property
    def verdict(self) -> str:
        """The worst of the deciding rows: a regression first, then what is open, a small slowdown, an improvement."""
        verdicts = {row.verdict for row in self.deciding}
        if REGRESSION in verdicts:
            return REGRESSION
        if INCONCLUSIVE in verdicts or self.unmeasured or not verdicts:
            return INCONCLUSIVE
        return next((one for one in (SMALL, IMPROVEMENT) if one in verdicts), PASS)


def check_launches(reference: Measurement, current: Measurement, *, practical: float = PRACTICAL) -> Check:
    """Return what launches that did not train in turns show of `current` beside `reference`: it decides nothing.

    Both are of the same workload and machine. A machine's speed changes between launches by more than the slowdowns
    that matter, so every row is inconclusive; `opponents.decide` trains both in turns.
    """
    rows = tuple(replace(row, verdict=INCONCLUSIVE) for row in compare_measurements(reference, current))
    return Check(reference=reference, current=current, practical=practical, rows=rows)


def compare_measurements(
    first: Measurement, other: Measurement, *, practical: float = PRACTICAL
) -> tuple[ComparedRow, ...]:
    """Return time and efficiency of `other` over `first` at every layout that both launched, each row judged alone.

    They may differ in anything but the rows of an epoch: layouts where these differ are left out. A verdict is
    ``better`` or ``worse`` where the interval leaves out 0 and the ratio is of a `practical` size, ``alike`` where the
    whole interval is within it, else ``open``, as it is for launches of different sessions.
    """
    shared = [
        layout
        for layout in first.layouts
        if other.of(layout) and math.isclose(first.of(layout)[0].rows, other.of(layout)[0].rows, rel_tol=0.01)
    ]
    if not shared:
        return ()
    apart = _apart(first, other)
    rows = []
    for before in samples(first, first, shared):
        for now in samples(other, first, shared):
            if before.key == now.key and before.quantity in RELATIVE:
                row = _row_of_launches(before, now, apart=apart)
                rows.append(replace(row, verdict=_meaning(row, practical)))
    return tuple(rows)


def _row_of_launches(before: CostSample, now: CostSample, *, apart: bool) -> ComparedRow:
    """Return the ratio of the medians of two samples, with its interval where they are of one session."""
    speed = np.exp(-now.costs)
    speed_before = np.exp(-before.costs)
    ratio = float(np.median(speed) / np.median(speed_before))
    found = None if apart else ratio_interval(speed, speed_before)
    return ComparedRow(
        quantity=before.quantity,
        layout=before.layout,
        decides=True,
        values=(before.value, now.value),
        launches=(len(before.costs), len(now.costs)),
        slowdown=1 - ratio,
        interval=Interval(low=1 - found.high, high=1 - found.low) if found else None,
        apart=apart,
    )


def _apart(one: Measurement, other: Measurement) -> bool:
    """Return whether the launches of both are of more than one session."""
    return len(set(sessions([(launch.started, launch.ended) for launch in (*one.launches, *other.launches)]))) > 1


def _meaning(row: ComparedRow, practical: float) -> str:
    interval = row.ratio_interval
    if interval is None:
        return OPEN
    low, high = 1 / (1 + practical), 1 + practical
    if low <= interval.low and interval.high <= high:
        return ALIKE
    if interval.low > 1 and row.ratio > high:
        return BETTER
    if interval.high < 1 and row.ratio < low:
        return WORSE
    return OPEN
