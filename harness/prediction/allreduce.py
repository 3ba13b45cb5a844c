"""What an allreduce costs, in closed form (Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, section 3).

A message of n bytes between two ranks takes alpha + n beta, adding n bytes to others n gamma. Counts that are no power
of two are handled as MPICH and Open MPI do (section 4.5).
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
    """The links between ranks, inside a node of `ranks_per_node` ranks and between nodes, and what a sum costs.

    `add_s_per_byte`: seconds to add a byte of a message to what a rank has; 0 leaves the additions out.
    """

    network: Link
    node: Link | None = None
    ranks_per_node: int = 1
    add_s_per_byte: float = 0.0


def ring(ranks: Array, size: float, link: Link, add: float) -> Array:
    """Return 2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma, for any p."""
    share = (ranks - 1) / ranks * size
    cost: Array = 2 * (ranks - 1) * link.alpha_s + 2 * share * link.beta_s_per_byte + share * add
    return cost


def rabenseifner(ranks: Array, size: float, link: Link, add: float) -> Array:
    """Return 2 log2(q) alpha + 2(q-1)/q n beta + (q-1)/q n gamma, q the power of two up to p, and `_surplus`."""
    power = _power(ranks)
    share = (power - 1) / power * size
    cost: Array = 2 * np.log2(power) * link.alpha_s + 2 * share * link.beta_s_per_byte + share * add
    return cost + _surplus(ranks, size, link, add)


def recursive_doubling(ranks: Array, size: float, link: Link, add: float) -> Array:
    """Return log2(q) (alpha + n beta + n gamma), q the power of two up to p, and `_surplus`."""
    cost: Array = np.log2(_power(ranks)) * (link.alpha_s + size * (link.beta_s_per_byte + add))
    return cost + _surplus(ranks, size, link, add)


def _power(ranks: Array) -> Array:
    power: Array = 2 ** np.floor(np.log2(np.maximum(ranks, 1)))
    return power


def _surplus(ranks: Array, size: float, link: Link, add: float) -> Array:
    """Return what the ranks beyond a power of two cost: they send all they have before, and get the sum after."""
    extra = 2 * (link.alpha_s + size * link.beta_s_per_byte) + size * add
    cost: Array = np.where(_power(ranks) < ranks, extra, 0.0)
    return cost


ALGORITHMS: Mapping[str, Callable[[Array, float, Link, float], Array]] = {
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
    cost = _flat(algorithm, nodes, size, levels.network, levels.add_s_per_byte)
    if levels.ranks_per_node > 1:
        inside = np.minimum(counts, levels.ranks_per_node)
        cost = cost + _flat(algorithm, inside, size, levels.node or levels.network, levels.add_s_per_byte)
    return cost


def _flat(algorithm: str, counts: Array, size: float, link: Link, add: float) -> Array:
    if algorithm != BEST:
        return ALGORITHMS[algorithm](counts, size, link, add)
    costs = [formula(counts, size, link, add) for formula in ALGORITHMS.values()]
    least: Array = np.minimum.reduce(costs)
    return least
