"""Where the time goes: parts of an epoch and of a launch, what caps the speedup, whom the others wait for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.frames import EpochTimes
from harness.analysis.scaling import PointScaling, Scaling
from harness.schema.record import RunRecord

EPOCH_PARTS = ("compute_seconds", "input_seconds", "skew_seconds", "wire_seconds")
LAUNCH_PARTS = (
    "import_s",
    "load_s",
    "distribute_s",
    "compile_s",
    "trained_compute_s",
    "trained_input_s",
    "trained_sync_s",
    "evaluate_s",
    "overhead_s",
)
SLOW = 1.10  # computation of a rank over the median of the others' from which it is named
_WORTH = 0.02  # part of an epoch that others must wait, so that naming a rank helps anyone


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
    """Return one row per layout with valid launches: medians over launches, in seconds.

    The EPOCH_PARTS are of one epoch and sum to it: input, skew (waiting for the last rank) and wire (the sum over
    ranks itself) are means over ranks, computation is the rest of the slowest rank's epoch. The LAUNCH_PARTS are of a
    whole launch; the training parts are sums over its epochs, overhead is what no other part is.
    """
    valid = launches[launches["valid"]].sort_values(["ranks", "nodes", "threads"], kind="stable")
    parted = valid.assign(trained_compute_s=valid["trained_s"] - valid["trained_sync_s"] - valid["trained_input_s"])
    groups = parted.groupby(["layout", "ranks"], sort=False)
    return groups[[*EPOCH_PARTS, *LAUNCH_PARTS]].median().reset_index()


def slow_rank(run: RunRecord, times: EpochTimes) -> SlowRank | None:
    """Return the slowest rank of a launch where its computation is well above that of the others, else None.

    Computation is the epoch without input and synchronisation calls; sums over the epochs count. A rank is named when
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
    if ratio < SLOW or waited < _WORTH:
        return None
    return SlowRank(
        run=run.point.folder,
        rank=worst,
        host=run.ranks[worst].host,
        ranks=len(run.ranks),
        ratio=ratio,
        waited=waited,
    )


LOSS = 0.01  # a part that takes less of the epoch than this caps nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What one part of a point's epoch takes beyond its ideal share: seconds, and the speedup without it.

    `part` is a column of `breakdown.breakdown_frame`.
    """

    part: str
    seconds: float
    fraction: float
    speedup_without: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Cap:
    """The losses of one point, greatest first; `cap` is the first, None where nothing is lost."""

    layout: str
    ranks: int
    losses: tuple[Loss, ...]

    @property
    def cap(self) -> Loss | None:
        """The part that costs most beyond its ideal share."""
        return self.losses[0] if self.losses and self.losses[0].fraction >= LOSS else None


def caps(scaling: Scaling, split: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> tuple[Cap, ...]:
    """Return the losses of every point with a speedup, other than the base.

    `split` has a row per layout, `parts` are its columns that add up to the epoch. A part's ideal share is the
    base's seconds of it divided by the ratio of the ranks (strong scaling) or the same seconds (weak scaling).
    """
    rows = {row["layout"]: row for row in split}
    base = rows[scaling.base.layout]
    compared = [point for point in scaling.others if point.speedup is not None and point.layout in rows]
    return tuple(_cap(point, rows[point.layout], base, parts, scaling) for point in compared)


def _cap(
    point: PointScaling, row: Mapping[str, Any], base: Mapping[str, Any], parts: Sequence[str], scaling: Scaling
) -> Cap:
    assert point.speedup is not None
    share = point.ideal if scaling.scaling == "strong" else 1.0
    losses = []
    for part in parts:
        lost = float(row[part] - base[part] / share)
        # A part below its ideal share is a gain, no loss. What is left of the time can never be all of it.
        if 0 < lost < point.seconds:
            without = point.speedup * point.seconds / (point.seconds - lost)
            losses.append(Loss(part=part, seconds=lost, fraction=lost / point.seconds, speedup_without=without))
    ordered = sorted(losses, key=lambda loss: loss.seconds, reverse=True)
    return Cap(layout=point.layout, ranks=point.ranks, losses=tuple(ordered))
