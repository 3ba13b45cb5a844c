"""Time to report: the JUPITER procurement suite's metric of ResNet-50 (https://github.com/FZJ-JSC/jubench-resnet)."""

from dataclasses import dataclass

from harness.analysis.confidence_intervals import Interval
from harness.analysis.scaling import PointScaling, Scaling
from harness.schema.presets import JUPITER
from harness.schema.workload import Workload

IMAGES = 90 * 1_281_167  # epochs times training images of ImageNet


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTime:
    """The time that 90 epochs of ImageNet take at a point's rate, in seconds, with the 95 % interval of the rate.

    `images_per_second` is the rate of all ranks. `ran_seconds` is the time at the rate as it ran, None for launches
    one after the other.
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
