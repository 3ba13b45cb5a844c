"""Which launches share a job (one each, an array for each layout, one allocation for all), and what they cost. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.schema.layout import Layout
from harness.schema.sweep import Point
from harness.sweep.job_options import JobRequest, seconds, walltime
from harness.sweep.plan import time_left
from harness.sweep.site import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The launches of one job, in launch order. `shape` is ``jobs``, ``array`` or ``nested``."""

    shape: str
    points: tuple[Point, ...]

    @property
    def layout(self) -> Layout:
        """The largest of the layouts: what the job must be given."""
        return max((point.layout for point in self.points), key=lambda layout: (layout.nodes, layout.ranks))


def group_points(points: Iterable[Point], shape: str) -> tuple[Group, ...]:
    """Return the jobs for `points`, in the order of their first launches.

    An array's tasks are alike, so each layout has its own; a single task is a plain job. Launches that share
    a nested allocation have the same ranks per node, threads and GPUs, so that every smaller one runs on the
    first nodes of the larger ones.
    """
    together: dict[object, list[Point]] = {}
    for point in points:
        together.setdefault(_shared(point, shape), []).append(point)
    return tuple(
        Group(shape="jobs" if len(group) == 1 and shape == "array" else shape, points=tuple(group))
        for group in together.values()
    )


def _shared(point: Point, shape: str) -> object:
    layout = point.layout
    if shape == "array":
        return layout
    if shape == "nested":
        return (layout.ranks_per_node, layout.threads, layout.gpus_per_rank)
    return point


def time_limit(group: Group, request: JobRequest, limit: Partition | None) -> str:
    """Return the time limit of a job: its launches one after the other, within what the partition allows.

    Where that is not enough, the rest is missing and runs with the next command.
    """
    total = sum(request.limit_s(point.layout.nodes) for point in group.points)
    if group.shape != "nested":
        return walltime(total / len(group.points))  # an array's launches are alike
    return walltime(min(total, seconds(limit.walltime)) if limit is not None and limit.walltime else total)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHours:
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
    groups: Iterable[Group],
    request: JobRequest,
    partition: Partition | None,
    durations: Mapping[Layout, Sequence[float]],
) -> NodeHours:
    """Return the cost of `groups`; `durations` holds the seconds of finished launches by layout."""
    limit, expected, jobs = 0.0, 0.0, 0
    for group in groups:
        count = len(group.points) if group.shape == "array" else 1
        jobs += count
        limit += group.layout.nodes * seconds(time_limit(group, request, partition)) * count / 3600
        for point in group.points:
            took = time_left([point], durations) or 0.0
            expected += (group.layout if group.shape == "nested" else point.layout).nodes * took / 3600
    finished = sum(len(values) for values in durations.values())
    return NodeHours(expected=expected if finished else None, limit=limit, jobs=jobs, finished=finished)
