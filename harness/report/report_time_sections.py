"""The JUPITER suite's metric on a sweep's page."""

from collections.abc import Mapping

from harness.analysis import units
from harness.analysis.report_times import has_report_time, report_times
from harness.analysis.scaling import Scaling
from harness.report.answer import Cell, Fact, Section, Table
from harness.report.table_cells import seconds_cell
from harness.schema.presets import JUPITER, SUBJECTS
from harness.schema.workload import IMAGE_NETWORKS, Workload, image_size

_TITLE = "JUPITER's time to report"
_NOTE = (
    "Time to report = 90 x 1,281,167 / images per second: 90 epochs of ImageNet at the rate of an epoch, with the 95 % "
    "interval of that rate."
)


def report_time_sections(workload: Workload, scaling: Scaling, names: Mapping[str, str]) -> list[Section]:
    """Return the section of the metric; none of a workload that has not the suite's preset."""
    if not has_report_time(workload):
        return []
    times = report_times(scaling)
    in_turns = scaling.base.ran_seconds is not None
    rows: list[list[str | Cell]] = []
    for point in scaling.points:
        time = times[point.layout]
        as_it_ran = [seconds_cell(time.ran_seconds)] if in_turns else []
        metric = seconds_cell(time.seconds, time.interval)
        rows.append(
            [
                str(point.ranks),
                names[point.layout],
                Cell(text=units.significant(time.images_per_second), value=time.images_per_second),
                metric,
                *as_it_ran,
            ]
        )
    headings = ("Ranks", "Layout", "Images/s", "Time to report", *(["As it ran"] if in_turns else []))
    usual = SUBJECTS[JUPITER].model
    size = image_size(workload.model, workload.image_size)
    suite_size = IMAGE_NETWORKS[usual].size
    different = []
    if workload.model != usual:
        different.append(f"the network is {workload.model}")
    if size != suite_size:
        different.append(f"images have {size} x {size} pixels instead of {suite_size} x {suite_size}")
    differences = f"Not comparable with the suite's numbers: {', '.join(different)}." if different else ""
    note = " ".join(filter(None, (_NOTE, differences)))
    table = Table(title=_TITLE, headings=headings, rows=rows, left=0, texts=(1,), note=note)
    return [Section(title=_TITLE, name="time-to-report", elements=[table])]


def report_time_tile(workload: Workload, scaling: Scaling) -> list[Fact]:
    """Return the metric of the most ranks for a page's first screen; none of other workloads."""
    if not has_report_time(workload):
        return []
    point = scaling.points[-1]
    time = report_times(scaling)[point.layout]
    interval = f"95 % interval {units.seconds_span(time.interval)}" if time.interval else "no interval"
    detail = f"{units.ranks(point.ranks)}, {units.significant(time.images_per_second)} images/s; {interval}"
    return [Fact(name="Time to report", value=units.seconds(time.seconds), detail=detail)]
