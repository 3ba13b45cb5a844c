"""Records as tables: one row per launch, one row per launch and epoch; the parts of their time, and a slow rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from harness.analysis.stats import sessions
from harness.analysis.turn_blocks import TurnBlock
from harness.schema.record import FailedRank, RunRecord, Stretch
from harness.schema.workload import is_script

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
    found: NDArray[np.bool_] = (values < low - reach) | (values > high + reach)
    return found


METRICS = ("train_loss", "test_loss", "test_accuracy", "test_auc")
PARTS = ("sync_seconds", "skew_seconds", "wire_seconds", "input_seconds")
ONE_OFF = ("import_s", "load_s", "distribute_s", "compile_s", "evaluate_s")
_TIMED = ONE_OFF[1:]

Columns = dict[str, NDArray[Any]]


def epoch_frame(runs: Sequence[RunRecord], parts: Sequence[Columns]) -> pd.DataFrame:
    """Return one row per launch and epoch, in the order of `runs` (at least one), from their `epoch_columns`.

    Columns: run (folder), layout, ranks, repeat, valid, session_begin and session_end (of the launch's session, see
    `stats.sessions`), epoch; seconds = maximum over ranks of the epoch's training time; sync_seconds, its parts
    skew_seconds and wire_seconds, and input_seconds = means over ranks; parted = whether the record has the parts (else
    all counts as wire, see `sweep_warnings.doubts`); trained_s and rows_seen = totals up to and with this epoch;
    train_loss, test_loss, test_accuracy, test_auc (NaN if not measured).

    `read_results.load_sweep` scales the times of launches that trained in turns to those of their turns, and adds
    recorded_seconds, what the record has; ran_seconds, the time of an epoch as it ran, with what others took of the
    machine; turn_block, the launch's `turn_blocks.TurnBlock`.
    """
    counts = [len(part["epoch"]) for part in parts]
    whose = [_identity(run, session) for run, session in zip(runs, _sessions(runs), strict=True)]
    return pd.DataFrame(
        # Texts are objects, which are not copied when repeated.
        {
            name: np.repeat(
                np.array([one[name] for one in whose], dtype=object if isinstance(value, str) else None), counts
            )
            for name, value in whose[0].items()
        }
        | {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    )


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
    """Return what differs between a launch's rows of the `epoch_frame`, arrays of as many values as it has epochs."""
    epochs = run.epochs
    seconds, sync, skew = times.seconds.max(axis=1), times.sync.mean(axis=1), times.skew.mean(axis=1)
    parts = (sync, skew, sync - skew, times.input.mean(axis=1))
    return (
        {"epoch": np.array([epoch.epoch for epoch in epochs]), "seconds": seconds}
        | dict(zip(PARTS, parts, strict=True))
        | {"parted": times.parted}
        | {"trained_s": seconds.cumsum(), "rows_seen": epoch_rows(run) * np.arange(1, len(epochs) + 1)}
        | {name: np.array([getattr(epoch, name) for epoch in epochs], dtype=float) for name in METRICS}
    )


def _recorded(times: Sequence[Sequence[float]], ranks: int) -> NDArray[np.float64]:
    """Return the epochs' `times` of all `ranks`, 0 where the record lacks them."""
    nothing = (0.0,) * ranks
    return np.array([epoch or nothing for epoch in times])


