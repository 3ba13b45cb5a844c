"""What a sweep launches: layouts from lists of counts, their order, and how long the rest will take.

Pure: no function here reads, asks, prints or writes anything.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.sweep import Skipped, Sweep
from harness.sweep.site import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """The counts that a user gave; an empty tuple is a count he left open.

    `cores` and `gpus` count over all nodes. A rank has `threads` cores, or one GPU where `gpus` are given.

    Raises:
        UserError: both cores and GPUs are given, or counts of different lengths are to be zipped.
    """

    nodes: tuple[int, ...] = ()
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    ranks_per_node: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)
    zipped: bool = False

    def __post_init__(self) -> None:
        if self.cores and self.gpus:
            raise UserError("CORES and GPUS both say how many ranks there are: give one of them")
        lengths = {len(counts) for counts in self._lists() if len(counts) > 1}
        if self.zipped and len(lengths) > 1:
            raise UserError(
                f"{setting('zip', True)} needs lists of one length, these have {sorted(lengths)}: give as many of each"
            )

    def _lists(self) -> tuple[tuple[int, ...], ...]:
        return (self.nodes, self.cores or self.gpus, self.ranks_per_node, self.threads)

    def combinations(self) -> Iterator[tuple[int | None, ...]]:
        """Yield (nodes, cores or GPUs, ranks per node, threads), None for what was left open."""
        lists = [counts or (None,) for counts in self._lists()]
        if not self.zipped:
            yield from itertools.product(*lists)
            return
        longest = max(len(counts) for counts in lists)
        yield from zip(*(counts if len(counts) > 1 else counts * longest for counts in lists), strict=True)


def fill_nodes(axes: Axes, limit: Partition | None) -> Axes:
    """Return `axes` with the ranks of a node and their threads filled in where they are left open.

    They fill the nodes of the partition `limit`: a rank for each NUMA domain, or for each GPU, with as many threads as
    it has cores. Where nothing is known of the nodes, or lists leave several ways, a rank has one thread.
    """
    cores = limit.cores_per_node if limit else None
    if limit is None or not cores or axes.cores:
        return replace(axes, threads=axes.threads or (1,))
    if axes.threads:
        is_open = not (axes.ranks_per_node or axes.gpus) and len(axes.threads) == 1
        return replace(axes, ranks_per_node=(max(1, cores // axes.threads[0]),)) if is_open else axes
    if len(axes.ranks_per_node) > 1:
        return replace(axes, threads=(1,))
    if axes.ranks_per_node:
        return replace(axes, threads=(max(1, cores // axes.ranks_per_node[0]),))
    if axes.gpus:
        return replace(axes, threads=(max(1, cores // (limit.gpus_per_node or 1)),))
    ranks = limit.numa_domains or 1
    return replace(axes, ranks_per_node=(ranks,), threads=(max(1, cores // ranks),))


def combine(axes: Axes, limit: Partition | None) -> tuple[tuple[Layout, ...], tuple[str, ...]]:
    """Return the layouts of `axes`, and why the other combinations cannot be.

    Where ranks per node are left open, cores and GPUs fill the nodes of the partition `limit`.

    Raises:
        UserError: no combination can be.
    """
    layouts: dict[Layout, None] = {}
    refused: list[str] = []
    for nodes, units, per_node, threads in axes.combinations():
        assert threads is not None
        try:
            layout = _layout(axes, nodes, units, per_node, threads, limit)
        except UserError as error:
            refused.append(str(error))
            continue
        layouts[layout] = None
    if not layouts:
        raise UserError(f"no combination can run: {refused[0]}")
    return tuple(layouts), tuple(refused)


def _layout(
    axes: Axes, nodes: int | None, units: int | None, per_node: int | None, threads: int, limit: Partition | None
) -> Layout:
    gpus = 1 if axes.gpus else 0
    if units is None:
        assert nodes is not None
        return Layout(nodes=nodes, ranks_per_node=per_node or 1, threads=threads)
    name = "gpus" if gpus else "cores"
    if not gpus and units % threads:
        raise UserError(f"{setting(name, units)} is not a multiple of {setting('threads', threads)}")
    ranks = units if gpus else units // threads
    if per_node is None:
        per_node = -(-ranks // nodes) if nodes is not None else _fitting(ranks, gpus, threads, limit)
    per_node = min(per_node, ranks)
    wanted = -(-ranks // per_node)
    if nodes is not None and nodes != wanted:
        raise UserError(
            f"{setting('nodes', nodes)} {setting(name, units)}: {ranks} ranks at {per_node} a node fill {wanted} nodes"
        )
    rest = ranks - (wanted - 1) * per_node
    return Layout(
        nodes=wanted,
        ranks_per_node=per_node,
        threads=threads,
        gpus_per_rank=gpus,
        last_node=rest if rest < per_node else None,
    )


def _fitting(ranks: int, gpus: int, threads: int, limit: Partition | None) -> int:
    units: int | None = None
    if limit is not None:
        units = limit.gpus_per_node if gpus else limit.cores_per_node
    if not units:
        name, many = ("gpus", "GPUs") if gpus else ("cores", "cores")
        why = f"{limit.name} has none" if limit and units == 0 else f"how many {many} a node has is not known here"
        raise UserError(f"{setting(name)} needs {setting('ranks_per_node')}: {why}")
    fit = units if gpus else units // threads
    if not fit:
        raise UserError(f"{setting('threads', threads)} is more than the {units} cores of a node")
    return min(ranks, fit)


def split_runnable(
    layouts: Iterable[Layout], refusal: Callable[[Layout], str | None]
) -> tuple[tuple[Layout, ...], tuple[Skipped, ...]]:
    """Return the layouts that can run and those that cannot; `refusal` gives the reason or None."""
    reasons = {layout: refusal(layout) for layout in layouts}
    skipped = (Skipped(layout=layout, reason=reason) for layout, reason in reasons.items() if reason is not None)
    return tuple(layout for layout, reason in reasons.items() if reason is None), tuple(skipped)


def launch_order(sweep: Sweep, runnable: Sequence[Layout]) -> tuple[Point, ...]:
    """Return every point of the `runnable` layouts once, one repeat after the other, each of them shuffled.

    So slow drift of the machine falls on all layouts in the same way (Hoefler & Belli, SC'15, rule 9). The order is a
    function of the study and the layouts: the same command again goes on where it stopped.
    """
    can_run = set(runnable)
    of_repeat: dict[int, list[Point]] = {repeat: [] for repeat in range(sweep.repeats)}
    for point in sweep.points():
        if point.layout in can_run:
            of_repeat[point.repeat].append(point)
    ordered: list[Point] = []
    for repeat, launches in of_repeat.items():
        random.Random(f"{sweep.name}/{repeat}").shuffle(launches)
        ordered += launches
    return tuple(ordered)


def time_left(remaining: Iterable[Point], seconds: Mapping[Layout, Sequence[float]]) -> float | None:
    """Return the seconds that `remaining` will take, None before the first launch has ended.

    `seconds` holds the durations of finished launches. A layout takes its own median; one that has not run
    yet, the mean of the other medians.
    """
    medians = {layout: median(values) for layout, values in seconds.items() if values}
    if not medians:
        return None
    typical = fmean(medians.values())
    return sum(medians.get(point.layout, typical) for point in remaining)


def format_seconds(seconds: float) -> str:
    """Return a duration as people say it: ``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
