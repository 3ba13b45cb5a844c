"""What an allreduce costs, in closed form (Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, section 3).

A message of n bytes between two ranks takes alpha + n beta. The additions themselves are left out: memory adds
faster than a network sends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.base.errors import unknown

Array = NDArray[np.float64]
BEST = "best"


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A message's cost: `alpha_s` seconds, and `beta_s_per_byte` seconds for each byte."""

    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """The links between ranks: inside a node of `ranks_per_node` ranks, and between nodes."""

    network: Link
    node: Link | None = None
    ranks_per_node: int = 1


def ring(ranks: Array, size: float, link: Link) -> Array:
    """Return 2(p-1) alpha + 2(p-1)/p n beta."""
    cost: Array = 2 * (ranks - 1) * link.alpha_s + 2 * (ranks - 1) / ranks * size * link.beta_s_per_byte
    return cost


def rabenseifner(ranks: Array, size: float, link: Link) -> Array:
    """Return 2 ceil(log2 p) alpha + 2(p-1)/p n beta."""
    cost: Array = 2 * _rounds(ranks) * link.alpha_s + 2 * (ranks - 1) / ranks * size * link.beta_s_per_byte
    return cost


def recursive_doubling(ranks: Array, size: float, link: Link) -> Array:
    """Return ceil(log2 p) (alpha + n beta)."""
    cost: Array = _rounds(ranks) * (link.alpha_s + size * link.beta_s_per_byte)
    return cost


def _rounds(ranks: Array) -> Array:
    rounds: Array = np.ceil(np.log2(ranks))
    return rounds


ALGORITHMS: Mapping[str, Callable[[Array, float, Link], Array]] = {
    "ring": ring,
    "rabenseifner": rabenseifner,
    "recursive-doubling": recursive_doubling,
}


def allreduce_seconds(algorithm: str, ranks: ArrayLike, size: float, levels: Levels) -> Array:
    """Return the seconds of an allreduce of `size` bytes over each count of `ranks`, float64 like `ranks`.

    ``best`` takes the cheapest algorithm for each count. With several ranks on a node: all of a node reduce and
    broadcast among themselves, which costs them an allreduce, and one rank of each node takes part between nodes.

    Raises:
        UserError: the algorithm is unknown.
    """
    if algorithm not in (*ALGORITHMS, BEST):
        raise unknown("ALGORITHM", algorithm, (*ALGORITHMS, BEST))
    counts = np.asarray(ranks, dtype=float)
    nodes = np.ceil(counts / levels.ranks_per_node)
    cost = _flat(algorithm, nodes, size, levels.network)
    if levels.ranks_per_node > 1:
        cost = cost + _flat(algorithm, np.minimum(counts, levels.ranks_per_node), size, levels.node or levels.network)
    return cost


def _flat(algorithm: str, counts: Array, size: float, link: Link) -> Array:
    if algorithm != BEST:
        return ALGORITHMS[algorithm](counts, size, link)
    costs = [formula(counts, size, link) for formula in ALGORITHMS.values()]
    least: Array = np.minimum.reduce(costs)
    return least
