"""Jobs: which launches share one, an array or an allocation in which all train, in turns or one by one."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.schema.layout import Layout, layout_order
from harness.schema.point import Point, digest
from harness.schema.sweep_folder import SweepFolder
from harness.schema.workload import IMAGENET, survives

QUEUE_NAME = re.compile(r"[a-z0-9]{1,5}-[0-9a-f]{8}")
"""What the name of a job is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is submitted: launches in launch order, by a script among the files of their sweep's `folder`.

    `mode` is that of `JobRequest`: ``jobs`` (one launch), ``array`` (a task for each launch) or ``turns`` (an
    allocation of the largest size for all). There they train `in_turns`, block after block; those that cannot wait for
    a turn follow each other. A job of blocks goes on with the `extra` launches while the speedups are not known well
    enough. Where memory does not hold all launches of a repeat, the one that the others are compared with is in each of
    its blocks.
    """

    folder: Path
    mode: str
    points: tuple[Point, ...]
    extra: tuple[Point, ...] = ()
    in_turns: bool = False

    @property
    def files(self) -> SweepFolder:
        """The files of its sweep, by absolute paths."""
        return SweepFolder(self.folder.resolve())

    @property
    def name(self) -> str:
        """Its name in the queue: the same for the same launches of the same folder, at most 14 characters.

        It begins with that of the data set or script, by which people know it.
        """
        stem = re.sub(r"[^a-z0-9]|^[0-9]+", "", self.points[0].workload.name.lower())[:5] or "h"
        keys = [point.key for point in self.points]
        return f"{stem}-{digest((str(self.files.path), keys))[:8]}"

    @property
    def script(self) -> Path:
        """The script that is run."""
        if self.mode == "jobs":
            return self.files.script(self.points[0].folder)
        return self.files.script(f"{'block' if self.in_turns else self.mode}-{self.name}")

    @property
    def log(self) -> Path:
        """The file that takes the output of the referee, or of the first launch where there is none."""
        return self.files.log(self.name if self.in_turns else self.points[0].folder)

    @property
    def queued(self) -> int:
        """How many jobs it is in a queue: an array has one for each launch."""
        return self.tasks or 1

    @property
    def tasks(self) -> int:
        """The number of an array's tasks, 0 for a job that is none."""
        return len(self.points) if self.mode == "array" else 0

    @property
    def layout(self) -> Layout:
        """The largest of the layouts: what the job must be given."""
        return max((point.layout for point in self.points), key=lambda layout: (layout.nodes, layout.ranks))

    @property
    def is_shared(self) -> bool:
        """Whether launches share one job's nodes."""
        return self.mode == "turns"

    @property
    def repeats(self) -> int:
        """Of how many repeats of the sweep it has launches."""
        return len({point.repeat for point in self.points})

    @property
    def needed_blocks(self) -> tuple[tuple[Point, ...], ...]:
        """The blocks of the launches that are asked for, in the order in which they train."""
        return _split_into_blocks(self.points)

    @property
    def extra_blocks(self) -> tuple[tuple[Point, ...], ...]:
        """The blocks of the extra launches."""
        return _split_into_blocks(self.extra)

    def block_of_launches(self) -> dict[Point, int]:
        """Return the number of the first block that each launch is in, counted from 0."""
        numbers: dict[Point, int] = {}
        for number, block in enumerate((*self.needed_blocks, *self.extra_blocks)):
            for point in block:
                numbers.setdefault(point, number)
        return numbers

    @property
    def launches(self) -> tuple[Point, ...]:
        """Every launch once, the extra ones too."""
        return tuple(dict.fromkeys((*self.points, *self.extra)))


def _split_into_blocks(points: Iterable[Point]) -> tuple[tuple[Point, ...], ...]:
    """Return the blocks of `points`: a new one begins with a new repeat, or with a launch that the last one has."""
    blocks: list[list[Point]] = []
    for point in points:
        if not blocks or point in blocks[-1] or point.repeat != blocks[-1][0].repeat:
            blocks.append([])
        blocks[-1].append(point)
    return tuple(map(tuple, blocks))


