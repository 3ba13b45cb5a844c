"""Times to a test accuracy and to a report; sweeps side by side, at equal samples and to equal accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.comparison import comparable, launches_by_layout, layout_launches
from harness.analysis.confidence_intervals import Interval, Values, ratio_interval
from harness.analysis.launch_frames import final_frame
from harness.analysis.scaling import PointScaling, Scaling, scale
from harness.schema.presets import JUPITER
from harness.schema.workload import Workload

_OF_A_LAUNCH = ["layout", "ranks", "repeat", "run", "session_begin", "session_end"]
SLACK = 0.01  # the default target lies this far below the base's final accuracy: one percentage point


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToAccuracy:
    """One layout. `seconds` is the median training time after which a launch first has the target accuracy.

    Epochs are not interpolated: `epochs` is the median of the whole epochs until then, None where `seconds` is.
    A launch that never reaches it counts as infinitely long, which has a median and no
    mean: `seconds` is None where half of the launches or more do not. `speedup` is over the base's median, None where
    either is; its interval needs 6 launches of both, all of which reach the target.
    """

    layout: str
    ranks: int
    launches: int
    reached: int
    seconds: float | None
    epochs: float | None
    speedup: float | None
    interval: Interval | None


def default_accuracy(launches: pd.DataFrame, base_layout: str) -> float | None:
    """Return the base's median final test accuracy less `SLACK`, None where that is nothing or it was not tested."""
    final = final_frame(launches)
    accuracy = float(final.loc[final["layout"] == base_layout, "test_accuracy"].iloc[0])
    return accuracy - SLACK if accuracy > SLACK else None


def times_to_accuracy(epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return one row per valid launch of `epochs` (`launch_frames.epoch_frame`): its place, its session, and two times.

    `seconds` and `epochs` of training until the first epoch whose test accuracy is at least `target`, that one
    included; infinite if none is.
    """
    valid = epochs.loc[epochs["valid"], [*_OF_A_LAUNCH, "epoch", "trained_s", "test_accuracy"]]
    reaches = valid["test_accuracy"] >= target
    times = pd.DataFrame(
        {
            "run": valid["run"],
            "seconds": valid["trained_s"].where(reaches, math.inf),
            "epochs": (valid["epoch"] + 1.0).where(reaches, math.inf),
        }
    )
    launches = valid.drop_duplicates("run")[_OF_A_LAUNCH].reset_index(drop=True)
    return launches.join(times.groupby("run", sort=False).min(), on="run")


def speedups_to_accuracy(times: pd.DataFrame, base: pd.DataFrame) -> tuple[TimeToAccuracy, ...]:
    """Return every layout of `times` over the launches `base` (rows of `times_to_accuracy`, one layout), by ranks."""
    times = times.sort_values("ranks", kind="stable")
    ranks = times["ranks"].to_numpy()
    runs = times["run"].to_numpy()
    seconds = times["seconds"].to_numpy(dtype=float)
    epochs = times["epochs"].to_numpy(dtype=float)
    base_launches = layout_launches(base)
    base_runs = set(base["run"])
    base_seconds = base["seconds"].to_numpy(dtype=float)
    base_median = _median(base_seconds)
    layouts = []
    for layout, group in launches_by_layout(times).items():
        own_seconds = seconds[group.places]
        median = _median(own_seconds)
        all_reach = bool(np.isfinite(own_seconds).all() and np.isfinite(base_seconds).all())
        is_base = set(runs[group.places]) == base_runs
        pair = comparable(base_launches, group) if all_reach and not is_base else None
        interval = None
        if pair:
            numerator = base_seconds[pair.base.places]
            interval = ratio_interval(numerator, seconds[pair.group.places], paired=pair.paired)
        layouts.append(
            TimeToAccuracy(
                layout=layout,
                ranks=int(ranks[group.places[0]]),
                launches=len(own_seconds),
                reached=int(np.isfinite(own_seconds).sum()),
                seconds=median if math.isfinite(median) else None,
                epochs=float(np.median(epochs[group.places])) if math.isfinite(median) else None,
                speedup=base_median / median if math.isfinite(median) and math.isfinite(base_median) else None,
                interval=interval,
            )
        )
    return tuple(layouts)


def _median(seconds: Values) -> float:
    return float(np.median(seconds)) if len(seconds) else math.nan


# Sweeps side by side: at equal samples, and to equal accuracy.


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
    """Return each of `sweeps`, pairs of `launch_frame` and `epoch_frame`; the first has the base.

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
    lacks_base = not lent.empty and lent["layout"].iloc[0] not in set(launches["layout"])
    scaling = scale(pd.concat([lent, launches]) if lacks_base else launches)
    points = {point.layout: point for point in scaling.points} if scaling else {}
    reached = speedups_to_accuracy(times_to_accuracy(epochs, goal), base_times)
    targets = {target.layout: target for target in reached}
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


# Time to report: the JUPITER procurement suite's metric of ResNet-50 (https://github.com/FZJ-JSC/jubench-resnet).

IMAGES = 90 * 1_281_167  # epochs times training images of ImageNet


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTime:
    """The time that 90 epochs of ImageNet take at a point's rate, in seconds, with the 95 % CI of the rate.

    `images_per_second` is the rate of all ranks. `ran_seconds` is the time at the rate including interference, None for
    launches one after the other.
    """

    images_per_second: float
    seconds: float
    interval: Interval | None
    ran_seconds: float | None


def has_report_time(workload: Workload) -> bool:
    """Return whether the metric is asked for: with the suite's preset."""
    return workload.preset == JUPITER


def report_times(scaling: Scaling) -> dict[str, ReportTime]:
    """Return the metric of every point, by its layout."""
    return {point.layout: report_time(point) for point in scaling.points}


def report_time(point: PointScaling) -> ReportTime:
    factor = IMAGES / point.rows
    times = point.seconds_interval
    return ReportTime(
        images_per_second=point.rows_per_second,
        seconds=point.seconds * factor,
        interval=times.scaled(factor) if times else None,
        ran_seconds=None if point.ran_seconds is None else point.ran_seconds * factor,
    )
