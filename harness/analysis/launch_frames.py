"""Records as tables: one row per launch, one row per launch and epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.analysis.comparison import in_layout_order, launches_by_layout
from harness.analysis.sessions import sessions
from harness.analysis.turn_blocks import BlockTimes
from harness.schema.record import RunRecord

_FENCE = 1.5  # Tukey, "Exploratory Data Analysis" (1977): this many interquartile ranges beyond the quartiles
_FEWEST = 5  # launches: quartiles of fewer say nothing about a single one


def between(seconds: ArrayLike) -> float | None:
    """Return the relative standard deviation of the launches' times, None for a single launch."""
    values = np.asarray(seconds, dtype=float)
    return float(np.std(values, ddof=1) / np.mean(values)) if len(values) > 1 else None


def outliers(seconds: ArrayLike) -> NDArray[np.bool_]:
    """Return which launches lie beyond Tukey's fences; none of fewer than 5.

    They are marked and counted like all others: a slow launch is a fact about the machine.
    """
    values = np.asarray(seconds, dtype=float)
    if len(values) < _FEWEST:
        return np.zeros(len(values), dtype=bool)
    low, high = np.percentile(values, [25, 75])
    reach = _FENCE * (high - low)
    is_outlier: NDArray[np.bool_] = (values < low - reach) | (values > high + reach)
    return is_outlier


METRICS = ("train_loss", "test_loss", "test_accuracy", "test_auc")
PARTS = ("sync_seconds", "skew_seconds", "wire_seconds", "input_seconds")
ONE_OFF = ("import_s", "load_s", "distribute_s", "compile_s", "evaluate_s")
_TIMED = ONE_OFF[1:]

Columns = NDArray[np.void]
"""A launch's epochs as one array with named columns: of many, processes send each other less than of each column."""
_COLUMN_TYPES: dict[str, type[np.generic]] = {
    "epoch": np.int64,
    "seconds": np.float64,
    **dict.fromkeys(PARTS, np.float64),
    "parted": np.bool_,
    "timed": np.bool_,
    "trained_s": np.float64,
    "rows_seen": np.int64,
    **dict.fromkeys(METRICS, np.float64),
}
_COLUMNS = np.dtype(list(_COLUMN_TYPES.items()))


