"""Which launches share a job: one each, an array for each layout, or one allocation for all. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.spec.layout import Layout
from harness.spec.point import Point
from harness.sweep.request import Request, seconds, walltime
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


def group(points: Iterable[Point], shape: str) -> tuple[Group, ...]:
    """Return the jobs for `points`, in the order of their first launches.

    An array's tasks are alike, so each layout has its own; a single task is a plain job. Launches that share
    a nested allocation have the same ranks per node, threads and GPUs, so that every smaller one runs on the
    first nodes of the larger ones.
    """
    together: dict[object, list[Point]] = {}
    for point in points:
        together.setdefault(_shared(point, shape), []).append(point)
    return tuple(
        Group(shape="jobs" if len(some) == 1 and shape == "array" else shape, points=tuple(some))
        for some in together.values()
    )


def _shared(point: Point, shape: str) -> object:
    layout = point.layout
    if shape == "array":
        return layout
    if shape == "nested":
        return (layout.ranks_per_node, layout.threads, layout.gpus_per_rank)
    return point


def time_limit(some: Group, request: Request, limit: Partition | None) -> str:
    """Return the time limit of a job: its launches one after the other, within what the partition allows.

    Where that is not enough, the rest is missing and runs with the next command.
    """
    one = seconds(request.walltime)
    if some.shape != "nested":
        return walltime(one)
    total = one * len(some.points)
    return walltime(min(total, seconds(limit.walltime)) if limit is not None and limit.walltime else total)
