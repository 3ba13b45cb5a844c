"""What a script prints of its own speed, beside what was timed of it."""

import statistics
from collections.abc import Mapping, Sequence

from harness.analysis import units
from harness.analysis.scaling import PointScaling, Scaling
from harness.report.answer import Cell, Section, Table
from harness.report.table_cells import NOT_MEASURED
from harness.schema.record import RunRecord

_NOTE = (
    "Timed: rows of all ranks over the time between the steps' gradients, as it ran, without those that begin a turn. "
    "Printed: the last number that the script prints where OWN_RATE finds one, by its own clocks, which leave out the "
    "turns of others; the median over launches."
)


def own_rates_sections(runs: Sequence[RunRecord], scaling: Scaling, names: Mapping[str, str]) -> list[Section]:
    """Return the section of printed rates; none where no launch of `runs`, valid ones, has any."""
    rows = []
    for point in scaling.points:
        printed = [run.own_rate for run in runs if str(run.point.layout) == point.layout and run.own_rate is not None]
        if printed:
            rows.append(_row(point, statistics.median(printed), len(printed), names))
    if not rows:
        return []
    headings = ("Ranks", "Layout", "Launches", "Rows/s\ntimed", "Rows/s\nprinted", "Printed\nagainst timed")
    table = Table(title="The script's own rate", headings=headings, rows=rows, left=0, texts=(1,), note=_NOTE)
    return [Section(title="The script's own rate", name="own-rate", elements=[table])]


def _row(point: PointScaling, printed: float, launches: int, names: Mapping[str, str]) -> list[str | Cell]:
    timed = point.rows / (point.ran_seconds or point.seconds)
    difference = printed / timed - 1
    is_known = point.global_batch > point.ranks  # a batch of one row stands for a batch that nobody named
    compared = Cell(text=f"{100 * difference:+.1f} %", value=difference) if is_known else NOT_MEASURED
    return [
        str(point.ranks),
        names[point.layout],
        str(launches),
        Cell(text=units.significant(timed), value=timed) if is_known else NOT_MEASURED,
        Cell(text=units.significant(printed), value=printed),
        compared,
    ]
