"""Epochs on more ranks than were measured, drawn many times over from all that the records leave open."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from harness.prediction.network_cost import BEST, OVERHEAD, Levels, Link, Uncertain
from harness.prediction.step_model import Base, slowest, steps_between
from harness.schema.workload import Workload

Array = NDArray[np.float64]
_DRAWS = 4000
_EDGE = 0.05  # a band of 95 % of the draws reaches the ends of a range that is drawn from a little beyond them
# What stands in on one rank, which sums nothing and waits for none. Said on the page.
SUMS = Uncertain(
    value=Levels(network=Link(alpha_s=3e-6, beta_s_per_byte=3e-10)),
    low=Levels(network=Link(alpha_s=5e-7, beta_s_per_byte=1e-10)),
    high=Levels(network=Link(alpha_s=2e-5, beta_s_per_byte=1e-9)),
)
WAIT = (0.005, 0.1)  # of the computation, on 2 ranks
LATENCY = (5e-7, 5e-5)  # seconds of the sums on the most ranks that do not depend on their bytes
FIXED = 0.15  # of a step, as far as one count tells
SHARED = 0.15  # of the computation, at most, for each doubling of the ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredParts:
    """The parts of an epoch on `ranks` ranks: seconds [launches] of a batch's computation, of a wait and of a sum.

    Waits and sums are of one synchronisation. A batch has `batch` rows over all ranks, an epoch `rows`.
    """

    ranks: int
    rows: int
    batch: int
    compute: Array
    wait: Array
    sums: Array


def counted(workload: Workload, rows: Array, batch: Array) -> tuple[Array, Array]:
    """Return the batches of an epoch, the last one as the part that it is, and its synchronisations."""
    batches = np.maximum(1.0, np.floor(rows / batch) if workload.drop_remainder else rows / batch)
    steps = np.ceil(batches)
    return batches, steps / steps_between(workload, steps)


class Draws:
    """Epochs on more ranks, drawn from all that `first` and `last`, the parts on few and on most ranks, leave open.

    Each draw takes launches anew (a bootstrap), and one place in the range of each of these, for all counts:

    - Computation on `last` holds at least; at most it grows with log2 p as it did from `first` on, or by `SHARED` where
      that is `last`. Where a rank's rows of a batch shrink, its fixed cost is anything from none to twice what the two
      say.
    - The wait grows as the slowest of p draws of the measured times (`step_model.slowest`), to the power 1/2 to 3/2.
    - Of a sum `LATENCY` is latency, which grows by log2 p to p - 1, and the rest its bytes, which grow from (p - 1)/p,
      where every rank moves its part, to p, where all share one memory. With `network`, one rank on each node, it is
      the cheapest allreduce in closed form, or as likely less as more, from its low to its high end times `OVERHEAD`.
    """

    def __init__(
        self, workload: Workload, scaling: str, base: Base, first: MeasuredParts, last: MeasuredParts, *,
        network: Uncertain | None = None,
    ) -> None:  # fmt: skip
        self.workload, self.scaling, self.base, self.first, self.last = workload, scaling, base, first, last
        self.network = network if network else SUMS if last.ranks == 1 else None
        self.doubling = 0.0 if network else SHARED
        random = np.random.default_rng(0)
        places = random.beta(0.5, 0.5, (4, _DRAWS, 1))  # ends are likelier than middles: mechanisms are pure
        self.shared, self.wider, self.way, self.latency = (1 + 2 * _EDGE) * places - _EDGE
        few, many = (random.integers(0, len(one.compute), (_DRAWS, len(one.compute))) for one in (first, last))
        self.compute_first = first.compute[few].mean(axis=1, keepdims=True)
        self.compute, self.wait, self.sums = (
            part[many].mean(axis=1, keepdims=True) for part in (last.compute, last.wait, last.sums)
        )
        self.noise = random.standard_normal((_DRAWS, 1))

    def at(self, counts: Array) -> "DrawnEpochs":
        """Return the epochs on each of `counts` ranks."""
        both = np.append(counts, self.last.ranks)
        fixed = self.workload.global_batch is not None
        batch = np.full_like(both, self.last.batch) if fixed else self.last.batch / self.last.ranks * both
        rows = self.last.rows * (both / self.last.ranks if self.scaling == "weak" else np.ones_like(both))
        batches, calls = counted(self.workload, rows, batch)
        share = self.last.ranks / both if fixed else np.ones_like(both)
        compute = self._compute(both, share)
        wait, sums = self._wait(both, batches / calls) * compute / self.compute, self._sums(both)
        wait[:, -1:], sums[:, -1:] = self.wait, self.sums
        parts = [compute * batches, wait * calls, sums * calls]
        return DrawnEpochs(parts=[part[:, :-1] for part in parts], whole=np.sum(parts, axis=0), steps=np.ceil(batches),
                           noise=self.noise)  # fmt: skip

    def _compute(self, counts: Array, share: Array) -> Array:
        further, apart = np.log2(counts / self.last.ranks), math.log2(self.last.ranks / self.first.ranks)
        if self.workload.global_batch is not None:
            fixed = self.compute * FIXED
            if apart:
                of_rows = (self.compute_first - self.compute) / (self.last.ranks / self.first.ranks - 1)
                fixed = np.clip(self.compute - of_rows, 0, self.compute / 2)
            shrunk: Array = self.compute * share + 2 * self.shared * fixed * (1 - share)
            return shrunk
        more = np.maximum(0.0, self.compute - self.compute_first) / apart if apart else self.compute * self.doubling
        grown: Array = self.compute + self.shared * more * further
        return grown

    def _wait(self, counts: Array, between: Array) -> Array:
        ranks = max(2, self.last.ranks)
        own = np.append(counts, ranks)
        # The mean of the largest of so many standard normal values (Blom, 1958).
        growth = np.maximum(1e-9, norm.ppf((own - 0.375) / (own + 0.25)))
        if self.base.jitter:
            growth = np.maximum(1e-9, slowest(self.base, own, np.append(between, between[-1])) - 1)
        known = self.wait
        if self.last.ranks == 1:
            assumed = _between(WAIT[0], WAIT[1], self.wider)
            known = self.compute * (growth[-1] if self.base.jitter else assumed)
        result: Array = known * (growth[:-1] / growth[-1]) ** (0.5 + self.wider)
        return result

    def _sums(self, counts: Array) -> Array:
        if self.network:
            known = (self.network.low, self.network.value, self.network.high)
            low, value, high = (self.base.sums(BEST, counts, one) for one in known)
            less = _between(OVERHEAD[0] * low, value, 2 * self.way)
            return np.where(self.way < 0.5, less, _between(value, OVERHEAD[1] * high, 2 * self.way - 1))
        few, many = (2 ** np.ceil(np.log2(one)) for one in (self.last.ranks, counts))
        messages = _between(np.log2(many) / np.log2(few), (many - 1) / (few - 1), self.way)
        moved = _between((counts - 1) / counts * self.last.ranks / (self.last.ranks - 1), many / few, self.way)
        latency = np.minimum(self.sums, _between(LATENCY[0], LATENCY[1], self.latency))
        grown: Array = latency * messages + (self.sums - latency) * moved
        return grown


def _between(low: Array | float, high: Array | float, place: Array) -> Array:
    """Return what lies at `place` (0 to 1) of the way from `low` to `high`, in proportions."""
    low = np.maximum(1e-12, low)
    found: Array = low * (np.maximum(low, high) / low) ** place
    return found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DrawnEpochs:
    """Drawn epochs: `parts` (computation, wait, sums) [draws, counts] in seconds, `steps` [counts + 1] of an epoch.

    `whole` is their sum [draws, counts + 1], the last one on the ranks that the prediction goes on from. `noise` is
    standard normal [draws, 1], for the measured speedup.
    """

    parts: list[Array]
    whole: Array
    steps: Array
    noise: Array

    @property
    def gains(self) -> Array:
        """How many times as fast an epoch is as on the ranks that were measured, [draws, counts]."""
        found: Array = self.whole[:, -1:] / self.whole[:, :-1]
        return found
