"""Which launches share a job: one each, an array, an allocation in which they follow each other, or a turn block."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.schema.layout import Layout, layout_order
from harness.schema.point import Point, digest
from harness.schema.workload import IMAGENET, survives


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlan:
    """The launches of one job, in launch order. `shape` is one of `site.SHAPES`."""

    shape: str
    points: tuple[Point, ...]

    @property
    def layout(self) -> Layout:
        """The largest of the layouts: what the job must be given."""
        return max((point.layout for point in self.points), key=lambda layout: (layout.nodes, layout.ranks))

    @property
    def jobs(self) -> int:
        """How many jobs it is in a queue: an array has one for each launch."""
        return len(self.points) if self.shape == "array" else 1


def plan_jobs(points: Iterable[Point], shape: str) -> tuple[JobPlan, ...]:
    """Return the jobs for `points`, in the order of their first launches.

    An array's tasks are the same, so each layout has its own; a single task is a plain job. Launches that share
    a nested allocation have the same ranks per node, threads and GPUs, so that every smaller one runs on the
    first nodes of the larger ones.
    """
    sharing: dict[object, list[Point]] = {}
    for point in points:
        sharing.setdefault(_shared(point, shape), []).append(point)
    return tuple(
        JobPlan(shape="jobs" if len(launches) == 1 and shape == "array" else shape, points=tuple(launches))
        for launches in sharing.values()
    )


def _shared(point: Point, shape: str) -> object:
    """Return what launches have in common that share a job of `shape`."""
    layout = point.layout
    if shape == "array":
        return layout
    if shape == "nested":
        return (layout.ranks_per_node, layout.threads, layout.gpus_per_rank)
    return point


def takes_turns(point: Point) -> bool:
    """Return whether ranks can wait for a turn: not those that outlive others, decode ahead, or share GPU or core."""
    workload = point.workload
    from_files = workload.input == "files" or (workload.input == "auto" and not point.data_id.startswith("synthetic"))
    decodes_ahead = workload.dataset == IMAGENET and from_files
    return not (survives(workload) or decodes_ahead or point.oversubscribe)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnMemory:
    """What memory allows of launches that wait for each other: a rank takes `rank_bytes`, `free` bytes are there.

    With `nodes` they are those of a node of a batch system, on which one node's ranks of a launch are.
    """

    rank_bytes: int
    free: float
    nodes: bool = False

    def need(self, point: Point) -> int:
        """Return the bytes that a launch takes."""
        ranks = point.layout.ranks_per_node if self.nodes else point.layout.ranks
        return ranks * self.rank_bytes

    def split(self, base: Point, others: Sequence[Point]) -> tuple[list[Point], list[Point]]:
        """Return those of `others` that are in memory beside `base`, in their order and one at least, and the rest."""
        room = self.free - self.need(base) - self.need(others[0])
        count = 1
        while count < len(others) and self.need(others[count]) <= room:
            room -= self.need(others[count])
            count += 1
        return list(others[:count]), list(others[count:])


def plan_turn_blocks(
    points: Sequence[Point], all_points: Sequence[Point], memory: TurnMemory
) -> tuple[tuple[JobPlan, ...], tuple[str, ...]]:
    """Return the jobs for the missing `points`: a turn block for each repeat, and what to say of them.

    `all_points` are the sweep's. A block has the layout with the fewest ranks, which the others are compared with,
    even where that launch is not missing. Where all of a repeat do not fit into memory, it has several blocks, each
    with the base. What cannot wait for a turn is launched alone: ranks that outlive others, images that are decoded
    ahead of the steps, more ranks than cores.

    On the `nodes` of a batch system a block is a job, whose launches share its first node. All launches of a block have
    the same ranks per node, threads and GPUs. Launches that cannot wait for a turn follow each other in an allocation
    of their own.
    """
    waiting = [point for point in points if takes_turns(point)]
    unfit = [point for point in points if not takes_turns(point)]
    plans = list(plan_jobs(unfit, "nested")) if memory.nodes else []
    notes: dict[str, None] = {}
    for kind in dict.fromkeys(_block_kind(point, nodes=memory.nodes) for point in points):
        if not memory.nodes:
            plans += plan_jobs(_of_kind(kind, unfit, memory), "jobs")
        launches = _of_kind(kind, waiting, memory)
        turning = filter(takes_turns, _of_kind(kind, all_points, memory))
        base = min(turning, key=lambda point: layout_order(point.layout), default=None)
        others = [point for point in launches if point != base]
        if base is None or not others:
            plans += [JobPlan(shape="jobs", points=(point,)) for point in launches]
            continue
        while others:
            fitting, others = memory.split(base, others)
            block = (base, *fitting)
            need = sum(map(memory.need, block))
            if need > memory.free or others:
                text = f"{len(block)} layouts at a time, which need about {need / 2**30:.1f} GB of memory"
                notes[f"in turns: {text}"] = None
            plans.append(JobPlan(shape="block", points=block))
    return tuple(plans), tuple(notes)


def _block_kind(point: Point, *, nodes: bool) -> tuple[object, ...]:
    """Return what launches have in common that may be in one turn block."""
    return (point.repeat, _shared(point, "nested")) if nodes else (point.repeat,)


def _of_kind(kind: tuple[object, ...], points: Iterable[Point], memory: TurnMemory) -> list[Point]:
    return [point for point in points if _block_kind(point, nodes=memory.nodes) == kind]


def without_layouts(plans: Iterable[JobPlan], layouts: Collection[Layout]) -> tuple[list[JobPlan], list[Point]]:
    """Return `plans` without the launches of `layouts`, and those launches; what shared a job with them stays."""
    remaining: list[JobPlan] = []
    taken: list[Point] = []
    for plan in plans:
        rest = tuple(point for point in plan.points if point.layout not in layouts)
        taken += [point for point in plan.points if point.layout in layouts]
        if len(rest) == len(plan.points):
            remaining.append(plan)
        elif rest:
            remaining.append(JobPlan(shape=plan.shape if len(rest) > 1 else "jobs", points=rest))
    return remaining, taken


QUEUE_NAME = re.compile(r"[a-z0-9]{1,5}-[0-9a-f]{8}")
"""What `queue_name` returns."""


def queue_name(folder: Path, plan: JobPlan) -> str:
    """Return the job's name in the queue: the same for the same launches of the same folder, at most 14 characters.

    It begins with that of the data set or script, by which people know it.
    """
    stem = re.sub(r"[^a-z0-9]|^[0-9]+", "", plan.points[0].workload.name.lower())[:5] or "h"
    return f"{stem}-{digest((str(folder.resolve()), [point.key for point in plan.points]))[:8]}"
