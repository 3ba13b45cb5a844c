"""The parts of an epoch's and of a launch's time, and a rank that the others waited for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.comparison import in_layout_order
from harness.analysis.launch_frames import EpochTimes
from harness.schema.record import FailedRank, RunRecord, Stretch

Array = NDArray[np.float64]
OF_SUMS = ("skew_seconds", "wire_seconds", "trained_sync_s")
"""The parts that are not known where the times of sums are not."""
_EPOCH = {
    "compute_seconds": "computation",
    "input_seconds": "input",
    "skew_seconds": "wait time",
    "wire_seconds": "allreduce time",
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
EPOCH_PARTS = tuple(_EPOCH)
LAUNCH_PARTS = tuple(_LAUNCH)
PART_NAMES = _EPOCH | _LAUNCH
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
    `overhead_s` is what is in no other part. Where not `sums_timed`, skew and wire are not known, and in computation.
    """
    valid = in_layout_order(launches[launches["valid"]])
    parted = with_launch_parts(valid)
    parted["whole"] = parted[list(LAUNCH_PARTS)].sum(axis=1)
    rows = []
    for layout, group in parted.groupby("layout", sort=False):
        row: dict[str, object] = {"layout": layout, "ranks": int(group["ranks"].iloc[0])}
        row["sums_timed"] = bool(group["sums_timed"].all())
        for whole, parts in (("seconds", EPOCH_PARTS), ("whole", LAUNCH_PARTS)):
            _, middle = median_launches(group, np.arange(len(group))[None], parts, whole)
            row |= dict(zip(parts, map(float, middle[0]), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def with_launch_parts(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `launch_frames.launch_frame` with the one of the LAUNCH_PARTS that is a rest."""
    rest = launches["trained_s"] - launches["trained_sync_s"] - launches["trained_input_s"]
    return launches.assign(trained_compute_s=rest)


def median_launches(
    group: pd.DataFrame, drawn: NDArray[np.int64], columns: Sequence[str], whole: str = "seconds"
) -> tuple[Array, Array]:
    """Return `whole` [draws], a median, and the `columns` [draws, columns] of every draw [draws, launches].

    The columns are means over the middle half of the launches by `whole`, for the parts of one launch are noise, made
    to be parts of the median.
    """
    seconds = group[whole].to_numpy()
    parts = group[list(columns)].to_numpy()
    order = np.take_along_axis(drawn, np.argsort(seconds[drawn], axis=1, kind="stable"), axis=1)
    count = drawn.shape[1]
    middle = order[:, count // 4 : count - count // 4]
    median = (seconds[order[:, (count - 1) // 2]] + seconds[order[:, count // 2]]) / 2
    means = np.stack([part[middle].mean(axis=1) for part in parts.T], axis=1)
    scaled: Array = means * (median / seconds[middle].mean(axis=1))[:, None]
    return median, scaled


def mean_launches(
    group: pd.DataFrame, drawn: NDArray[np.int64], columns: Sequence[str], whole: str = "seconds"
) -> tuple[Array, Array]:
    """Return what `median_launches` does, of geometric means, as the times of a scaling table are."""
    seconds = group[whole].to_numpy()
    parts = group[list(columns)].to_numpy()
    means = _drawn_shares(drawn, len(group)) @ np.column_stack([np.log(seconds), seconds, parts])
    mean: Array = np.exp(means[:, 0])
    return mean, means[:, 2:] * (mean / means[:, 1])[:, None]


def _drawn_shares(drawn: NDArray[np.int64], launches: int) -> Array:
    """Return which part of each draw [draws, drawn launches] each of the launches is, [draws, launches]."""
    draws, size = drawn.shape
    places = drawn + launches * np.arange(draws)[:, None]
    counts = np.bincount(places.ravel(), minlength=draws * launches)
    shares: Array = counts.reshape(draws, launches) / size
    return shares


def slow_rank(run: RunRecord, times: EpochTimes) -> SlowRank | None:
    """Return the slowest rank of a launch where its computation is well above that of the others, else None.

    Computation is the epoch without input and synchronisation calls; totals over the epochs count. A rank is named when
    it computed more than SLOW times the median of the others and they waited for more than 2 % of the time.
    """
    if len(run.ranks) < 2 or not times.parted.all():
        return None
    seconds = times.seconds.sum(axis=0)
    skew = times.skew.sum(axis=0)
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


# What ranks trained between failures, and the steps that were made again.


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
