"""Where the time goes: parts of an epoch and of a launch, what caps the speedup, whom the others wait for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.frames import EpochTimes
from harness.analysis.scaling import PointScaling, Scaling, alike
from harness.analysis.stats import Interval, percentiles, resamples
from harness.schema.record import RunRecord

Array = NDArray[np.float64]
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
    """Return one row per layout with valid launches: the parts of its median launch, in seconds.

    Parts that are medians each would not sum to the median. The median launch is the middle one, or the mean of the
    two middle ones: by epoch time for the EPOCH_PARTS, by the time of the whole launch for the LAUNCH_PARTS, so
    that both sum to a median over launches. Of the parts of an epoch input, skew (waiting for the last rank) and
    wire (the sum over ranks itself) are means over ranks, computation is the rest of the slowest rank's epoch. The
    training parts of a launch are sums over its epochs, overhead is what no other part is.
    """
    valid = launches[launches["valid"]].sort_values(["ranks", "nodes", "threads"], kind="stable")
    parted = with_launch_parts(valid)
    rows = [
        {"layout": layout, "ranks": int(group["ranks"].iloc[0])}
        | _middle(group, group["seconds"], EPOCH_PARTS)
        | _middle(group, group[list(LAUNCH_PARTS)].sum(axis=1), LAUNCH_PARTS)
        for layout, group in parted.groupby("layout", sort=False)
    ]
    return pd.DataFrame(rows)


def with_launch_parts(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `frames.launch_frame` with the one of the LAUNCH_PARTS that is a rest."""
    rest = launches["trained_s"] - launches["trained_sync_s"] - launches["trained_input_s"]
    return launches.assign(trained_compute_s=rest)


def _middle(group: pd.DataFrame, whole: "pd.Series[float]", parts: Sequence[str]) -> dict[str, float]:
    """Return the `parts` of the launch of `group` that is the median by `whole`."""
    order = np.argsort(whole.to_numpy(), kind="stable")
    middle = group[list(parts)].iloc[[order[(len(order) - 1) // 2], order[len(order) // 2]]]
    return {str(name): float(value) for name, value in middle.mean().items()}


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
    """What one part of a point's epoch takes beyond its ideal share: seconds, and about the most speedup without it.

    `part` is a column of `breakdown_frame`. `interval` is the 95 % interval of `speedup_without`, None where the
    speedup has none.
    """

    part: str
    seconds: float
    fraction: float
    speedup_without: float
    interval: Interval | None


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


def caps(scaling: Scaling, launches: pd.DataFrame) -> tuple[Cap, ...]:
    """Return the losses of every point with a speedup, other than the base; `launches` are those of `scaling`.

    A part's ideal share is the base's seconds of it divided by the ratio of the ranks (strong scaling) or the same
    seconds (weak scaling). That nothing else would change without the loss is an assumption, so `speedup_without` is
    about the most; its interval is a bootstrap over the launches of both points.
    """
    groups = {str(layout): group for layout, group in launches[launches["valid"]].groupby("layout", sort=False)}
    compared = [point for point in scaling.others if point.speedup is not None]
    return tuple(_cap(point, groups[point.layout], groups[scaling.base.layout], scaling) for point in compared)


def _cap(point: PointScaling, group: pd.DataFrame, base: pd.DataFrame, scaling: Scaling) -> Cap:
    share, factor = (point.ideal, 1.0) if scaling.scaling == "strong" else (1.0, point.ideal)
    seconds, parts = median_launches(group, np.arange(len(group))[None], EPOCH_PARTS)
    base_seconds, base_parts = median_launches(base, np.arange(len(base))[None], EPOCH_PARTS)
    lost = (parts - base_parts / share)[0]
    without = _resampled_without(group, base, share) if point.speedup_interval else None
    fewest = min(len(group), len(base))
    losses = [
        Loss(
            part=part,
            seconds=float(lost[number]),
            fraction=float(lost[number] / seconds[0]),
            speedup_without=float(factor * base_seconds[0] / (seconds[0] - lost[number])),
            interval=None if without is None else percentiles(factor * without[:, number], fewest),
        )
        for number, part in enumerate(EPOCH_PARTS)
        if 0 < lost[number] < seconds[0]  # below its ideal share is a gain; what is left can never be all of it
    ]
    ordered = sorted(losses, key=lambda loss: loss.seconds, reverse=True)
    return Cap(layout=point.layout, ranks=point.ranks, losses=tuple(ordered))


def median_launches(
    group: pd.DataFrame, drawn: NDArray[np.int64], columns: Sequence[str], whole: str = "seconds"
) -> tuple[Array, Array]:
    """Return `whole` [draws] and the `columns` [draws, columns] of the median launch of every draw [draws, launches].

    The median launch by `whole` is the middle one, or the mean of the two middle ones, as in `breakdown_frame`.
    """
    seconds, parts = group[whole].to_numpy(), group[list(columns)].to_numpy()
    order = np.take_along_axis(drawn, np.argsort(seconds[drawn], axis=1, kind="stable"), axis=1)
    low, high = order[:, (drawn.shape[1] - 1) // 2], order[:, drawn.shape[1] // 2]
    return (seconds[low] + seconds[high]) / 2, (parts[low] + parts[high]) / 2


def _resampled_without(group: pd.DataFrame, base: pd.DataFrame, share: float) -> Array | None:
    """Return the ratio of the base's time to the point's without each part's loss, [draws, parts]."""
    found = alike(base, group)
    if found is None:
        return None
    first, second = resamples(len(found.base), len(found.group), paired=found.paired)
    base_seconds, base_parts = median_launches(found.base, first, EPOCH_PARTS)
    seconds, parts = median_launches(found.group, second, EPOCH_PARTS)
    left = seconds[:, None] - (parts - base_parts / share)
    ratio: Array = base_seconds[:, None] / np.maximum(left, np.finfo(float).tiny)
    return ratio
