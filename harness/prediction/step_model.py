"""The closed form of a step: computation, the wait for the slowest rank, and the allreduce.

The computation is measured: one workload's launches on the fewest ranks are the base of its prediction.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.analysis.confidence_intervals import Interval
from harness.prediction.epoch_counts import epoch_batches, steps_between
from harness.prediction.measured_base import MeasuredBase
from harness.prediction.network_cost import OVERHEAD, Levels, Uncertain
from harness.prediction.slowest_rank import slowest
from harness.schema.sync_policies import PowerSGD, known_policy

Array = NDArray[np.float64]


def predict_network(base: MeasuredBase, ranks: ArrayLike, network: Uncertain) -> pd.DataFrame:
    """Return one row for each count of `ranks`: ranks, steps, speedup, efficiency, and seconds.

    compute_s, straggler_s (the wait for the slowest rank) and allreduce_s are the parts of step_s; epoch_s has its low
    and high end in epoch_low_s and epoch_high_s.

    A step takes the base's computation, in proportion to a rank's rows of a batch, times what the slowest of p
    ranks takes longer, plus the allreduce of all weights. The low end has the low ends of all measured costs and of
    `OVERHEAD`, the high end the high ones. Speedup is over the predicted time of `base.ranks` ranks (work per second
    under weak scaling).
    """
    counts = np.asarray(ranks, dtype=float)
    frame = _points(base, counts, network.value)
    on_base = _points(base, np.array([float(base.ranks)]), network.value)
    low = _points(replace(base, compute_s=base.low_s), counts, network.low, OVERHEAD[0])
    high = _points(replace(base, compute_s=base.high_s), counts, network.high, OVERHEAD[1])
    frame["epoch_low_s"] = low["epoch_s"]
    frame["epoch_high_s"] = high["epoch_s"]
    ideal = frame["ranks"] / base.ranks
    gain = float(on_base["epoch_s"].iloc[0]) / frame["epoch_s"]
    speedup = gain if base.scaling == "strong" else gain * ideal
    return frame.assign(speedup=speedup, efficiency=speedup / ideal)


def predict_ratio(base: MeasuredBase, over: int, count: int, network: Uncertain) -> tuple[float, Interval]:
    """Return how many times as fast an epoch is on `count` ranks as on `over`, and the least and the most of that.

    These are over the corners of all measured costs, each at its low or its high end: where computation and
    links move a ratio in opposite directions, ends of one kind cancel.
    """
    counts = np.array([over, count], dtype=float)
    ratios = []
    for compute_s, levels in ((base.compute_s, network.value), *_corners(base, network)):
        epochs = _points(replace(base, compute_s=compute_s), counts, levels)["epoch_s"]
        ratios.append(float(epochs.iloc[0] / epochs.iloc[1]))
    return ratios[0], Interval(low=min(ratios), high=max(ratios))


def _corners(base: MeasuredBase, network: Uncertain) -> Iterator[tuple[float, Levels]]:
    """Yield every corner: the computation, latencies and bandwidths at their low or high ends."""
    ends = (network.low, network.high)
    for compute_s, latency, bandwidth in product((base.low_s, base.high_s), ends, ends):
        between = replace(latency.network, beta_s_per_byte=bandwidth.network.beta_s_per_byte)
        inside = None
        if latency.node and bandwidth.node:
            inside = replace(latency.node, beta_s_per_byte=bandwidth.node.beta_s_per_byte)
        yield compute_s, replace(network.value, network=between, node=inside)


def _points(base: MeasuredBase, counts: Array, levels: Levels, overhead: float = 1.0) -> pd.DataFrame:
    workload = base.workload
    batch = np.array([workload.batch(int(count)) for count in counts], dtype=float)
    rows = base.rows * (counts if base.scaling == "weak" else np.ones_like(counts))
    steps = np.maximum(1.0, np.ceil(epoch_batches(workload, rows, batch)))
    share = (batch / counts) / (workload.batch(base.ranks) / base.ranks)  # of the rows that were timed in a step
    compute = base.compute_s * share
    between = steps_between(workload, steps)
    wait = compute * np.maximum(0.0, slowest(base, counts, between) - 1)
    sums = overhead * base.sums(counts, levels) / between
    reduce = np.where(np.isfinite(between) & (counts > 1), sums, 0.0)
    step = compute + wait + reduce
    columns = {"ranks": counts.astype(int), "steps": steps.astype(int), "compute_s": compute, "straggler_s": wait}
    return pd.DataFrame(columns | {"allreduce_s": reduce, "step_s": step, "epoch_s": step * steps})


def assumptions(base: MeasuredBase, ranks: ArrayLike) -> tuple[str, ...]:
    """Return what a prediction for `ranks` takes for granted, one sentence each."""
    counts = np.asarray(ranks)
    sentences = []
    if base.workload.global_batch is not None:
        sentences.append("A step's computation is taken to shrink with its rows: its fixed cost is left out.")
    if not base.jitter:
        sentences.append(
            "Compute times of several ranks were not measured: no rank is taken to be slower than another."
        )
    elif counts.max() > len(base.jitter):
        sentences.append(f"Beyond {len(base.jitter):,} ranks the wait for the slowest is a lower bound.")
    if base.imbalance:
        sentences.append(
            f"Ranks are taken to differ permanently as the {len(base.imbalance)} measured ones did: the slowest "
            f"computed {max(base.imbalance):.3f} times the mean."
        )
    if isinstance(known_policy(base.workload.sync), PowerSGD) and base.ranks == 1:
        sentences.append("What several ranks compute to factor their gradients is left out.")
    sentences.append("Ranks are taken to have a core, and memory bandwidth, each as the base had.")
    return tuple(sentences)