def epoch_frame(runs: Sequence[RunRecord], parts: Sequence[Columns]) -> pd.DataFrame:
    """Return one row per launch and epoch, in the order of `runs` (at least one), from their `epoch_columns`.

    Columns: run (folder), layout, ranks, repeat, valid, epoch; session_begin and session_end of the launch's session
    (`sessions.sessions`). seconds is the maximum over ranks of the epoch's training time. sync_seconds, its parts
    skew_seconds and wire_seconds, and input_seconds are means over ranks. parted: whether the record has these parts
    (else all counts as wire, see `sweep_warnings.doubts`). timed: whether the epoch's time is one of the launch's times
    (`RunRecord.as_timed`). trained_s and rows_seen are totals up to and with this
    epoch. train_loss, test_loss, test_accuracy and test_auc are NaN if not measured.

    `read_results.load_sweep` scales the times of launches that trained in turns to those of their turns. It adds three
    columns: recorded_seconds, what the record has; ran_seconds, the time of an epoch including interference;
    turn_block, the launch's `turn_blocks.BlockTimes`.
    """
    counts = [len(part["epoch"]) for part in parts]
    launches = pd.DataFrame([_identity(run, session) for run, session in zip(runs, _sessions(runs), strict=True)])
    launch_of_epoch = launches.take(np.repeat(np.arange(len(launches)), counts)).reset_index(drop=True)
    numbers = np.concatenate(parts)
    # Numbers of one type in one frame: how columns lie together decides how pandas rounds their sums.
    number_frame = pd.DataFrame({name: numbers[name] for name in _COLUMN_TYPES})
    return pd.concat([launch_of_epoch, number_frame], axis=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochTimes:
    """The times of a launch's epochs, as in `EpochRecord`: arrays (epochs, ranks) of seconds, 0 where not recorded.

    `parted` says for each epoch whether `skew` was recorded.
    """

    seconds: NDArray[np.float64]
    sync: NDArray[np.float64]
    skew: NDArray[np.float64]
    input: NDArray[np.float64]
    parted: NDArray[np.bool_]


def epoch_times(run: RunRecord) -> EpochTimes:
    """Return the times of the epochs of `run`, which has at least one."""
    assert run.epochs, f"{run.point.folder} was read without its epochs"
    return EpochTimes(
        seconds=np.array([epoch.seconds for epoch in run.epochs]),
        sync=np.array([epoch.sync_seconds for epoch in run.epochs]),
        skew=_recorded([epoch.skew_seconds for epoch in run.epochs], len(run.ranks)),
        input=_recorded([epoch.input_seconds for epoch in run.epochs], len(run.ranks)),
        parted=np.array([bool(epoch.skew_seconds) for epoch in run.epochs]),
    )


def epoch_columns(run: RunRecord, times: EpochTimes) -> Columns:
    """Return what differs between a launch's rows of the `epoch_frame`, a row for each epoch."""
    epochs = run.epochs
    columns = np.empty(len(epochs), dtype=_COLUMNS)
    columns["epoch"] = [epoch.epoch for epoch in epochs]
    columns["seconds"] = times.seconds.max(axis=1)
    columns["sync_seconds"] = times.sync.mean(axis=1)
    columns["skew_seconds"] = times.skew.mean(axis=1)
    columns["wire_seconds"] = columns["sync_seconds"] - columns["skew_seconds"]
    columns["input_seconds"] = times.input.mean(axis=1)
    columns["parted"] = times.parted
    columns["timed"] = columns["epoch"] >= run.as_timed().epochs[0].epoch  # those that do not count come first
    columns["trained_s"] = columns["seconds"].cumsum()
    columns["rows_seen"] = epoch_rows(run) * np.arange(1, len(epochs) + 1)
    for name in METRICS:
        columns[name] = np.array([getattr(epoch, name) for epoch in epochs], dtype=float)
    return columns


def _recorded(times: Sequence[Sequence[float]], ranks: int) -> NDArray[np.float64]:
    """Return the epochs' `times` of all `ranks`, 0 where the record lacks them."""
    nothing = (0.0,) * ranks
    return np.array([epoch or nothing for epoch in times])


def launch_frame(runs: Sequence[RunRecord], epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per launch of `runs` (at least one); `epochs` is the `epoch_frame` of them or of more launches.

    seconds is the median over the launch's timed epochs of the maximum over ranks; skew_seconds, wire_seconds and
    input_seconds likewise of the means over ranks. sync_seconds is skew and wire, compute_seconds the rest of `seconds`
    (with all sums where not sums_timed), step_seconds is seconds over steps. within is the relative standard deviation
    of these epochs (NaN for a single one), trained_s the time of all epochs.

    One-off times (import_s, load_s, distribute_s, compile_s, evaluate_s) are maxima over ranks; overhead_s is what is
    left of inside_s, all attempts of the launch from its import to its end: checks, comparing weights, gathering the
    record. The test metrics are those of the last epoch that was evaluated; train_loss is the last epoch's, NaN when it
    was not finite. For launches that trained in turns, all times of epochs are those of their turns on undisturbed
    cores. ran_seconds, recorded_seconds and turn_block are those of `epoch_frame`; other launches have NaN, their
    seconds and None there. disturbed: whether other work met all rounds of its block, but not all of other blocks; its
    times then include interference. `outlier` marks valid launches far from the others of their layout (`outliers`).
    """
    groups = epochs.groupby("run", sort=False)
    timed_groups = epochs[epochs["timed"]].groupby("run", sort=False)
    timed = timed_groups[["seconds", *PARTS]].median()
    timed["sync_seconds"] = timed["skew_seconds"] + timed["wire_seconds"]
    timed["compute_seconds"] = timed["seconds"] - timed["sync_seconds"] - timed["input_seconds"]
    timed["within"] = timed_groups["seconds"].std(ddof=1) / timed_groups["seconds"].mean()
    timed["trained_s"] = groups["seconds"].sum()
    timed["trained_sync_s"] = groups["sync_seconds"].sum()
    timed["trained_input_s"] = groups["input_seconds"].sum()
    timed["epochs"] = groups.size()
    timed["parted"] = groups["parted"].all()
    rows = [_facts(run, session) for run, session in zip(runs, _sessions(runs), strict=True)]
    facts = pd.DataFrame(rows).set_index("run", drop=False)
    ends = groups[list(METRICS)].last()
    # `last` skips NaN: right for an epoch without evaluation, wrong for a loss that was no longer finite.
    ends["train_loss"] = epochs.drop_duplicates("run", keep="last").set_index("run")["train_loss"]
    frame = facts.join(timed).join(ends)
    frame["rows_per_second"] = frame["rows"] / frame["seconds"]
    frame["step_seconds"] = frame["seconds"] / frame["steps"]
    parts = frame[[*_TIMED, "trained_s"]].sum(axis=1)
    frame["overhead_s"] = (frame["inside_s"] - parts).clip(lower=0.0)
    frame["recorded_seconds"] = frame["seconds"]
    frame["ran_seconds"] = np.nan
    frame["turn_block"] = None
    if "turn_block" in epochs:
        frame["recorded_seconds"] = timed_groups["recorded_seconds"].median()
        for column in ("ran_seconds", "turn_block"):
            frame[column] = epochs.drop_duplicates("run").set_index("run")[column]
    frame["disturbed"] = _disturbed(frame)
    frame["outlier"] = _outliers_of_layouts(frame)
    return frame.reset_index(drop=True)


def _outliers_of_layouts(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which launches are valid and far from the valid others of their layout."""
    valid = np.flatnonzero(frame["valid"])
    seconds = frame["seconds"].to_numpy()[valid]
    are_outliers = np.zeros(len(frame), dtype=bool)
    for group in launches_by_layout(frame.iloc[valid]).values():
        are_outliers[valid[group.places]] = outliers(seconds[group.places])
    return are_outliers


def _disturbed(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which launches trained in a block without a time excluding contended rounds, where others have one."""
    disturbed = np.array(
        [isinstance(block, BlockTimes) and not block.undisturbed for block in frame["turn_block"]], dtype=bool
    )
    every_block = bool(disturbed[frame["valid"]].all())
    return disturbed & (not every_block)


def middle_launch(launches: pd.DataFrame) -> str:
    """Return the folder's name of the median launch on most ranks, the lower of two, of a frame with valid launches."""
    valid = launches[launches["valid"]]
    most = valid[valid["ranks"] == valid["ranks"].max()].sort_values("seconds", kind="stable")
    return str(most["run"].iloc[(len(most) - 1) // 2])


def curve_frame(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout and epoch: medians over the valid launches of `epochs` (`epoch_frame`).

    Columns: layout, ranks, epoch, launches, trained_s (training seconds so far), rows_seen and the metrics,
    each also as NAME_low and NAME_high (least and greatest launch).
    """
    keys = ["layout", "ranks", "epoch"]
    columns = ["trained_s", "rows_seen"]
    valid = epochs.loc[epochs["valid"], [*keys, *columns, *METRICS]]  # of 1,000,000 epochs a copy of all is seconds
    return _group_medians(valid.sort_values("ranks", kind="stable"), keys, columns)


def final_frame(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout: the metrics after the last epoch, medians, least and greatest launch.

    The last epoch, not the best one: choosing by the test rows would flatter.
    """
    valid = in_layout_order(launches[launches["valid"]])
    return _group_medians(valid, ["layout", "ranks"], ["epochs", "trained_s"])


def _group_medians(valid: pd.DataFrame, keys: list[str], columns: list[str]) -> pd.DataFrame:
    groups = valid.groupby(keys, sort=False)
    metrics = groups[list(METRICS)]
    frame = groups[[*columns, *METRICS]].median()
    frame = frame.join(metrics.min().add_suffix("_low")).join(metrics.max().add_suffix("_high"))
    frame.insert(0, "launches", groups.size())
    return frame.reset_index()


def epoch_rows(run: RunRecord) -> int:
    """Return the training rows that one epoch of `run` visits, all ranks together."""
    rows = sum(rank.rows for rank in run.ranks)
    return min(rows, run.steps_per_epoch * run.global_batch) if run.point.workload.drop_remainder else rows


Session = tuple[datetime, datetime]


def _sessions(runs: Sequence[RunRecord]) -> list[Session]:
    """Return from when to when the session lasted in which each of `runs` was launched."""
    times = [(run.started, run.ended) for run in runs]
    numbers = sessions(times)
    first: dict[int, datetime] = {}
    last: dict[int, datetime] = {}
    for number, (begin, end) in zip(numbers, times, strict=True):
        first[number] = min(begin, first.get(number, begin))
        last[number] = max(end, last.get(number, end))
    return [(first[number], last[number]) for number in numbers]


def _identity(run: RunRecord, session: Session) -> dict[str, Any]:
    point = run.point
    return {
        "run": point.folder,
        "layout": str(point.layout),
        "ranks": point.layout.ranks,
        "repeat": point.repeat,
        "valid": not run.invalid,
        "session_begin": session[0],
        "session_end": session[1],
    }


def _slowest_rank_seconds(run: RunRecord, name: str) -> float:
    return max(float(getattr(rank, name)) for rank in run.ranks)


def _earlier_s(run: RunRecord) -> float:
    """Return the seconds of the attempts of a launch before the one that came to its end."""
    return sum((attempt.ended - attempt.started).total_seconds() for attempt in run.segments[:-1])


def _facts(run: RunRecord, session: Session) -> dict[str, Any]:
    layout = run.point.layout
    one_off = {name: _slowest_rank_seconds(run, name) for name in ONE_OFF}
    imported = one_off["import_s"] if run.point.workload.script else 0.0  # a script's record begins before it
    return (
        _identity(run, session)
        | {
            "nodes": layout.nodes,
            "threads": layout.threads,
            "cores": layout.cores,
            "scaling": run.point.scaling,
            "invalid": "; ".join(run.invalid),
            "steps": run.steps_per_epoch,
            "rows": epoch_rows(run),
            "all_rows": sum(rank.rows for rank in run.ranks),
            "global_batch": run.global_batch,
            "started": run.launched,
            "identical_weights": run.weights.identical,
            "sums_timed": run.sums_timed,
            "inside_s": (run.ended - run.started).total_seconds() + _earlier_s(run) - imported,
            "peak_memory_bytes": max(rank.peak_memory_bytes for rank in run.ranks),
        }
        | one_off
    )
