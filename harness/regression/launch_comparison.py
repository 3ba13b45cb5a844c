"""Two measurements beside each other, layout by layout: the ratio of their means, with its interval.

What trained in turns is compared by `regression.variant_samples`, a baseline's sessions by `regression.session_check`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis.confidence_intervals import Interval, difference_of_means
from harness.analysis.sessions import sessions
from harness.regression.change_threshold import DEFAULT_THRESHOLD
from harness.regression.measurement import CostSample, MeasuredLaunch, Measurement, as_slowdown, samples
from harness.schema.layout import Layout

BETTER = "better"
WORSE = "worse"
ALIKE = "alike"
OPEN = "open"


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
        """How many times as good the current value is: above 1 is faster, more efficient."""
        return 1 - self.slowdown

    @property
    def ratio_interval(self) -> Interval | None:
        """The interval of `ratio`."""
        return Interval(low=1 - self.interval.high, high=1 - self.interval.low) if self.interval else None


def compare_measurements(
    first: Measurement, second: Measurement, *, threshold: float = DEFAULT_THRESHOLD
) -> tuple[ComparedRow, ...]:
    """Return time and efficiency of `second` over `first` at every layout that both launched, each row judged alone.

    They may differ in anything but the rows of an epoch: layouts where these differ are left out. A verdict is
    ``better`` or ``worse`` where the interval leaves out 0 and the ratio is beyond the `threshold`, ``alike`` where the
    whole interval is within it, else ``open``, as it is for launches of different sessions.
    """
    shared = [layout for layout in first.layouts if _are_same_rows(first.of(layout), second.of(layout))]
    if not shared:
        return ()
    apart = _are_apart(first, second)
    rows = []
    for before in samples(first, shared):
        for now in samples(second, shared):
            if before.key == now.key:
                row = _row_of_launches(before, now, apart=apart)
                rows.append(replace(row, verdict=_meaning(row, threshold)))
    return tuple(rows)


def _are_apart(first: Measurement, second: Measurement) -> bool:
    """Say whether launches of two measurements were of several sessions: at other times, or on other hosts."""
    launches = (*first.launches, *second.launches)
    if len(set(sessions([(launch.started, launch.ended) for launch in launches]))) > 1:
        return True
    first_hosts = {host.name for launch in first.launches for host in launch.hosts}
    second_hosts = {host.name for launch in second.launches for host in launch.hosts}
    return bool(first_hosts and second_hosts) and first_hosts.isdisjoint(second_hosts)


def _are_same_rows(first: Sequence[MeasuredLaunch], second: Sequence[MeasuredLaunch]) -> bool:
    """Say whether launches of two measurements, at least one of each, trained as many rows in an epoch."""
    return bool(second) and math.isclose(first[0].rows, second[0].rows, rel_tol=0.01)


def _row_of_launches(before: CostSample, now: CostSample, *, apart: bool) -> ComparedRow:
    """Return the ratio of the geometric means of two samples, with its interval where they are of one session."""
    added_cost = float(now.costs.mean() - before.costs.mean())
    difference = None if apart else difference_of_means(now.costs, before.costs)
    interval = None
    if difference:
        interval = Interval(low=as_slowdown(difference.interval.low), high=as_slowdown(difference.interval.high))
    return ComparedRow(
        quantity=before.quantity,
        layout=before.layout,
        decides=True,
        values=(before.value, now.value),
        launches=(len(before.costs), len(now.costs)),
        slowdown=as_slowdown(added_cost),
        interval=interval,
        apart=apart,
    )


def _meaning(row: ComparedRow, threshold: float) -> str:
    interval = row.ratio_interval
    if interval is None:
        return OPEN
    low = 1 / (1 + threshold)
    high = 1 + threshold
    if low <= interval.low and interval.high <= high:
        return ALIKE
    if interval.low > 1 and row.ratio > high:
        return BETTER
    if interval.high < 1 and row.ratio < low:
        return WORSE
    return OPEN
