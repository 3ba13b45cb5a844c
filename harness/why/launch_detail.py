"""What single calls add to what the record of a launch says: useful time, the ideal network, causes of waiting."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.analysis.frames import EpochTimes, epoch_times
from harness.analysis.sync_calls import Calls, read_calls
from harness.analysis.time_parts import with_launch_parts
from harness.base.errors import UserError
from harness.schema.message_cost import MessageCost
from harness.schema.record import RunRecord, read_run

Array = NDArray[np.float64]
SKEW_CAUSES = ("leaving", "rows", "rank", "rare", "jitter")
FAR_OUT = 3.0  # Tukey 1977: this many interquartile ranges beyond the quartiles


@dataclass(frozen=True, kw_only=True, slots=True)
class LastRank:
    """What the others waited for one rank: `seconds` of every epoch, means over the ranks; `calls` it was last in.

    `share` is its part of all waiting, `usual_s` by how much it usually came later than the mean of the ranks
    (negative: sooner), by the median of the calls.
    """

    rank: int
    seconds: float
    share: float
    calls: float
    usual_s: float


def skew_shares(epochs: Sequence[Calls], batch: ArrayLike) -> dict[str, float]:
    """Return which part of a launch's waiting has which of the SKEW_CAUSES; together 1, all 0 where nobody waits.

    `batch` [ranks] are the rows of a step by rank. Causes are taken away one after the other, and what no longer
    waits then is the cause's, so that they sum to the whole:

    leaving  ranks left the last allreduce at different times
    rows     ranks have unequal rows of a step: the part of `rank` that grows with them, at most in proportion
    rank     a rank usually takes longer than the others: medians over the calls
    rare     single calls that come far later than the same rank's others (Tukey's outer fences)
    jitter   what differs from call to call
    """
    late = np.concatenate([_lateness(calls.entry) for calls in epochs])
    left = np.concatenate([_lateness(np.vstack([calls.begin, calls.exit])[: len(calls.entry)]) for calls in epochs])
    waited = _waited(late)
    if not len(late) or waited <= 0:
        return dict.fromkeys(SKEW_CAUSES, 0.0)
    computed = late - left
    usual = np.median(computed, axis=0)
    usual -= usual.mean()
    by_rows = _by_rows(usual, epochs, np.asarray(batch, dtype=float))
    single = computed - usual
    low, high = np.percentile(single, [25, 75], axis=0)
    reach = FAR_OUT * (high - low)
    stages = [late, computed, computed - by_rows, single, np.clip(single, low - reach, high + reach)]
    left_over = [*(_waited(stage) for stage in stages), 0.0]
    gains = np.maximum(-np.diff(left_over), 0.0)
    return {cause: float(share) for cause, share in zip(SKEW_CAUSES, gains / gains.sum(), strict=True)}


def last_ranks(epochs: Sequence[Calls]) -> tuple[LastRank, ...]:
    """Return for each rank how long the others waited for it; empty where there is no call."""
    entry = np.concatenate([calls.entry for calls in epochs])
    if not len(entry):
        return ()
    last, waited = entry.argmax(axis=1), entry.max(axis=1) - entry.mean(axis=1)
    ranks = entry.shape[1]
    seconds, calls = (np.bincount(last, weights, ranks) for weights in (waited, None))
    usual = np.median(_lateness(entry), axis=0)
    return tuple(
        LastRank(
            rank=rank,
            seconds=float(seconds[rank] / len(epochs)),
            share=float(seconds[rank] / waited.sum()) if waited.sum() > 0 else 0.0,
            calls=float(calls[rank] / len(entry)),
            usual_s=float(usual[rank]),
        )
        for rank in range(ranks)
    )


def _lateness(times: Array) -> Array:
    """Return how much later than the mean of the ranks each rank was, [calls, ranks]."""
    later: Array = times - times.mean(axis=1, keepdims=True)
    return later


def _waited(late: Array) -> float:
    """Return the seconds that ranks waited for the last of every call, mean over the ranks; `late` by `_lateness`."""
    return float((late.max(axis=1) - late.mean(axis=1)).sum()) if len(late) else 0.0


def _by_rows(usual: Array, epochs: Sequence[Calls], batch: Array) -> Array:
    """Return the part of `usual` [ranks] that the `batch` explains: a line through it, no steeper than in proportion.

    A step has costs that do not grow with its rows, so that it is less than in proportion.
    """
    more = batch - batch.mean()
    if not more.any():
        return np.zeros_like(usual)
    computing = np.median(np.concatenate([calls.between[:-1] for calls in epochs]).mean(axis=1))
    slope = float(np.clip((more * usual).sum() / (more**2).sum(), 0.0, computing / batch.mean()))
    explained: Array = slope * more
    return explained


USEFUL_COLUMNS = ("seconds", "useful_seconds", "longest_seconds", "ideal_seconds")
CostOf = Callable[[RunRecord], MessageCost | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Detailed:
    """The valid launches of a sweep with what their calls add.

    `launches` is the `frames.launch_frame` of them with more columns, all in seconds of an epoch, medians over the
    launch's epochs. Means over ranks: useful_seconds (outside of all synchronisation calls, input included);
    longest_seconds is that of the rank with most, ideal_seconds the epoch on a network that takes no time. The columns
    of `overheads.CAUSES` sum to their part of the epoch: what `skew_shares` divides to skew_seconds; latency and
    bandwidth, where a probe gives them, and sum_seconds, what it does not explain, to wire_seconds; to compute_seconds
    the computation, queue_seconds, which is waiting for a core that other processes had, and unexplained_seconds, what
    the times of epochs have beyond synchronisation and the useful time that the calls show (ranks end at different
    times). `last` has by layout whom the ranks waited for, of every launch.
    """

    launches: pd.DataFrame
    last: Mapping[str, tuple[tuple[LastRank, ...], ...]]


def detailed(folder: Path, launches: pd.DataFrame, cost_of: CostOf = lambda _: None) -> Detailed:
    """Return the valid rows of `launches` of the sweep in `folder` with what their calls add.

    `cost_of` gives what the allreduce of a launch costs by its bytes, as a probe measured it, None where none did.

    Raises:
        UserError: a launch has no times of single calls, or its record lacks skew and wire.
    """
    rows, last = list[dict[str, Any]](), dict[str, list[tuple[LastRank, ...]]]()
    for found in with_launch_parts(launches[launches["valid"]]).to_dict("records"):
        row: dict[str, Any] = {str(name): value for name, value in found.items()}
        run = read_run(folder / row["run"])
        epochs = read_calls(folder / row["run"], run)
        _check(run, epochs)
        shares = skew_shares(epochs, [rank.batch for rank in run.ranks])
        row |= {f"skew_{cause}_seconds": row["skew_seconds"] * share for cause, share in shares.items()}
        to_turns = row["seconds"] / row["recorded_seconds"]  # 1 but for launches in turns
        row |= _useful(epochs, run, to_turns) | _wire(run, row, epochs, cost_of(run))
        rows.append(row | _compute(run, epochs, row, to_turns))
        last.setdefault(str(row["layout"]), []).append(last_ranks(epochs))
    return Detailed(launches=pd.DataFrame(rows), last={layout: tuple(found) for layout, found in last.items()})


def _check(run: RunRecord, epochs: Iterable[Calls]) -> None:
    """Refuse a launch that synchronised and has no times of it."""
    for record, calls in zip(run.epochs, epochs, strict=True):
        if max(record.sync_seconds) > 0 and (not len(calls.entry) or not record.skew_seconds):
            raise UserError(
                f"launch {run.point.folder} has no times of single synchronisation calls in epoch {record.epoch}, so "
                "nothing can be explained: an older harness or a script whose ranks made different numbers of calls "
                "wrote it; run the sweep again"
            )


def _useful(epochs: Iterable[Calls], run: RunRecord, to_turns: float) -> dict[str, float]:
    """Return the USEFUL_COLUMNS; on an ideal network each call ends when the last rank comes, computation unchanged.

    `to_turns` scales what was recorded to the launch's time in turns.
    """
    useful = [calls.between.sum(axis=0) for calls in epochs]
    ideal = [calls.between.max(axis=1).sum() for calls in epochs]
    values = (
        [max(record.seconds) for record in run.epochs],
        [one.mean() for one in useful],
        [one.max() for one in useful],
        ideal,
    )
    return {name: to_turns * float(np.median(value)) for name, value in zip(USEFUL_COLUMNS, values, strict=True)}


def _wire(
    run: RunRecord, row: Mapping[str, float], epochs: tuple[Calls, ...], cost: MessageCost | None
) -> dict[str, float]:
    """Return latency and bandwidth by the probe's line for the weights' bytes in every call, at most what was measured,
    and what that leaves."""
    left, found = row["wire_seconds"], [0.0, 0.0]
    if cost is not None:
        calls = float(np.median([len(one.entry) for one in epochs]))
        size = run.weights.bytes / (1 if run.point.workload.wire == "float32" else 2)
        for place, seconds in enumerate((cost.alpha_s.value, cost.beta_s_per_byte.value * size)):
            found[place] = min(calls * seconds, left)
            left -= found[place]
    return {"latency_seconds": found[0], "bandwidth_seconds": found[1], "sum_seconds": left}


def _compute(run: RunRecord, epochs: tuple[Calls, ...], row: Mapping[str, float], to_turns: float) -> dict[str, float]:
    """Return the parts of computation. A rank's threads also wait for each other: no more than others' load counts.

    The times of launches in turns are without what others took.
    """
    queue = 0.0
    if math.isnan(row["ran_seconds"]):
        most = run.provenance.other_load
        waited = float(np.mean([min(rank.queued_share, most) + rank.stolen_share for rank in run.ranks]))
        queue = min(waited * row["seconds"], max(row["compute_seconds"], 0.0))
    unseen = [
        max(record.seconds) - float(np.mean(record.sync_seconds)) - calls.between.sum(axis=0).mean()
        for record, calls in zip(run.epochs, epochs, strict=True)
    ]
    rest = to_turns * float(np.median(unseen))
    return {
        "computing_seconds": row["compute_seconds"] - queue - rest,
        "queue_seconds": queue,
        "unexplained_seconds": rest,
    }


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch. `run` has its epochs, `calls` are empty where none are recorded, `base` ran on the fewest ranks."""

    run: RunRecord
    calls: Sequence[Calls] = ()
    base: RunRecord | None = None

    @cached_property
    def times(self) -> EpochTimes:
        """The times of the epochs."""
        return epoch_times(self.run)

    @cached_property
    def total(self) -> float:
        """Seconds of all epochs, the slowest rank of each."""
        return float(self.times.seconds.max(axis=1).sum())

    def part(self, seconds: Array) -> float:
        """Return the part of the epochs that `seconds` [epochs, ranks] take, mean over ranks."""
        return float(seconds.mean(axis=1).sum() / self.total)

    @cached_property
    def skew(self) -> float:
        """The part of the epochs that ranks wait for the last one."""
        return self.part(self.times.skew)

    @cached_property
    def wire(self) -> float:
        """The part of the epochs that the allreduces themselves take; unknown parts of synchronisation count."""
        return self.part(self.times.sync) - self.skew

    @cached_property
    def input(self) -> float:
        """The part of the epochs that goes into rows."""
        return self.part(self.times.input)

    @cached_property
    def skew_causes(self) -> dict[str, float]:
        """Which part of the epochs each of the SKEW_CAUSES takes."""
        shares = skew_shares(self.calls, [rank.batch for rank in self.run.ranks]) if self.entries.size else {}
        return {cause: share * self.skew for cause, share in shares.items()}

    @cached_property
    def entries(self) -> Array:
        """When every rank came to every call, [calls, ranks]."""
        return np.concatenate([np.empty((0, len(self.run.ranks))), *(one.entry for one in self.calls)])

    @property
    def hosts(self) -> set[str]:
        """The hosts of the ranks."""
        return {rank.host for rank in self.run.ranks}
