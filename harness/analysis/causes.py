"""What single calls tell of a launch, beside what its record has: useful time, ideal network, causes of waiting."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.breakdown import with_launch_parts
from harness.analysis.calls import Calls, read_calls
from harness.analysis.skew import SKEW_CAUSES, LastRank, last_ranks, skew_shares
from harness.base.errors import UserError
from harness.schema.message_cost import Cost
from harness.schema.record import RunRecord, read_run

SKEW_COLUMNS = tuple(f"skew_{cause}_seconds" for cause in SKEW_CAUSES)
WIRE_COLUMNS = ("latency_seconds", "bandwidth_seconds", "sum_seconds")
COMPUTE_COLUMNS = ("computing_seconds", "queue_seconds", "unexplained_seconds")
USEFUL_COLUMNS = ("seconds", "useful_seconds", "longest_seconds", "ideal_seconds")

CostOf = Callable[[RunRecord], Cost | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """The valid launches of a sweep with what their calls tell.

    `launches` is the `frames.launch_frame` of them with more columns, all in seconds of an epoch, medians over the
    launch's epochs. Means over ranks: useful_seconds (outside of all synchronisation calls, input included);
    longest_seconds is that of the rank with most, ideal_seconds the epoch on a network that takes no time. The parts
    of each part of the epoch sum to it: SKEW_COLUMNS to skew_seconds (`skew.skew_shares`); WIRE_COLUMNS to
    wire_seconds (latency and bandwidth where a probe tells them, sum_seconds what it does not); COMPUTE_COLUMNS to
    compute_seconds: queue_seconds is waiting for a core that other processes had, unexplained_seconds what the times
    of epochs have beyond synchronisation and the useful time that the calls show (ranks end at different times).
    `last` has by layout whom the ranks waited for, of every launch.
    """

    launches: pd.DataFrame
    last: Mapping[str, tuple[tuple[LastRank, ...], ...]]


def explain_launches(folder: Path, launches: pd.DataFrame, cost_of: CostOf = lambda _: None) -> Explained:
    """Return the valid rows of `launches` of the sweep in `folder` with what their calls tell.

    `cost_of` gives what the sum of a launch costs by its bytes, as a probe measured it, None where none did.

    Raises:
        UserError: a launch has no times of single calls, or its record lacks skew and wire.
    """
    rows, last = list[dict[str, Any]](), dict[str, list[tuple[LastRank, ...]]]()
    for found in with_launch_parts(launches[launches["valid"]]).to_dict("records"):
        row: dict[str, Any] = {str(name): value for name, value in found.items()}
        run = read_run(folder / row["run"])
        epochs = read_calls(folder / row["run"], run)
        _check(run, epochs)
        row |= _useful(epochs, run) | _skew(epochs, run, row) | _wire(run, row, epochs, cost_of(run))
        rows.append(row | _compute(run, epochs, row))
        last.setdefault(str(row["layout"]), []).append(last_ranks(epochs))
    return Explained(launches=pd.DataFrame(rows), last={layout: tuple(found) for layout, found in last.items()})


def _check(run: RunRecord, epochs: Iterable[Calls]) -> None:
    """Refuse a launch that synchronised and has no times of it."""
    for record, calls in zip(run.epochs, epochs, strict=True):
        if max(record.sync_seconds) > 0 and (not len(calls.entry) or not record.skew_seconds):
            raise UserError(
                f"launch {run.point.folder} has no times of single synchronisation calls in epoch {record.epoch}, so "
                "nothing can be explained: an older harness or a script whose ranks made different numbers of calls "
                "wrote it; run the sweep again"
            )


def _useful(epochs: Iterable[Calls], run: RunRecord) -> dict[str, float]:
    """Return the USEFUL_COLUMNS; on an ideal network each call ends when the last rank comes, computation unchanged."""
    useful = [calls.between.sum(axis=0) for calls in epochs]
    ideal = [calls.between.max(axis=1).sum() for calls in epochs]
    values = (
        [max(record.seconds) for record in run.epochs],
        [one.mean() for one in useful],
        [one.max() for one in useful],
        ideal,
    )
    return {name: float(np.median(value)) for name, value in zip(USEFUL_COLUMNS, values, strict=True)}


def _skew(epochs: tuple[Calls, ...], run: RunRecord, row: Mapping[str, float]) -> dict[str, float]:
    shares = skew_shares(epochs, [rank.batch for rank in run.ranks])
    return {name: row["skew_seconds"] * shares[cause] for name, cause in zip(SKEW_COLUMNS, SKEW_CAUSES, strict=True)}


def _wire(run: RunRecord, row: Mapping[str, float], epochs: tuple[Calls, ...], cost: Cost | None) -> dict[str, float]:
    """Return the WIRE_COLUMNS: the probe's line for the weights' bytes in every call, at most what was measured."""
    left, found = row["wire_seconds"], [0.0, 0.0]
    if cost is not None:
        calls = float(np.median([len(one.entry) for one in epochs]))
        size = run.weights.bytes / (1 if run.point.workload.wire == "float32" else 2)
        for place, seconds in enumerate((cost.alpha_s.value, cost.beta_s_per_byte.value * size)):
            found[place] = min(calls * seconds, left)
            left -= found[place]
    return dict(zip(WIRE_COLUMNS, (*found, left), strict=True))


def _compute(run: RunRecord, epochs: tuple[Calls, ...], row: Mapping[str, float]) -> dict[str, float]:
    """Return the COMPUTE_COLUMNS. A rank's threads also wait for each other: no more than others' load counts."""
    most = run.provenance.other_load
    lost = float(np.mean([min(rank.queued_share, most) + rank.stolen_share for rank in run.ranks]))
    queue = min(lost * row["seconds"], max(row["compute_seconds"], 0.0))
    unseen = [
        max(record.seconds) - float(np.mean(record.sync_seconds)) - calls.between.sum(axis=0).mean()
        for record, calls in zip(run.epochs, epochs, strict=True)
    ]
    rest = float(np.median(unseen))
    return dict(zip(COMPUTE_COLUMNS, (row["compute_seconds"] - queue - rest, queue, rest), strict=True))
