"""Loss and accuracy against time and samples, the time to a target accuracy, and sweeps side by side in both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.frames import METRICS
from harness.analysis.scaling import PointScaling, Scaling, paired_ratio, scale
from harness.analysis.stats import Interval


def curve_frame(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout and epoch: medians over the valid launches of `epochs` (`frames.epoch_frame`).

    Columns: layout, ranks, epoch, launches, trained_s (training seconds so far), rows_seen and the metrics,
    each also as NAME_low and NAME_high (least and greatest launch).
    """
    valid = epochs[epochs["valid"]].sort_values("ranks", kind="stable")
    return _medians(valid, ["layout", "ranks", "epoch"], ["trained_s", "rows_seen"])


def final_frame(launches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layout: the metrics after the last epoch, medians, least and greatest launch.

    The last epoch, not the best one: choosing by the test rows would flatter.
    """
    valid = launches[launches["valid"]].sort_values(["ranks", "nodes", "threads"], kind="stable")
    return _medians(valid, ["layout", "ranks"], ["epochs", "trained_s"])


def _medians(valid: pd.DataFrame, keys: list[str], columns: list[str]) -> pd.DataFrame:
    groups = valid.groupby(keys, sort=False)
    frame = groups[[*columns, *METRICS]].median()
    lows, highs = groups[list(METRICS)].min(), groups[list(METRICS)].max()
    frame = frame.join(lows.add_suffix("_low")).join(highs.add_suffix("_high"))
    frame.insert(0, "launches", groups.size())
    return frame.reset_index()


SLACK = 0.01  # the default target lies this far below the base's final accuracy: one percentage point


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToAccuracy:
    """One layout. `seconds` is the median training time after which a launch first has the target accuracy.

    Epochs are not interpolated. A launch that never reaches it counts as infinitely long: `seconds` is None where
    half of the launches or more do not. `speedup` is over the base's median, None where either is; its interval
    needs 6 launches of both, all of which reach the target.
    """

    layout: str
    ranks: int
    launches: int
    reached: int
    seconds: float | None
    speedup: float | None
    interval: Interval | None


def default_accuracy(launches: pd.DataFrame, base_layout: str) -> float | None:
    """Return the base's median final test accuracy less `SLACK`, None where that is nothing or it was not tested."""
    final = final_frame(launches)
    accuracy = float(final.loc[final["layout"] == base_layout, "test_accuracy"].iloc[0])
    return accuracy - SLACK if accuracy > SLACK else None


def times_to_accuracy(epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return one row per valid launch of `epochs` (`frames.epoch_frame`): its place, its session, seconds.

    `seconds` of training until the first epoch whose test accuracy is at least `target`, infinite if none is.
    """
    valid = epochs[epochs["valid"]]
    there = valid["trained_s"].where(valid["test_accuracy"] >= target, math.inf)
    keys = ["layout", "ranks", "repeat", "run", "session_begin", "session_end"]
    return valid.assign(seconds=there).groupby(keys, sort=False)["seconds"].min().reset_index()


def speedups_to_accuracy(times: pd.DataFrame, base: pd.DataFrame) -> tuple[TimeToAccuracy, ...]:
    """Return every layout of `times` over the launches `base` (rows of `times_to_accuracy`, one layout), by ranks."""
    groups = times.sort_values("ranks", kind="stable").groupby("layout", sort=False)
    return tuple(_layout(str(layout), group, base) for layout, group in groups)


def _layout(layout: str, group: pd.DataFrame, base: pd.DataFrame) -> TimeToAccuracy:
    own, its = float(group["seconds"].median()), float(base["seconds"].median())
    known = math.isfinite(own) and math.isfinite(its)
    both = pd.concat([group["seconds"], base["seconds"]])
    same = set(group["run"]) == set(base["run"])
    return TimeToAccuracy(
        layout=layout,
        ranks=int(group["ranks"].iloc[0]),
        launches=len(group),
        reached=int(np.isfinite(group["seconds"]).sum()),
        seconds=own if math.isfinite(own) else None,
        speedup=its / own if known else None,
        interval=paired_ratio(base, group) if known and not same and np.isfinite(both).all() else None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One layout of one sweep.

    `accuracy` is the test accuracy after the last epoch, median, least and greatest of all `launches`: what disturbs
    a launch spoils its times, not what it learned. `point` (time at equal samples) and `target` (time to equal
    accuracy) are of the launches whose times are valid, None where there is none.
    """

    layout: str
    ranks: int
    launches: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    point: PointScaling | None
    target: TimeToAccuracy | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sided:
    """One sweep: its layouts by ranks, and the scaling that their points are of, None without valid times."""

    sides: tuple[Side, ...]
    scaling: Scaling | None


def side_by_side(
    sweeps: Sequence[tuple[pd.DataFrame, pd.DataFrame]], goal: float, *, shared: bool = False
) -> tuple[Sided, ...]:
    """Return each of `sweeps`, pairs of `frames.launch_frame` and `frames.epoch_frame`; the first has the base.

    Times to the test accuracy `goal` are over the first sweep's fewest ranks. Speedups are over each sweep's own, or
    with `shared` over the first's where a sweep does not have that layout: one rank has nothing to synchronise, so
    that one launch of it serves all policies.
    """
    first = scale(sweeps[0][0])
    base_launches, base_epochs = (
        frame[frame["layout"] == first.base.layout] if first else frame.iloc[:0] for frame in sweeps[0]
    )
    base_times = times_to_accuracy(base_epochs, goal)
    return tuple(
        _sided(launches, epochs, base_launches if shared else base_launches.iloc[:0], base_times, goal)
        for launches, epochs in sweeps
    )


def _sided(
    launches: pd.DataFrame, epochs: pd.DataFrame, lent: pd.DataFrame, base_times: pd.DataFrame, goal: float
) -> Sided:
    own = set(launches["layout"])
    scaling = scale(launches if lent.empty or lent["layout"].iloc[0] in own else pd.concat([lent, launches]))
    points = {point.layout: point for point in scaling.points} if scaling else {}
    reached = speedups_to_accuracy(times_to_accuracy(epochs, goal), base_times)
    targets = {found.layout: found for found in reached}
    final = final_frame(launches.assign(valid=True))
    sides = tuple(
        Side(
            layout=row["layout"],
            ranks=int(row["ranks"]),
            launches=int(row["launches"]),
            accuracy=float(row["test_accuracy"]),
            accuracy_low=float(row["test_accuracy_low"]),
            accuracy_high=float(row["test_accuracy_high"]),
            point=points.get(row["layout"]),
            target=targets.get(row["layout"]),
        )
        for row in final.to_dict("records")
    )
    return Sided(sides=sides, scaling=scaling)
