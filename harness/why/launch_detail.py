"""What single calls add to what the record of a launch says: useful time, the ideal network, causes of waiting."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.sync_calls import Calls, read_calls
from harness.analysis.time_parts import with_launch_parts
from harness.base.errors import UserError
from harness.schema.message_cost import MessageCost
from harness.schema.record import RunRecord, read_run
from harness.why.waiting import LastRank, last_ranks, skew_shares

USEFUL_COLUMNS = ("seconds", "useful_seconds", "longest_seconds", "ideal_seconds")
CostOf = Callable[[RunRecord], MessageCost | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Detailed:
    """The valid launches of a sweep with what their calls add.

    `launches` is the `launch_frame` of them with more columns, all in seconds of an epoch, medians over the
    launch's epochs. Means over ranks: useful_seconds (outside of all synchronisation calls, input included);
    longest_seconds is that of the rank with most, ideal_seconds the epoch on a network that takes no time. The columns
    of `overheads.CAUSES` sum to their part of the epoch. The parts of `skew_shares` sum to skew_seconds. Latency and
    bandwidth, where a probe gives them, and sum_seconds, the rest, sum to wire_seconds. compute_seconds is the sum of
    the computation, queue_seconds (waiting for a core that other processes had) and unexplained_seconds (what epochs
    take beyond synchronisation and the useful time that the calls show, as ranks end at different times). `last` has by
    layout whom the ranks waited for, of every launch.
    """

    launches: pd.DataFrame
    last: Mapping[str, tuple[tuple[LastRank, ...], ...]]


def detailed(folder: Path, launches: pd.DataFrame, cost_of: CostOf = lambda _: None) -> Detailed:
    """Return the valid rows of `launches` of the sweep in `folder` with what their calls add.

    `cost_of` gives what the allreduce of a launch costs by its bytes, as a probe measured it, None where none did.

    Raises:
        UserError: a launch has no times of single calls, or its record lacks skew and wire.
    """
    rows: list[dict[str, Any]] = []
    last: dict[str, list[tuple[LastRank, ...]]] = {}
    for launch in with_launch_parts(launches[launches["valid"]]).to_dict("records"):
        row: dict[str, Any] = {str(name): value for name, value in launch.items()}
        run = read_run(folder / row["run"]).as_timed()
        epochs = read_calls(folder / row["run"], run)
        for record, calls in zip(run.epochs, epochs, strict=True):
            if max(record.sync_seconds) > 0 and (not len(calls.entry) or not record.skew_seconds):
                raise UserError(
                    f"launch {run.point.folder} has no times of single synchronisation calls in epoch {record.epoch}, "
                    "so nothing can be explained: an older harness or a script whose ranks made different numbers of "
                    "calls wrote it; run the sweep again"
                )
        shares = skew_shares(epochs, [rank.batch for rank in run.ranks])
        row |= {f"skew_{cause}_seconds": row["skew_seconds"] * share for cause, share in shares.items()}
        to_turns = row["seconds"] / row["recorded_seconds"]  # 1 but for launches in turns
        row |= _useful(epochs, run, to_turns) | _wire(run, row, epochs, cost_of(run))
        rows.append(row | _compute(run, epochs, row, to_turns))
        last.setdefault(str(row["layout"]), []).append(last_ranks(epochs))
    return Detailed(launches=pd.DataFrame(rows), last={layout: tuple(ranks) for layout, ranks in last.items()})


def _useful(epochs: Iterable[Calls], run: RunRecord, to_turns: float) -> dict[str, float]:
    """Return the USEFUL_COLUMNS; on an ideal network each call ends when the last rank comes, computation unchanged.

    `to_turns` scales what was recorded to the launch's time in turns.
    """
    useful = [calls.between.sum(axis=0) for calls in epochs]
    values = (
        [max(record.seconds) for record in run.epochs],
        [by_rank.mean() for by_rank in useful],
        [by_rank.max() for by_rank in useful],
        [calls.between.max(axis=1).sum() for calls in epochs],
    )
    return {name: to_turns * float(np.median(value)) for name, value in zip(USEFUL_COLUMNS, values, strict=True)}


def _wire(
    run: RunRecord, row: Mapping[str, float], epochs: tuple[Calls, ...], cost: MessageCost | None
) -> dict[str, float]:
    """Return latency and bandwidth by the probe's line for the weights' bytes in every call, at most what was measured,
    and what that leaves."""
    measured = row["wire_seconds"]
    if cost is None:
        return {"latency_seconds": 0.0, "bandwidth_seconds": 0.0, "sum_seconds": measured}
    calls = float(np.median([len(epoch.entry) for epoch in epochs]))
    size = run.weights.bytes / (1 if run.point.workload.wire == "float32" else 2)
    latency = min(calls * cost.alpha_s.value, measured)
    bandwidth = min(calls * (cost.beta_s_per_byte.value * size), measured - latency)
    return {
        "latency_seconds": latency,
        "bandwidth_seconds": bandwidth,
        "sum_seconds": measured - latency - bandwidth,
    }


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
