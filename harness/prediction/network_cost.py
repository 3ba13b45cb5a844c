"""What a network costs: latency and bandwidth of its links, given or probed, and an allreduce over them in closed form.

A message of n bytes between two ranks takes t(n) = alpha + n beta, or, where a probe measured its size, what the probe
says (Kielmann, Bal, Verstoep, "Fast measurement of LogP parameters for message passing platforms", IPDPS 2000
Workshops). For long messages the library first asks the receiver, and the answer waits for the data that goes the same
way. The allreduces are those of Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, section 3; rank counts that are not a
power of two are handled as MPICH and Open MPI do (section 4.5).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.probe.probe_store import read_probe
from harness.schema.message_cost import ALLREDUCE, NETWORK, NODE, POINT_TO_POINT, MessageCost, Probe

Array = NDArray[np.float64]
OVERHEAD = (0.75, 1.5)  # what an allreduce takes over its closed form: sums overlap, libraries are not that good
_SMALL = 2**14  # bytes of a tensor that is packed with its like (kSmall in comm/native/messages.cc)
_LONG = 2**17  # bytes of a message: an allreduce of twice as many, and more, is two exchanges on 2 ranks of Open MPI
_LEFT_OUT = "; the additions of an allreduce are left out"
_PAIR = re.compile(r"([0-9.eE+-]+)\s*,\s*([0-9.eE+-]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A message's cost: `alpha_s` seconds, and `beta_s_per_byte` seconds for each byte.

    `bends`: sizes in bytes, ascending, each with the measured time of messages from that size on over what the line
    says. Protocols change at powers of two, where a probe's sizes are: between them nothing is made smooth.
    """

    alpha_s: float
    beta_s_per_byte: float
    bends: tuple[tuple[float, float], ...] = ()

    def seconds(self, size: Array | float) -> Array:
        """Return the seconds of messages of `size` bytes."""
        sizes, factors = np.array(self.bends or ((1.0, 1.0),)).T
        factor = factors[np.maximum(0, np.searchsorted(sizes, size, side="right") - 1)]
        seconds: Array = (self.alpha_s + size * self.beta_s_per_byte) * factor
        return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertain:
    """The cost of a link with the low and the high end of its intervals."""

    value: Link
    low: Link
    high: Link

    @classmethod
    def exact(cls, link: Link) -> "Uncertain":
        """Return `link` without an interval."""
        return cls(value=link, low=link, high=link)


def ring(ranks: Array, size: float, link: Link) -> Array:
    """Return 2(p-1) t(n/p), for any p."""
    cost: Array = (ranks - 1) * (2 * link.seconds(size / ranks))
    return cost


def rabenseifner(ranks: Array, size: float, link: Link) -> Array:
    """Return 2 (t(n/2) + t(n/4) + ... + t(n/q)), q the power of two up to p, and `_surplus`."""
    power = _power(ranks)
    parts = 2.0 ** np.arange(1, 1 + np.log2(power.max(initial=1)))
    sent = np.where(parts <= power[..., None], link.seconds(size / parts), 0.0)
    cost: Array = 2 * sent.sum(axis=-1)
    return cost + _surplus(ranks, size, link)


def recursive_doubling(ranks: Array, size: float, link: Link) -> Array:
    """Return log2(q) t(n), q the power of two up to p, and `_surplus`."""
    cost: Array = np.log2(_power(ranks)) * link.seconds(size)
    return cost + _surplus(ranks, size, link)


def _power(ranks: Array) -> Array:
    power: Array = 2 ** np.floor(np.log2(np.maximum(ranks, 1)))
    return power


def _surplus(ranks: Array, size: float, link: Link) -> Array:
    """Return what the ranks beyond a power of two cost: they send all they have before, and get the result after."""
    cost: Array = np.where(_power(ranks) < ranks, 2 * link.seconds(size), 0.0)
    return cost


def allreduce_seconds(ranks: ArrayLike, size: float, link: Link) -> Array:
    """Return the seconds of an allreduce of `size` bytes over each count of `ranks`, float64 like `ranks`.

    One rank on each node, by the cheapest algorithm for each count.
    """
    counts = np.asarray(ranks, dtype=float)
    halving = np.minimum(rabenseifner(counts, size, link), recursive_doubling(counts, size, link))
    # At powers of two the ring has as many bytes in more messages: no library takes it there, whatever messages cost.
    least: Array = np.where(_power(counts) < counts, np.minimum(halving, ring(counts, size, link)), halving)
    return least


def calls(tensors: Sequence[float]) -> tuple[float, ...]:
    """Return the bytes of each allreduce that sums `tensors`, given by their bytes, between hosts of one rank each."""
    small = sum(size for size in tensors if size < _SMALL)
    return (*(size for size in tensors if size >= _SMALL), *([small] if small else []))