def plan_jobs(points: Iterable[Point], mode: str, folder: Path) -> tuple[Job, ...]:
    """Return the jobs for `points`, in the order of their first launches, of which none waits for a turn.

    The files of these, and of the other jobs that are planned here, are in the `folder` of the sweep.

    An array's tasks are the same, so each layout has its own; a single task is a plain job. Launches that share
    an allocation have the same ranks per node, threads and GPUs, so that every smaller one runs on the
    first nodes of the larger ones.
    """
    sharing: dict[object, list[Point]] = {}
    for point in points:
        sharing.setdefault(_shared(point, mode), []).append(point)
    return tuple(
        Job(folder=folder, mode="jobs" if len(launches) == 1 and mode == "array" else mode, points=tuple(launches))
        for launches in sharing.values()
    )


def _shared(point: Point, mode: str) -> object:
    """Return what launches have in common that share a job of `mode`."""
    layout = point.layout
    if mode == "array":
        return layout
    if mode == "turns":
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
    points: Sequence[Point], all_points: Sequence[Point], memory: TurnMemory, folder: Path
) -> tuple[tuple[Job, ...], tuple[str, ...]]:
    """Return the jobs of one machine for the missing `points`: a turn block for each repeat, and what to say of them.

    `all_points` are the sweep's. A block has the layout with the fewest ranks, which the others are compared with,
    even where that launch is not missing. Where all of a repeat do not fit into memory, it has several blocks, each
    with the base. What cannot wait for a turn is launched alone: ranks that outlive others, images that are decoded
    ahead of the steps, more ranks than cores.
    """
    jobs: list[Job] = []
    notes: dict[str, None] = {}
    for repeat in dict.fromkeys(point.repeat for point in points):
        missing = [point for point in points if point.repeat == repeat]
        jobs += plan_jobs((point for point in missing if not takes_turns(point)), "jobs", folder)
        launches = [point for point in missing if takes_turns(point)]
        turning = [point for point in all_points if point.repeat == repeat and takes_turns(point)]
        base = min(turning, key=lambda point: layout_order(point.layout), default=None)
        others = [point for point in launches if point != base]
        if base is None or not others:
            jobs += plan_jobs(launches, "jobs", folder)
            continue
        for fitting, note in _in_memory(base, others, memory):
            notes |= dict.fromkeys(note)
            jobs.append(Job(folder=folder, mode="turns", points=(base, *fitting), in_turns=True))
    return tuple(jobs), tuple(notes)


def _in_memory(
    base: Point, others: Sequence[Point], memory: TurnMemory
) -> Iterator[tuple[Sequence[Point], tuple[str, ...]]]:
    """Yield those of `others` that are in memory at a time beside `base`, and what is to be said of that."""
    while others:
        fitting, others = memory.split(base, others)
        block = (base, *fitting)
        need = sum(map(memory.need, block))
        note: tuple[str, ...] = ()
        if need > memory.free or others:
            text = f"{len(block)} layouts at a time, which need about {need / 2**30:.1f} GB of memory"
            note = (f"interleaved: {text}",)
        yield fitting, note


