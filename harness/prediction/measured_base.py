"""What a prediction rests on: launches of one workload on the fewest ranks, and how ranks differ from each other."""

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.comparison import base_layout
from harness.analysis.confidence_intervals import median_interval
from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.sync_calls import read_calls
from harness.base.errors import UserError
from harness.prediction.epoch_counts import predictable_policy
from harness.prediction.network_cost import Levels, allreduce_seconds, calls
from harness.schema.record import RunRecord, read_run
from harness.schema.sync_policies import PowerSGD, Shape
from harness.schema.workload import Workload

Array = NDArray[np.float64]
_MOST_JITTER = 20_000
_MOST_RUNS = 24  # whose steps are read


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredBase:
    """What was measured on few ranks: a step's computation, and what else its prediction needs.

    `compute_s` is of one step on `ranks` ranks without synchronisation, `low_s` and `high_s` the ends of its interval
    (or of the measured range). `rows` are an epoch's (strong scaling) or a rank's (weak). `bytes` are the trained
    weights', `tensors` each one's and `shapes` its shape where they are known. `jitter` are compute times over their
    rank's mean, in order of time, each of `every` steps, without what slows all ranks at once. `imbalance` are the
    ranks' means over the mean of all ranks; if empty, no rank is slower than another. `source` says where all that
    comes from.
    """

    workload: Workload
    scaling: str
    ranks: int
    rows: int
    bytes: int
    compute_s: float
    low_s: float
    high_s: float
    jitter: tuple[float, ...] = ()
    every: int = 1
    imbalance: tuple[float, ...] = ()
    tensors: tuple[int, ...] = ()
    shapes: tuple[Shape, ...] = ()
    source: str = ""

    def sums(self, counts: Array, levels: Levels) -> Array:
        """Return the seconds of the allreduces of one synchronisation, as they travel, over each count of ranks.

        Between hosts of one rank each large tensors have one each. Where no shapes are known it is one sum of all.
        """
        seconds = np.zeros_like(counts)
        for tensors in self._sums_of_tensors():
            sizes = calls(tensors) if levels.ranks_per_node == 1 else (sum(tensors),)
            for size in sizes:
                seconds = seconds + allreduce_seconds(counts, size, levels)
        return seconds

    def _sums_of_tensors(self) -> list[list[float]]:
        """Return the bytes, as they travel, of every tensor of each sum of one synchronisation."""
        narrowed = 1 if self.workload.wire == "float32" else 2
        if not self.shapes:
            return [[size / narrowed for size in self.tensors or (self.bytes,)]]
        value_bytes = self.bytes / narrowed / (sum(map(math.prod, self.shapes)) or 1)
        sums = []
        for values_of_tensors in predictable_policy(self.workload.sync).sums(self.shapes):
            sums.append([value_bytes * values for values in values_of_tensors])
        return sums


def measured_base(loaded: Loaded) -> MeasuredBase:
    """Return the base that the valid launches of a sweep give: those on the fewest ranks.

    Raises:
        UserError: their sync policy is the user's own code.
    """
    fewest = base_layout(run.point.layout for run in loaded.valid).ranks
    runs = [run for run in loaded.valid if run.point.layout.ranks == fewest]
    frame = launch_frame(runs, loaded.epochs)
    compute = (frame["seconds"] - frame["sync_seconds"]) / frame["steps"]  # input too: a rank has to do it
    exact = median_interval(compute)
    run = runs[0]
    scaling = run.point.scaling
    rows = int(frame["all_rows"].iloc[0])
    every = predictable_policy(run.point.workload.sync).period or 1
    jitter, imbalance = _unevenness(loaded, every)
    return MeasuredBase(
        workload=run.point.workload,
        scaling=scaling,
        ranks=fewest,
        rows=rows if scaling == "strong" else rows // fewest,
        bytes=run.weights.bytes,
        tensors=run.weights.tensors,
        shapes=run.weights.shapes,
        compute_s=float(compute.median()),
        low_s=exact.low if exact else float(compute.min()),
        high_s=exact.high if exact else float(compute.max()),
        jitter=jitter,
        every=every,
        imbalance=imbalance,
        source=f"{len(runs)} launches on {fewest} rank{'s' if fewest > 1 else ''} of {loaded.folder.name}"
        + ("" if exact else ", range of the launches for want of an interval"),
    )


def under(base: MeasuredBase, sync: str) -> MeasuredBase:
    """Return `base` as if it had been trained under the policy `sync`: its computation is taken to be the same.

    Raises:
        UserError: the policy is none, is the user's own code, or sums parts of weights whose shapes are unknown.
    """
    if isinstance(predictable_policy(sync), PowerSGD) and not base.shapes:
        raise UserError(f"SYNC={sync} cannot be predicted from records without the weights' shapes: sweep again")
    source = f"{base.source}, which had SYNC={base.workload.sync}"
    return replace(base, workload=replace(base.workload, sync=sync), source=source)


def _unevenness(loaded: Loaded, every: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the compute times of `every` steps over their rank's mean, and the ranks' means over that of all ranks.

    Of the launches on most ranks: the times between two synchronisation calls, of which one rank alone makes none.
    What one rank always takes longer is in the second, what differs from step to step in the first (`own_times`).
    """
    most = max(run.point.layout.ranks for run in loaded.valid)
    runs = [run for run in loaded.valid if run.point.layout.ranks == most and most > 1][:_MOST_RUNS]
    steps: list[Array] = []
    lasting: list[float] = []
    for run in runs:
        times = _times_between_calls(loaded, run, every)
        if len(times):
            means = times.mean(axis=0)
            steps += list(own_times(times / means).T)
            lasting += (means / means.mean()).tolist()
    if not steps:
        return (), ()
    most_of_rank = max(1, _MOST_JITTER // len(steps))
    values = np.concatenate([of_rank[:most_of_rank] for of_rank in steps])
    return tuple(map(float, values)), tuple(sorted(lasting))


def _times_between_calls(loaded: Loaded, run: RunRecord, every: int) -> Array:
    """Return the seconds from one call to the next [calls, ranks] where they are `every` steps apart; may be empty."""
    folder = loaded.folder / run.point.folder
    times = [np.zeros((0, len(run.ranks)))]
    with suppress(UserError):  # its record has what all else rests on
        for epoch_calls in read_calls(folder, read_run(folder).as_timed()):
            between = epoch_calls.entry[1:] - epoch_calls.exit[:-1]
            times.append(between[np.diff(epoch_calls.step) == every])
    return np.concatenate(times)


def own_times(times: Array) -> Array:
    """Return `times` [steps, ranks] over their rank's mean without what slows all ranks in the same step.

    That makes none wait for another. Residuals of n ranks from their mean have (n - 1) / n of the times' variance.
    """
    ranks = times.shape[1]
    differences: Array = 1 + (times - times.mean(axis=1, keepdims=True)) * np.sqrt(ranks / (ranks - 1))
    return differences