def read_links(text: str) -> tuple[Uncertain, str]:
    """Return the link between nodes that the user's `text` describes, and one sentence about it.

    `text` is ``ALPHA,BETA`` (seconds, seconds per byte) or a probe.json.

    Raises:
        UserError: the text is neither, a cost is negative, or the probe cannot be read or lacks the costs.
    """
    if _PAIR.fullmatch(text.strip()):
        link = _given_link(text)
        words = f"alpha {link.alpha_s * 1e6:g} µs and {_rate(link.beta_s_per_byte)}, as given" + _LEFT_OUT
        return Uncertain.exact(link), words
    path = Path(text)
    if not path.is_file():
        raise UserError(
            f"{setting('network', text)} is neither ALPHA,BETA in seconds and seconds per byte nor a probe.json"
        )
    return probe_links(read_probe(path))


def probe_links(probe: Probe) -> tuple[Uncertain, str]:
    """Return the link that `probe` measured from point to point, and one sentence.

    Where the probe saw one host only, a link between two of its ranks stands for every link, and the sentence says so.

    Raises:
        UserError: the probe is invalid or has no point-to-point cost.
    """
    name = f"probe of {probe.measured:%Y-%m-%d %H:%M} UTC on {probe.machine.hostname}"
    if probe.invalid:
        raise UserError(f"the {name} is invalid ({probe.invalid[0]}): run `harness probe` again")
    costs = probe.by_setting[0]
    between = costs.find(POINT_TO_POINT, NETWORK)
    cost = between or costs.find(POINT_TO_POINT, NODE)
    if cost is None:
        raise UserError(f"the {name} has no point-to-point cost: run `harness probe` again on 2 ranks or more")
    where = "between hosts" if between else "inside one host, which stands for the network too"
    allreduce = costs.find(ALLREDUCE, cost.level)
    bends = _bends(cost, allreduce)
    words = f"alpha {cost.alpha_s.value * 1e6:.3g} µs and {_rate(cost.beta_s_per_byte.value)}, probed {where}"
    both_ways = "; long messages both ways at once, and their additions, as in the probed allreduce"
    words += both_ways if allreduce else _LEFT_OUT
    value, low, high = (_link_at(cost, bends, end) for end in ("value", "low", "high"))
    return Uncertain(value=value, low=low, high=high), words


def _bends(cost: MessageCost, allreduce: MessageCost | None) -> tuple[tuple[float, float], ...]:
    """Return what messages take over the line, as in `Link`: long ones both ways at once, their additions included.

    An allreduce of n bytes on 2 ranks is two exchanges of n/2: a message each way takes half of its time. On more the
    longest are n/2 too, and all are taken to be as much longer than one way as the allreduce is than its form.
    """
    one_way = tuple((float(time.bytes), time.seconds.value / cost.line(time.bytes)) for time in cost.sizes)
    if allreduce is None or allreduce.ranks < 2:
        return one_way
    ranks = np.array([float(allreduce.ranks)])
    link = _link_at(cost, one_way, "value")
    both_ways = []
    for time in allreduce.sizes:
        half = time.bytes / 2
        if half >= _LONG:
            cheapest_s = min(float(algorithm(ranks, time.bytes, link)[0]) for algorithm in (ring, rabenseifner))
            message_s = time.seconds.value / cheapest_s * float(link.seconds(half))
            both_ways.append((half, message_s / cost.line(half)))
    if not both_ways:
        return one_way
    return (*(bend for bend in one_way if bend[0] < _LONG), *both_ways)


def _link_at(cost: MessageCost, bends: tuple[tuple[float, float], ...], end: str) -> Link:
    """Return the link at one `end` (``value``, ``low``, ``high``) of the costs, at their values without an interval."""
    ends = []
    for estimate in (cost.alpha_s, cost.beta_s_per_byte):
        value = getattr(estimate, end)
        ends.append(max(0.0, estimate.value if value is None else value))
    return Link(alpha_s=ends[0], beta_s_per_byte=ends[1], bends=bends)


def _given_link(text: str) -> Link:
    match = _PAIR.fullmatch(text.strip())
    try:
        alpha, beta = (float(match[1]), float(match[2])) if match else (-1.0, -1.0)
    except ValueError:
        alpha = beta = -1.0
    if not (alpha >= 0 and beta >= 0):
        raise UserError(
            f"{setting('network', text)} is not ALPHA,BETA: write seconds and seconds per byte, such as 2e-6,1e-10"
        )
    return Link(alpha_s=alpha, beta_s_per_byte=beta)


def _rate(beta: float) -> str:
    return f"{1 / beta / 1e9:.3g} GB/s" if beta > 0 else "no cost per byte"
