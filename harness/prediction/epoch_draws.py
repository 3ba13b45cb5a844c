"""Epochs on more ranks, drawn many times over from all that the records of fewer ranks leave open."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from harness.prediction.epoch_counts import epoch_batches, epoch_calls
from harness.prediction.measured_base import MeasuredBase
from harness.prediction.network_cost import OVERHEAD, Levels, Link, Uncertain
from harness.prediction.slowest_rank import slowest
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
        gains: Array = self.whole[:, -1:] / self.whole[:, :-1]
        return gains


class Draws:
    """Epochs on more ranks, drawn from all that the parts on the fewest and on the most measured ranks leave open.

    Each draw takes launches anew (a bootstrap), and one place, 0 to 1, in the range of each of these, for all counts:

    - `compute_place`: computation on the most ranks holds at least; at most it grows with log2 p as it did from the
      fewest ranks on, or by `SHARED` where these are the same. Where a rank's rows of a batch shrink, its fixed cost is
      anything from none to twice what the two say.
    - `wait_place`: the wait grows as the slowest of p draws of the measured times (`slowest_rank.slowest`), to the
      power 1/2 to 3/2.
    - `latency_place`: of a sum `LATENCY` is latency and the rest its bytes.
    - `algorithm_place`: latency grows by log2 p to p - 1, the bytes from (p - 1)/p, where every rank moves its part, to
      p, where all share one memory. With `network`, one rank on each node, a sum is the cheapest allreduce in closed
      form, or as likely less as more, from its low to its high end times `OVERHEAD`.
    """

    def __init__(
        self,
        workload: Workload,
        scaling: str,
        base: MeasuredBase,
        fewest: MeasuredParts,
        most: MeasuredParts,
        *,
        network: Uncertain | None = None,
    ) -> None:
        self.workload = workload
        self.scaling = scaling
        self.base = base
        self.fewest = fewest
        self.most = most
        self.network = network
        if network is None and most.ranks == 1:
            self.network = SUMS
        self.growth_of_doubling = 0.0 if network else SHARED
        random = np.random.default_rng(0)
        places = random.beta(0.5, 0.5, (4, _DRAWS, 1))  # ends are likelier than middles: mechanisms are pure
        self.compute_place, self.wait_place, self.algorithm_place, self.latency_place = (1 + 2 * _EDGE) * places - _EDGE
        launches_of_fewest = _drawn_launches(random, fewest)
        launches_of_most = _drawn_launches(random, most)
        self.compute_on_fewest = _means(fewest.compute, launches_of_fewest)
        self.compute = _means(most.compute, launches_of_most)
        self.wait = _means(most.wait, launches_of_most)
        self.sums = _means(most.sums, launches_of_most)
        self.noise = random.standard_normal((_DRAWS, 1))

    def at(self, counts: Array) -> DrawnEpochs:
        """Return the epochs on each of `counts` ranks."""
        # The last count is that of the ranks that were measured.
        ranks = np.append(counts, self.most.ranks)
        relative = ranks / self.most.ranks
        is_batch_fixed = self.workload.global_batch is not None
        batch = np.full_like(ranks, self.most.batch) if is_batch_fixed else self.most.batch / self.most.ranks * ranks
        rows = self.most.rows * (relative if self.scaling == "weak" else np.ones_like(ranks))
        batches = epoch_batches(self.workload, rows, batch)
        calls = epoch_calls(self.workload, batches)
        share = self.most.ranks / ranks if is_batch_fixed else np.ones_like(ranks)
        compute = self._compute(ranks, share)
        wait = self._wait(ranks, batches / calls) * compute / self.compute
        sums = self._sums(ranks)
        wait[:, -1:] = self.wait
        sums[:, -1:] = self.sums
        parts = [compute * batches, wait * calls, sums * calls]
        return DrawnEpochs(
            parts=[part[:, :-1] for part in parts],
            whole=np.sum(parts, axis=0),
            steps=np.ceil(batches),
            noise=self.noise,
        )

    def _compute(self, ranks: Array, share: Array) -> Array:
        """Return the computation of a batch [draws, counts], of which a rank has the `share` of the measured rows."""
        measured_doublings = math.log2(self.most.ranks / self.fewest.ranks)
        if self.workload.global_batch is not None:
            fixed = self.compute * FIXED
            if measured_doublings:
                of_rows = (self.compute_on_fewest - self.compute) / (self.most.ranks / self.fewest.ranks - 1)
                fixed = np.clip(self.compute - of_rows, 0, self.compute / 2)
            shrunk: Array = self.compute * share + 2 * self.compute_place * fixed * (1 - share)
            return shrunk
        of_doubling = self.compute * self.growth_of_doubling
        if measured_doublings:
            of_doubling = np.maximum(0.0, self.compute - self.compute_on_fewest) / measured_doublings
        grown: Array = self.compute + self.compute_place * of_doubling * np.log2(ranks / self.most.ranks)
        return grown

    def _wait(self, ranks: Array, steps_between_calls: Array) -> Array:
        """Return the wait of a call [draws, counts] where computation stays as it was measured."""
        measured_ranks = max(2, self.most.ranks)
        counts = np.append(ranks, measured_ranks)
        # The mean of the largest of so many standard normal values (Blom, 1958).
        growth = np.maximum(1e-9, norm.ppf((counts - 0.375) / (counts + 0.25)))
        if self.base.jitter:
            between = np.append(steps_between_calls, steps_between_calls[-1])
            growth = np.maximum(1e-9, slowest(self.base, counts, between) - 1)
        wait = self.wait
        if self.most.ranks == 1:
            assumed = _between(WAIT[0], WAIT[1], self.wait_place)
            wait = self.compute * (growth[-1] if self.base.jitter else assumed)
        grown: Array = wait * (growth[:-1] / growth[-1]) ** (0.5 + self.wait_place)
        return grown

    def _sums(self, ranks: Array) -> Array:
        """Return the sum of a call [draws, counts]."""
        place = self.algorithm_place
        if self.network:
            low, value, high = (
                self.base.sums(ranks, levels) for levels in (self.network.low, self.network.value, self.network.high)
            )
            cheaper = _between(OVERHEAD[0] * low, value, 2 * place)
            dearer = _between(value, OVERHEAD[1] * high, 2 * place - 1)
            return np.where(place < 0.5, cheaper, dearer)
        measured = self.most.ranks
        power = 2 ** np.ceil(np.log2(ranks))
        measured_power = 2 ** np.ceil(np.log2(measured))
        messages = _between(np.log2(power) / np.log2(measured_power), (power - 1) / (measured_power - 1), place)
        moved = _between((ranks - 1) / ranks * measured / (measured - 1), power / measured_power, place)
        latency = np.minimum(self.sums, _between(LATENCY[0], LATENCY[1], self.latency_place))
        grown: Array = latency * messages + (self.sums - latency) * moved
        return grown


def _drawn_launches(random: np.random.Generator, parts: MeasuredParts) -> NDArray[np.int64]:
    """Return the numbers of the launches that each draw takes, [draws, launches]."""
    launches = len(parts.compute)
    return random.integers(0, launches, (_DRAWS, launches))


def _means(seconds: Array, launches: NDArray[np.int64]) -> Array:
    """Return the means of the drawn `launches` [draws, launches], [draws, 1]."""
    means: Array = seconds[launches].mean(axis=1, keepdims=True)
    return means


def _between(low: Array | float, high: Array | float, place: Array) -> Array:
    """Return what lies at `place` (0 to 1) from `low` to `high`, in proportions."""
    low = np.maximum(1e-12, low)
    value: Array = low * (np.maximum(low, high) / low) ** place
    return value
