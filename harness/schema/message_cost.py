"""MessageCosts: what a message between ranks costs, as `harness probe` measured it (``probe.json``)."""

import bisect
import math
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from harness.base.provenance import Machine

PROBE_FILE = "probe.json"  # results/probes/<name>/probe.json, beside it every sample
SAMPLES_FILE = "samples.parquet"
PROBES = "probes"
PROBE_SCHEMA = 1

POINT_TO_POINT = "point-to-point"  # half a round trip between two ranks
BROADCAST = "broadcast"
ALLREDUCE = "allreduce"  # MPI_Allreduce, in place, sums of float32
NODE = "node"
NETWORK = "network"
ALL = "all"
_WHERE = {NODE: "within a node", NETWORK: "between nodes", ALL: "over all ranks"}
REDUCTION = "reduction:"  # the harness's own grouped allreduce, by way of what follows


class Algorithm(StrEnum):
    """How ranks add up, the choices of HARNESS_REDUCTION: by what the C++ part does, or through Python.

    ``native`` sums in memory that all ranks share, ``messages`` by MPI_Allreduce, ``node-aware`` in the memory of each
    host and then over the hosts, ``bridge`` by Python's MPI_Allreduce. As a choice ``native`` is the fastest of the
    first three on these hosts, or ``nccl``, which sums on GPUs, where every rank has one. ``staged`` is a choice only:
    as ``native``, through the host's memory also where ranks have GPUs.
    """

    NATIVE = "native"
    MESSAGES = "messages"
    NODE_AWARE = "node-aware"
    BRIDGE = "bridge"
    NCCL = "nccl"
    STAGED = "staged"


REDUCTION_NAMES: dict[str, str] = {
    Algorithm.MESSAGES: "MPI_Allreduce",
    Algorithm.NATIVE: "shared memory",
    Algorithm.NODE_AWARE: "node-aware",
}
"""What records call the sums of the C++ part."""
OVERLAPPED = "in pieces beside the backward pass"
"""What records say of sums that go on while later gradients are computed: their times are what training waits for."""

BAD_FIT = 0.25  # relative error from which a line does not describe the times


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A value with its two-sided 95 % CI; `low` and `high` are None where there are fewer than 6 launches."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageTime:
    """What one call with messages of `bytes` takes, in seconds: every launch's median, in order, and their median.

    `ratios`, of an allreduce: by every block, the logarithm of its time over that of the default setting's default way,
    the median over samples of the same round.
    """

    bytes: int
    launches: tuple[float, ...]
    seconds: Estimate
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageCost:
    """The cost of one operation at one level: seconds = alpha_s + beta_s_per_byte * bytes.

    `operation` is one of those above, or ``reduction:NAME`` for the harness's own grouped allreduce by way of
    NAME (a choice of HARNESS_REDUCTION). `level`: ``node`` (`ranks` ranks of one host), ``network`` (one rank of
    each host) or ``all`` (every rank of several hosts). `alpha_s` and `beta_s_per_byte` are of the whole call on
    these ranks; for point-to-point, of one message. `worst_error` is the largest relative distance of the line from
    a measured median, at `worst_bytes`.
    """

    operation: str
    level: str
    ranks: int
    alpha_s: Estimate
    beta_s_per_byte: Estimate
    worst_error: float
    worst_bytes: int
    sizes: tuple[MessageTime, ...]

    @property
    def name(self) -> str:
        """The operation in words: ``allreduce``, ``harness sum by shared memory``."""
        way = self.operation.removeprefix(REDUCTION)
        return self.operation if way == self.operation else f"harness sum by {REDUCTION_NAMES.get(way, way)}"

    @property
    def where(self) -> str:
        """The level in words: ``within a node``."""
        return _WHERE[self.level]

    @property
    def good(self) -> bool:
        """Whether the line describes the measured times."""
        return self.worst_error <= BAD_FIT

    def line(self, count: float) -> float:
        """Return the seconds that the line gives for `count` bytes."""
        return self.alpha_s.value + self.beta_s_per_byte.value * count

    def seconds(self, count: float) -> float:
        """Return the seconds of `count` bytes between the measured medians, the line's slope beyond the last.

        Straight in the logarithms of both, which a change of protocol at some size does not bend.
        """
        first = self.sizes[0]
        last = self.sizes[-1]
        if count <= first.bytes:
            return first.seconds.value
        if count >= last.bytes:
            return last.seconds.value + self.beta_s_per_byte.value * (count - last.bytes)
        index = bisect.bisect_right([size.bytes for size in self.sizes], count)
        low = self.sizes[index - 1]
        high = self.sizes[index]
        part = math.log(count / low.bytes) / math.log(high.bytes / low.bytes)
        return math.exp(math.log(low.seconds.value) * (1 - part) + math.log(high.seconds.value) * part)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One way to set up the MPI library: `mca` parameters of Open MPI by name; none is its default."""

    name: str
    mca: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageCosts:
    """What was measured under one setting."""

    setting: Setting
    costs: tuple[MessageCost, ...]

    @property
    def widest(self) -> str:
        """The level that was measured over the most ranks: of all, of one rank a host, of one host."""
        levels = {cost.level for cost in self.costs}
        return next((level for level in (ALL, NETWORK) if level in levels), NODE)

    def find(self, operation: str, level: str) -> MessageCost | None:
        """Return the cost of `operation` at `level`, None where it was not measured."""
        return next((c for c in self.costs if (c.operation, c.level) == (operation, level)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One measurement of a machine's communication. `by_setting` has the library's default setting first.

    `hosts` names the host of every rank. `invalid` lists why the times must not be used; `notes` what else to know,
    such as settings that did not start. `commit` and `dirty` are those of the harness, whose own sums are measured
    too, "" where that was no checkout or not recorded; `core_seconds` are those of all launches.
    """

    schema: int
    measured: datetime
    machine: Machine
    mpi_library: str
    launcher: str
    hosts: tuple[str, ...]
    by_setting: tuple[MessageCosts, ...]
    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    commit: str = ""
    dirty: bool = False
    core_seconds: float = 0.0

    @property
    def ranks(self) -> int:
        """Number of ranks that took part."""
        return len(self.hosts)
