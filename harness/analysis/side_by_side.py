"""Sweeps side by side: at equal samples, and to equal accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from harness.analysis.accuracy_times import TimeToAccuracy, speedups_to_accuracy, times_to_accuracy
from harness.analysis.launch_frames import final_frame
from harness.analysis.scaling import PointScaling, Scaling, scale


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
