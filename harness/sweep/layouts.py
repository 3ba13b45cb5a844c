"""The layouts of a sweep from lists of counts: every combination, or one after the other. Pure."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.base.errors import UserError
from harness.schema.layout import Layout
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
            raise UserError(f"ZIP=1 needs lists of one length, these have {sorted(lengths)}: give as many of each")

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


def combine(
    axes: Axes, limit: Partition | None, shares: tuple[int, ...] | None = None
) -> tuple[tuple[Layout, ...], tuple[str, ...]]:
    """Return the layouts of `axes`, and why the other combinations cannot be.

    Where ranks per node are left open, cores and GPUs fill the nodes of the partition `limit`. A single rank
    has no shares: it is the base of the others.

    Raises:
        UserError: no combination can be, or the shares do not match the ranks.
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
        if shares is not None and layout.ranks > 1:
            layout = replace(layout, shares=shares)
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
    name = "GPUS" if gpus else "CORES"
    if not gpus and units % threads:
        raise UserError(f"{name}={units} is no multiple of THREADS={threads}")
    ranks = units if gpus else units // threads
    if per_node is None:
        per_node = -(-ranks // nodes) if nodes is not None else _fitting(ranks, gpus, threads, limit)
    per_node = min(per_node, ranks)
    wanted = -(-ranks // per_node)
    if nodes is not None and nodes != wanted:
        raise UserError(f"NODES={nodes} {name}={units}: {ranks} ranks at {per_node} a node fill {wanted} nodes")
    rest = ranks - (wanted - 1) * per_node
    return Layout(
        nodes=wanted,
        ranks_per_node=per_node,
        threads=threads,
        gpus_per_rank=gpus,
        last_node=rest if rest < per_node else None,
    )


def _fitting(ranks: int, gpus: int, threads: int, limit: Partition | None) -> int:
    """Return how many ranks a node takes."""
    there = None if limit is None else limit.gpus_per_node if gpus else limit.cores_per_node
    if not there:
        name = "GPUS" if gpus else "CORES"
        raise UserError(f"{name} needs RANKS_PER_NODE=: how many {name.lower()} a node has is not known here")
    fit = there if gpus else there // threads
    if not fit:
        raise UserError(f"THREADS={threads} is more than the {there} cores of a node")
    return min(ranks, fit)
