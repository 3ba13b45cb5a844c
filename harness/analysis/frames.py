"""Records as tables: one row per launch, one row per launch and epoch."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.spread import outliers
from harness.spec.record import EpochRecord, RankRecord, RunRecord

METRICS = ("train_loss", "test_loss", "test_accuracy", "test_auc")
PARTS = ("sync_seconds", "skew_seconds", "wire_seconds", "input_seconds")
ONE_OFF = ("import_s", "load_s", "distribute_s", "compile_s", "evaluate_s")


def epoch_frame(runs: Sequence[RunRecord]) -> pd.DataFrame:
    """Return one row per launch and epoch, in the order of `runs`.

    Columns: run (folder), layout, ranks, repeat, valid, epoch; seconds = maximum over ranks of the epoch's
    training time; sync_seconds, its parts skew_seconds and wire_seconds, and input_seconds = means over ranks (a
    record without the parts counts all as wire, see `caveats.doubts`); trained_s and rows_seen = sums up to and with
    this epoch;
    train_loss, test_loss, test_accuracy, test_auc (NaN where not measured).
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        trained, seen, share = 0.0, 0, epoch_rows(run)
        for epoch in run.epochs:
            seconds = max(epoch.seconds)
            trained += seconds
            seen += share
            rows.append(
                _identity(run)
                | {"epoch": epoch.epoch, "seconds": seconds}
                | _parts(epoch)
                | {"trained_s": trained, "rows_seen": seen}
                | {name: getattr(epoch, name) for name in METRICS}
            )
    columns = ["run", "layout", "ranks", "repeat", "valid", "epoch", "seconds", *PARTS, "trained_s"]
    frame = pd.DataFrame(rows, columns=[*columns, "rows_seen", *METRICS])
    return frame.astype(dict.fromkeys(METRICS, float))


def _parts(epoch: EpochRecord) -> dict[str, float]:
    """Return the means over ranks of what is not computation."""
    sync = float(np.mean(epoch.sync_seconds))
    skew = float(np.mean(epoch.skew_seconds)) if epoch.skew_seconds else 0.0
    given = float(np.mean(epoch.input_seconds)) if epoch.input_seconds else 0.0
    return {"sync_seconds": sync, "skew_seconds": skew, "wire_seconds": sync - skew, "input_seconds": given}


def launch_frame(runs: Sequence[RunRecord], epochs: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per launch of `runs` (at least one); `epochs` is their `epoch_frame`, made here if not given.

    seconds = median over the launch's epochs of the maximum over ranks (seconds); skew_seconds,
    wire_seconds and input_seconds likewise of the means over ranks; sync_seconds = skew and wire; compute_seconds the
    rest of `seconds`; step_seconds = seconds over steps; within = the
    relative standard deviation of the epochs (NaN for one); trained_s all epochs together. One-off times
    (import_s, load_s, distribute_s, compile_s, evaluate_s) are maxima over ranks. The test metrics are those
    of the last epoch that was evaluated; train_loss is the last epoch's, NaN when it was not finite. `outlier`
    marks valid launches far from the others of their layout (`spread.outliers`).
    """
    epochs = epoch_frame(runs) if epochs is None else epochs
    groups = epochs.groupby("run", sort=False)
    timed = groups[["seconds", *PARTS]].median()
    timed["sync_seconds"] = timed["skew_seconds"] + timed["wire_seconds"]
    timed["compute_seconds"] = timed["seconds"] - timed["sync_seconds"] - timed["input_seconds"]
    timed["within"] = groups["seconds"].std(ddof=1) / groups["seconds"].mean()
    timed["trained_s"] = groups["seconds"].sum()
    timed["trained_sync_s"] = groups["sync_seconds"].sum()
    timed["trained_input_s"] = groups["input_seconds"].sum()
    facts = pd.DataFrame([_facts(run) for run in runs]).set_index("run", drop=False)
    ends = groups[list(METRICS)].last()
    # `last` skips NaN: right for an epoch without evaluation, wrong for a loss that was no longer finite.
    ends["train_loss"] = epochs.drop_duplicates("run", keep="last").set_index("run")["train_loss"]
    frame = facts.join(timed).join(ends)
    frame["rows_per_second"] = frame["rows"] / frame["seconds"]
    frame["step_seconds"] = frame["seconds"] / frame["steps"]
    frame["outlier"] = _outliers(frame)
    return frame.reset_index(drop=True)


def _outliers(frame: pd.DataFrame) -> pd.Series:
    """Return which valid launches lie far from the others of their layout."""
    marked = pd.Series(False, index=frame.index)
    for _, group in frame[frame["valid"]].groupby("layout", sort=False):
        marked[group.index] = outliers(group["seconds"])
    return marked


def epoch_rows(run: RunRecord) -> int:
    """Return the training rows that one epoch of `run` visits, all ranks together."""
    rows = sum(rank.rows for rank in run.ranks)
    return min(rows, run.steps_per_epoch * run.global_batch) if run.point.workload.drop_remainder else rows


def _identity(run: RunRecord) -> dict[str, Any]:
    point = run.point
    return {
        "run": point.folder,
        "layout": str(point.layout),
        "ranks": point.layout.ranks,
        "repeat": point.repeat,
        "valid": not run.invalid,
    }


def _facts(run: RunRecord) -> dict[str, Any]:
    layout = run.point.layout
    return (
        _identity(run)
        | {
            "nodes": layout.nodes,
            "threads": layout.threads,
            "cores": layout.cores,
            "equal_shares": layout.shares is None,
            "scaling": run.point.scaling,
            "invalid": "; ".join(run.invalid),
            "epochs": len(run.epochs),
            "steps": run.steps_per_epoch,
            "rows": epoch_rows(run),
            "all_rows": sum(rank.rows for rank in run.ranks),
            "global_batch": run.global_batch,
            "started": run.started,
            "identical_weights": run.weights.identical,
            "peak_memory_bytes": max(rank.peak_memory_bytes for rank in run.ranks),
        }
        | {name: _worst(run.ranks, name) for name in ONE_OFF}
    )


def _worst(ranks: Iterable[RankRecord], name: str) -> float:
    return max(float(getattr(rank, name)) for rank in ranks)
