"""What a sweep will cost in node-hours. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.spec.layout import Layout
from harness.sweep.plan import time_left
from harness.sweep.request import Request, seconds
from harness.sweep.shapes import Group, time_limit
from harness.sweep.site import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Node-hours: `expected` by the launches that have finished (None before the first), `limit` by time limits."""

    expected: float | None
    limit: float
    jobs: int
    finished: int

    def __str__(self) -> str:
        plural = "" if self.jobs == 1 else "s"
        limit = f"at most {self.limit:.2f} node-hours by the time limits of {self.jobs} job{plural}"
        if self.expected is None:
            return f"cost: {limit}"
        return f"cost: about {self.expected:.2f} node-hours by {self.finished} finished launches, {limit}"

    @property
    def likely(self) -> float:
        """The node-hours to ask a confirmation for: what is expected, else the limit."""
        return self.limit if self.expected is None else self.expected


def estimate(
    groups: Iterable[Group], request: Request, partition: Partition | None, durations: Mapping[Layout, Sequence[float]]
) -> Cost:
    """Return the cost of `groups`; `durations` holds the seconds of finished launches by layout."""
    limit, expected, jobs = 0.0, 0.0, 0
    for some in groups:
        count = len(some.points) if some.shape == "array" else 1
        jobs += count
        limit += some.layout.nodes * seconds(time_limit(some, request, partition)) * count / 3600
        for point in some.points:
            took = time_left([point], durations) or 0.0
            expected += (some.layout if some.shape == "nested" else point.layout).nodes * took / 3600
    finished = sum(len(values) for values in durations.values())
    return Cost(expected=expected if finished else None, limit=limit, jobs=jobs, finished=finished)
