"""The parts of an epoch's and of a launch's time, and a rank that the others waited for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.comparison import in_layout_order, launches_by_layout
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
_ONE_THREAD = 200_000  # multiplications of a product, from about which on OpenBLAS shares it out to threads
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

    Parts that are medians each would not sum to the median: they are means over the middle half of the launches of a
    layout, by epoch time for the EPOCH_PARTS, by the time of the whole launch for the LAUNCH_PARTS. Of the parts of an
    epoch input, skew (waiting for the last rank) and wire (the allreduce itself) are means over ranks,
    computation is the rest of the slowest rank's epoch. The training parts of a launch are totals over its epochs,
    `overhead_s` is what is in no other part. Where not `sums_timed`, skew and wire are not known, and in computation.
    """
    valid = in_layout_order(launches[launches["valid"]])
    parted = with_launch_parts(valid)
    parted["whole"] = parted[list(LAUNCH_PARTS)].sum(axis=1)
    ranks = parted["ranks"].to_numpy()
    sums_timed = parted["sums_timed"].to_numpy()
    columns = {names: parted[list(names)].to_numpy() for names in (EPOCH_PARTS, LAUNCH_PARTS)}
    wholes = {EPOCH_PARTS: parted["seconds"].to_numpy(), LAUNCH_PARTS: parted["whole"].to_numpy()}
    rows = []
    for layout, group in launches_by_layout(parted).items():
        places = group.places
        row: dict[str, object] = {"layout": layout, "ranks": int(ranks[places[0]])}
        row["sums_timed"] = bool(sums_timed[places].all())
        for names, parts in columns.items():
            middle = _median_parts(wholes[names][places], parts[places])
            row |= dict(zip(names, map(float, middle), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def with_launch_parts(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `launch_frames.launch_frame` with the one of the LAUNCH_PARTS that is a rest."""
    rest = launches["trained_s"] - launches["trained_sync_s"] - launches["trained_input_s"]
    return launches.assign(trained_compute_s=rest)


def _median_parts(whole: Array, parts: Array) -> Array:
    """Return the `parts` [launches, columns] of the median launch by `whole` [launches].

    They are means over the middle half of the launches, for the parts of one launch are noise, made to be parts of the
    median.
    """
    count = len(whole)
    order = np.argsort(whole, kind="stable")
    middle = order[count // 4 : count - count // 4]
    median = (whole[order[(count - 1) // 2]] + whole[order[count // 2]]) / 2
    means = np.array([column[middle].mean() for column in parts.T])
    scaled: Array = means * (median / whole[middle].mean())
    return scaled


def mean_launches(seconds: Array, parts: Array, shares: Array) -> tuple[Array, Array]:
    """Return the geometric mean of `seconds` [draws], as the times of a scaling table are, and the parts of it.

    Of every launch `seconds` has the whole and `parts` [launches, columns] what it is made of. `shares` [draws,
    launches] says which part of each draw a launch is: `confidence_intervals.resampled_shares`, or `equal_shares` of
    the launches as they are.
    """
    columns = np.asfortranarray(np.column_stack([np.log(seconds), seconds, parts]))  # BLAS rounds by how they lie
    # Where other processes use the cores, threads wait for each other a hundred times as long as such a product takes.
    step = max(1, _ONE_THREAD // columns.size)
    means = np.concatenate([shares[first : first + step] @ columns for first in range(0, len(shares), step)])
    mean: Array = np.exp(means[:, 0])
    return mean, means[:, 2:] * (mean / means[:, 1])[:, None]


def equal_shares(launches: int) -> Array:
    """Return the shares for `mean_launches` of so many launches as they are, each once."""
    return np.full((1, launches), 1 / launches)


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