def launch_frame(runs: Sequence[RunRecord], epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per launch of `runs` (at least one); `epochs` is the `epoch_frame` of them or of more launches.

    seconds = median over the launch's epochs of the maximum over ranks (seconds); skew_seconds,
    wire_seconds and input_seconds likewise of the means over ranks; sync_seconds = skew and wire; compute_seconds the
    rest of `seconds`; step_seconds = seconds over steps; within = the
    relative standard deviation of the epochs (NaN for one); trained_s all epochs together. One-off times
    (import_s, load_s, distribute_s, compile_s, evaluate_s) are maxima over ranks; overhead_s is what is left of
    inside_s, the launch from its import to its end: checks, comparing weights, gathering the record. The test
    metrics are those of the last epoch that was evaluated; train_loss is the last epoch's, NaN when it was not
    finite. Of launches that trained in turns all times of epochs are those of their turns on undisturbed cores;
    ran_seconds, recorded_seconds and turn_block as in `epoch_frame`, where other launches have NaN, their seconds and
    None. disturbed = whether all of its block met other work, where other blocks did not: its times are as they ran.
    `outlier` marks valid launches far from the others of their layout (`outliers`).
    """
    groups = epochs.groupby("run", sort=False)
    timed = groups[["seconds", *PARTS]].median()
    timed["sync_seconds"] = timed["skew_seconds"] + timed["wire_seconds"]
    timed["compute_seconds"] = timed["seconds"] - timed["sync_seconds"] - timed["input_seconds"]
    timed["within"] = groups["seconds"].std(ddof=1) / groups["seconds"].mean()
    timed["trained_s"] = groups["seconds"].sum()
    timed["trained_sync_s"] = groups["sync_seconds"].sum()
    timed["trained_input_s"] = groups["input_seconds"].sum()
    timed["epochs"] = groups.size()
    timed["parted"] = groups["parted"].all()
    facts = pd.DataFrame([_facts(run, session) for run, session in zip(runs, _sessions(runs), strict=True)]).set_index(
        "run", drop=False
    )
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
        frame["recorded_seconds"] = groups["recorded_seconds"].median()
        for column in ("ran_seconds", "turn_block"):
            frame[column] = epochs.drop_duplicates("run").set_index("run")[column]
    frame["disturbed"] = _disturbed(frame)
    frame["outlier"] = False
    for _, group in frame[frame["valid"]].groupby("layout", sort=False):
        frame.loc[group.index, "outlier"] = outliers(group["seconds"])
    return frame.reset_index(drop=True)


def _disturbed(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which launches trained in a block without a time on undisturbed cores, where others have one."""
    disturbed = np.array(
        [isinstance(block, TurnBlock) and not block.undisturbed for block in frame["turn_block"]], dtype=bool
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
    valid = epochs[epochs["valid"]].sort_values("ranks", kind="stable")
    return _group_medians(valid, ["layout", "ranks", "epoch"], ["trained_s", "rows_seen"])


def final_frame(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout: the metrics after the last epoch, medians, least and greatest launch.

    The last epoch, not the best one: choosing by the test rows would flatter.
    """
    valid = launches[launches["valid"]].sort_values(["ranks", "nodes", "threads"], kind="stable")
    return _group_medians(valid, ["layout", "ranks"], ["epochs", "trained_s"])


def _group_medians(valid: pd.DataFrame, keys: list[str], columns: list[str]) -> pd.DataFrame:
    groups = valid.groupby(keys, sort=False)
    frame = groups[[*columns, *METRICS]].median()
    lows, highs = groups[list(METRICS)].min(), groups[list(METRICS)].max()
    frame = frame.join(lows.add_suffix("_low")).join(highs.add_suffix("_high"))
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
    first, last = dict[int, datetime](), dict[int, datetime]()
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


def _facts(run: RunRecord, session: Session) -> dict[str, Any]:
    layout = run.point.layout
    one_off = {name: max(float(getattr(rank, name)) for rank in run.ranks) for name in ONE_OFF}
    imported = one_off["import_s"] if is_script(run.point.workload) else 0.0  # a script's record begins before it
    return (
        _identity(run, session)
        | {
            "nodes": layout.nodes,
            "threads": layout.threads,
            "cores": layout.cores,
            "equal_shares": layout.shares is None,
            "scaling": run.point.scaling,
            "invalid": "; ".join(run.invalid),
            "steps": run.steps_per_epoch,
            "rows": epoch_rows(run),
            "all_rows": sum(rank.rows for rank in run.ranks),
            "global_batch": run.global_batch,
            "started": run.started,
            "identical_weights": run.weights.identical,
            "inside_s": (run.ended - run.started).total_seconds() - imported,
            "peak_memory_bytes": max(rank.peak_memory_bytes for rank in run.ranks),
        }
        | one_off
    )


def stretch_rate(run: RunRecord, stretch: Stretch) -> float:
    """Return the rows a second that `stretch` of `run` trained, evaluation not counted; NaN where that is not known."""
    rows = _first_rows(run, stretch.first + stretch.steps) - _first_rows(run, stretch.first)
    return rows / stretch.training_s if stretch.training_s > 0 else float("nan")


def stretches_around(run: RunRecord, loss: FailedRank) -> tuple[Stretch | None, Stretch | None]:
    """Return the stretches of `run` before and after a rank failed, None where no step was made."""
    before = [each for each in run.stretches if each.started <= loss.noticed]
    after = [each for each in run.stretches if each.started > loss.noticed]
    return before[-1] if before else None, after[0] if after else None


def _first_rows(run: RunRecord, steps: int) -> int:
    """Return how many rows the first `steps` steps of a launch have trained."""
    epochs, rest = divmod(steps, run.steps_per_epoch)
    whole = min(sum(rank.rows for rank in run.ranks), run.steps_per_epoch * run.global_batch)
    return epochs * whole + rest * run.global_batch


def steps_repeated(losses: Sequence[FailedRank]) -> int:
    """Return the steps repeated; ranks that failed at once share them."""
    return sum({(loss.noticed, loss.epoch, loss.step): loss.redone for loss in losses}.values())


Array = NDArray[np.float64]
_EPOCH = {
    "compute_seconds": "computation",
    "input_seconds": "input",
    "skew_seconds": "waiting (skew)",
    "wire_seconds": "allreduce (wire)",
}
_LAUNCH = {
    "import_s": "import",
    "load_s": "load",
    "distribute_s": "distribute",
    "compile_s": "compile",
    "trained_compute_s": "computation",
    "trained_input_s": "input",
    "trained_sync_s": "synchronisation",
    "evaluate_s": "evaluation",
    "overhead_s": "rest",
}
EPOCH_PARTS, LAUNCH_PARTS, PART_NAMES = tuple(_EPOCH), tuple(_LAUNCH), _EPOCH | _LAUNCH
SLOW = 1.10  # computation of a rank over the median of the others' from which it is named
_WAITED = 0.02  # part of an epoch that the others wait at least for a rank that is named


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """A rank that the others of its launch waited for.

    `ratio` is its computation over the median of the others', `waited` the mean part of an epoch that they waited
    for the last rank.
    """

    run: str
    rank: int
    host: str
    ranks: int
    ratio: float
    waited: float


def breakdown_frame(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout with valid launches: the parts of its median time, in seconds.

    Parts that are medians each would not sum to the median: they are means over the middle half of the launches
    (`median_launches`), by epoch time for the EPOCH_PARTS, by the time of the whole launch for the LAUNCH_PARTS. Of the
    parts of an epoch input, skew (waiting for the last rank) and wire (the allreduce itself) are means over ranks,
    computation is the rest of the slowest rank's epoch. The training parts of a launch are totals over its epochs,
    `overhead_s` is what is in no other part.
    """
    valid = launches[launches["valid"]].sort_values(["ranks", "nodes", "threads"], kind="stable")
    parted = with_launch_parts(valid)
    parted["whole"] = parted[list(LAUNCH_PARTS)].sum(axis=1)
    rows = []
    for layout, group in parted.groupby("layout", sort=False):
        row: dict[str, object] = {"layout": layout, "ranks": int(group["ranks"].iloc[0])}
        for whole, parts in (("seconds", EPOCH_PARTS), ("whole", LAUNCH_PARTS)):
            _, middle = median_launches(group, np.arange(len(group))[None], parts, whole)
            row |= dict(zip(parts, map(float, middle[0]), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def with_launch_parts(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `frames.launch_frame` with the one of the LAUNCH_PARTS that is a rest."""
    rest = launches["trained_s"] - launches["trained_sync_s"] - launches["trained_input_s"]
    return launches.assign(trained_compute_s=rest)


def median_launches(
    group: pd.DataFrame, drawn: NDArray[np.int64], columns: Sequence[str], whole: str = "seconds"
) -> tuple[Array, Array]:
    """Return `whole` [draws], a median, and the `columns` [draws, columns] of every draw [draws, launches].

    The columns are means over the middle half of the launches by `whole`, for the parts of one launch are noise, made
    to be parts of the median.
    """
    seconds, parts = group[whole].to_numpy(), group[list(columns)].to_numpy()
    order = np.take_along_axis(drawn, np.argsort(seconds[drawn], axis=1, kind="stable"), axis=1)
    count = drawn.shape[1]
    middle = order[:, count // 4 : count - count // 4]
    median = (seconds[order[:, (count - 1) // 2]] + seconds[order[:, count // 2]]) / 2
    return median, _parts_of(median, seconds, parts, middle)


def mean_launches(
    group: pd.DataFrame, drawn: NDArray[np.int64], columns: Sequence[str], whole: str = "seconds"
) -> tuple[Array, Array]:
    """Return what `median_launches` does, of geometric means: of launches in turns, whose times are over blocks."""
    seconds, parts = group[whole].to_numpy(), group[list(columns)].to_numpy()
    mean: Array = np.exp(np.log(seconds[drawn]).mean(axis=1))
    return mean, _parts_of(mean, seconds, parts, drawn)


def _parts_of(whole: Array, seconds: Array, parts: Array, launches: NDArray[np.int64]) -> Array:
    """Return the means of `parts` [launches, columns] over the drawn `launches` [draws, launches], parts of `whole`."""
    means = np.stack([part[launches].mean(axis=1) for part in parts.T], axis=1)
    scaled: Array = means * (whole / seconds[launches].mean(axis=1))[:, None]
    return scaled


def slow_rank(run: RunRecord, times: EpochTimes) -> SlowRank | None:
    """Return the slowest rank of a launch where its computation is well above that of the others, else None.

    Computation is the epoch without input and synchronisation calls; totals over the epochs count. A rank is named when
    it computed more than SLOW times the median of the others and they waited for more than 2 % of the time.
    """
    if len(run.ranks) < 2 or not times.parted.all():
        return None
    seconds, skew = times.seconds.sum(axis=0), times.skew.sum(axis=0)
    compute = seconds - times.input.sum(axis=0) - times.sync.sum(axis=0)
    worst = int(compute.argmax())
    others = np.delete(np.arange(len(compute)), worst)
    ratio = float(compute[worst] / np.median(compute[others]))
    waited = float(skew[others].mean() / seconds.max())
    if ratio < SLOW or waited < _WAITED:
        return None
    return SlowRank(
        run=run.point.folder, rank=worst, host=run.ranks[worst].host, ranks=len(run.ranks), ratio=ratio, waited=waited
    )