def plan_allocations(
    points: Sequence[Point],
    all_points: Sequence[Point],
    memory: TurnMemory,
    folder: Path,
    *,
    allocations: int = 1,
    most_blocks: int = 0,
    queued: Collection[str] = (),
) -> tuple[tuple[Job, ...], tuple[str, ...]]:
    """Return the jobs of a batch system for the missing `points`: one for each allocation, and what to say of them.

    An allocation has a turn block for each of its repeats, one after the other; of several allocations each has every
    so many-th repeat. All launches of a job have the same ranks per node, threads and GPUs. A single job of which no
    launch has been made goes on to `most_blocks` blocks. Launches that cannot wait for a turn, and those of a single
    layout, follow each other in an allocation of their own. So do those whose base is in another job: of the folders
    that are `queued`.
    """
    jobs = list(plan_jobs((point for point in points if not takes_turns(point)), "turns", folder))
    waiting = [point for point in points if takes_turns(point)]
    notes: dict[str, None] = {}

    def kind_of(point: Point) -> tuple[object, ...]:
        return (_shared(point, "turns"), point.repeat % allocations)

    for kind in dict.fromkeys(map(kind_of, waiting)):
        missing = [point for point in waiting if kind_of(point) == kind]
        turning = [point for point in all_points if takes_turns(point) and kind_of(point) == kind]
        bases = _bases(turning)
        base = next(iter(bases.values()))
        bases = {repeat: point for repeat, point in bases.items() if point.folder not in queued}
        one_of_each = {point.layout: point for point in missing if point.layout != base.layout}
        at_a_time: list[set[Layout]] = []
        for fitting, note in _in_memory(base, list(one_of_each.values()), memory):
            notes |= dict.fromkeys(note)
            at_a_time.append({point.layout for point in fitting})
        in_blocks = _with_bases(bases, missing, at_a_time)
        if in_blocks:
            extra = _extra(in_blocks, most_blocks) if allocations == 1 and len(missing) == len(turning) else ()
            jobs.append(Job(folder=folder, mode="turns", points=in_blocks, extra=extra, in_turns=True))
        rest = tuple(point for point in missing if point not in in_blocks)
        if rest:
            jobs.append(Job(folder=folder, mode="turns", points=rest))
    return tuple(jobs), tuple(notes)


def _bases(points: Sequence[Point]) -> dict[int, Point]:
    """Return the launch of each repeat that the others are compared with: that of the fewest ranks."""
    least = min((point.layout for point in points), key=layout_order)
    return {point.repeat: point for point in points if point.layout == least}


def _with_bases(
    bases: Mapping[int, Point], points: Sequence[Point], at_a_time: Sequence[set[Layout]]
) -> tuple[Point, ...]:
    """Return the `points` of the layouts of each block, repeat by repeat, each block with its base first."""
    launches: list[Point] = []
    for repeat in sorted({point.repeat for point in points} & bases.keys()):
        for layouts in at_a_time:
            others = [point for point in points if point.repeat == repeat and point.layout in layouts]
            if others:
                launches += [bases[repeat], *others]
    return tuple(launches)


def _extra(points: Sequence[Point], most_blocks: int) -> tuple[Point, ...]:
    """Return the launches of further repeats, up to `most_blocks`: those of the last repeat again."""
    last = max(point.repeat for point in points)
    again = [point for point in points if point.repeat == last]
    return tuple(replace(point, repeat=repeat) for repeat in range(last + 1, most_blocks) for point in again)


def without_layouts(jobs: Iterable[Job], layouts: Collection[Layout]) -> tuple[list[Job], list[Point]]:
    """Return `jobs` without the launches of `layouts`, and those launches; what shared a job with them stays."""
    remaining: list[Job] = []
    taken: list[Point] = []
    for job in jobs:
        rest = tuple(point for point in job.points if point.layout not in layouts)
        taken += dict.fromkeys(point for point in job.points if point.layout in layouts)
        if len(rest) == len(job.points):
            remaining.append(job)
        elif rest:
            extra = tuple(point for point in job.extra if point.layout not in layouts)
            remaining.append(_smaller(job, rest, extra))
    return remaining, taken


def _smaller(job: Job, points: tuple[Point, ...], extra: tuple[Point, ...]) -> Job:
    """Return the job of the launches that are left of those of `job`: a single layout takes no turns."""
    if len(points) == 1:
        return Job(folder=job.folder, mode="jobs", points=points)
    if job.in_turns and len({point.layout for point in points}) == 1:
        return Job(folder=job.folder, mode="turns", points=points)
    return replace(job, points=points, extra=extra)
