"""The tables of a sweep's page, each from the numbers that it shows. Predicted and computed values are set apart."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

import pandas as pd

from harness.analysis import units
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.time_parts import OF_SUMS, steps_repeated, stretch_rate, stretches_around
from harness.base.own_matplotlib import Axes
from harness.prediction.extrapolation import NETWORK, ExtrapolatedPoint, Extrapolation
from harness.report.answer import Cell, Element, PageFigure, Prose, Section, Table
from harness.report.figures.breakdown import BarPart
from harness.report.svg import BLUE, VERMILLION, draw
from harness.report.sweep_sentences import predicted_words, speedup_label
from harness.report.table_cells import NOT_MEASURED, percent_cell, predicted_cell, ratio_cell, seconds_cell
from harness.schema.record import FailedRank, LossReason, RunRecord
from harness.why.known_causes import Finding
from harness.why.overheads import PointOverheads

# Launches that went on after ranks failed, for a sweep's page: a timeline of each, and what the failures cost.

SECTION = "failed-ranks"
_MOST_TIMELINES = 12
_NOTICED_BY = {
    None: "MPI",
    LossReason.MPI: "MPI",
    LossReason.GONE: "its process had ended",
    LossReason.LATE: "it lived and did not come",
    LossReason.GAVE_UP: "another rank gave up",
}
_HEADINGS = (
    "Failed",
    "Steps made",
    "At",
    "Steps repeated",
    "Recovery time",
    "Ranks after",
    "Samples/s before",
    "Samples/s after",
    "Process",
    "Detected by",
)


def failed_ranks_sections(every: Sequence[RunRecord], subject: str) -> list[Section]:
    """Return a section on those launches of `every` that went on after ranks failed; none where no rank has failed."""
    runs = [run for run in every if run.losses]
    if not runs:
        return []
    with_timelines = [run for run in runs if run.stretches][:_MOST_TIMELINES]
    elements: list[Element] = [
        Prose(text=_sentence(runs), note=False),
        *map(_table, runs),
        *(_timeline(run, number, subject) for number, run in enumerate(with_timelines, 1)),
    ]
    return [Section(title="Failed ranks", name=SECTION, elements=elements)]


def _sentence(runs: Sequence[RunRecord]) -> str:
    failures = [loss for run in runs for loss in run.losses]
    recoveries = [loss.recovery_s for loss in failures]
    recovery = f"recovery time {units.seconds(median(recoveries))}"
    if len(failures) > 1:
        recovery = f"median {recovery} ({units.seconds(max(recoveries))} at most)"
    sentence = (
        f"{units.plural(len(runs), 'launch')} went on to the end after {units.ranks(len(failures))} had failed: "
        f"{recovery}, {units.plural(steps_repeated(failures), 'step')} repeated."
    )
    sides = [(run, *stretches_around(run, loss)) for run in runs for loss in run.losses]
    ratios = [stretch_rate(run, after) / stretch_rate(run, before) for run, before, after in sides if before and after]
    if ratios:
        sentence += f" After a failure the speed was {units.percent(median(ratios))} of that before it (median)."
    return sentence


def _table(run: RunRecord) -> Table:
    def row(loss: FailedRank) -> tuple[str, ...]:
        speeds = [
            units.NONE if stretch is None else units.count(stretch_rate(run, stretch))
            for stretch in stretches_around(run, loss)
        ]
        return (
            f"rank {loss.rank}",
            units.count(loss.epoch * run.steps_per_epoch + loss.step),
            units.seconds(_since(run, loss.noticed)),
            str(loss.redone),
            units.seconds(loss.recovery_s),
            str(loss.ranks),
            *speeds,
            f"{loss.pid} on {loss.host}",
            _NOTICED_BY[loss.reason],
        )

    return Table(
        title=f"Launch {run.point.folder}",
        headings=_HEADINGS,
        rows=[row(loss) for loss in run.losses],
        note="At: since the launch began. Samples/s: before the failure and after it, evaluation not counted. "
        "Ranks that failed together share the repeated steps and the recovery time.",
    )


def _timeline(run: RunRecord, number: int, subject: str) -> PageFigure:
    table = pd.DataFrame(
        [
            {
                "ranks": stretch.ranks,
                "begin_s": _since(run, stretch.started),
                "end_s": _since(run, stretch.ended),
                "first_step": stretch.first,
                "steps": stretch.steps,
                "rows_per_s": stretch_rate(run, stretch),
            }
            for stretch in run.stretches
        ]
    )
    spoken = "; ".join(
        f"{units.ranks(stretch.ranks)} {units.count(stretch_rate(run, stretch))} samples/s" for stretch in run.stretches
    )
    return PageFigure(
        picture=draw(
            f"timeline-{number}",
            f"Progress of {subject} while ranks failed, launch {run.point.folder}",
            lambda axes: _paint(axes, run),
            numbers=spoken,
        ),
        title=f"Launch {run.point.folder}",
        caption="Epochs trained: each line is a stretch without a failure, with its ranks and samples/s, each cross a "
        f"failed rank, and the gaps between lines recovery. {units.ranks(run.point.layout.ranks)} at first, global "
        f"batch {units.count(run.global_batch)}.",
        table=table,
    )


def _since(run: RunRecord, moment: datetime) -> float:
    return (moment - run.started).total_seconds()


def _paint(axes: Axes, run: RunRecord) -> None:
    for index, stretch in enumerate(run.stretches):
        span = (_since(run, stretch.started), _since(run, stretch.ended))
        last = stretch.first + stretch.steps
        epochs = (stretch.first / run.steps_per_epoch, last / run.steps_per_epoch)
        axes.plot(span, epochs, color=BLUE.light, label="" if index else "trained without a failure")
        if stretch.training_s > 0:
            place = (sum(span) / 2, sum(epochs) / 2)
            text = f"{units.ranks(stretch.ranks)}, {units.count(stretch_rate(run, stretch))}/s"
            axes.annotate(text, place, (4, -4), textcoords="offset points", va="top", fontsize=7)
    seconds = [_since(run, loss.noticed) for loss in run.losses]
    epochs_trained = [loss.epoch + loss.step / run.steps_per_epoch for loss in run.losses]
    axes.plot(seconds, epochs_trained, "x", color=VERMILLION.light, markeredgewidth=2, label="a rank failed")
    axes.set(xlabel="Seconds since the launch began", ylabel="Epochs trained")
    axes.margins(y=0.08)


Names = Mapping[str, str]


def terminal_table(scaling: Scaling, final: pd.DataFrame, extrapolations: Sequence[Extrapolation] = ()) -> Table:
    """Return what a terminal shows: a row for each point. `final` is `launch_frames.final_frame` of the same launches.

    What is predicted has a column of its own for each series.
    """
    accuracy = final.set_index("layout")["test_accuracy"]
    in_turns = scaling.has_turns
    rows = []
    for point in scaling.points:
        ranks = f"{point.ranks}" if point.threads == 1 else f"{point.ranks} x {point.threads} threads"
        rows.append(
            (
                ranks if point.nodes == point.ranks else f"{ranks} on {point.nodes} nodes",
                units.seconds(point.seconds),
                units.significant(point.speedup),
                units.ratio_span(point.speedup_interval),
                units.percent(point.efficiency),
                *([units.significant(point.ran_speedup)] if in_turns else []),
                units.percent(float(accuracy[point.layout]), 2),
                str(point.launches),
                *[units.NONE] * len(extrapolations),
            )
        )
    measured = 6 if in_turns else 5  # columns that a predicted point leaves empty
    for count, points in _by_ranks(extrapolations):
        words = (predicted_words(point) if point else units.NONE for point in points)
        rows.append((str(count), *[units.NONE] * measured, "0", *words))
    as_it_ran = ("Speedup, all rounds",) if in_turns else ()
    headings = ("Ranks", "Epoch", "Speedup", "95 % CI", "Efficiency", *as_it_ran, "Test accuracy", "Launches")
    predicted = ("Predicted" if series.where != NETWORK else "Predicted, network" for series in extrapolations)
    return Table(title="", headings=(*headings, *predicted), rows=rows)


def scaling_table(scaling: Scaling, names: Names, note: str, extrapolations: Sequence[Extrapolation] = ()) -> Table:
    """Return every point over the base; what is predicted has columns of its own."""
    has_remarks = any(point.flags for point in scaling.points)
    in_turns = scaling.has_turns
    rows: list[list[str | Cell]] = []
    for point in scaling.points:
        row = _scaling_row(point, scaling, names[point.layout], len(extrapolations))
        rows.append([*row, "; ".join(point.flags)] if has_remarks else row)
    for ranks, points in _by_ranks(extrapolations):
        layout = next(point.layout for point in points if point)
        row = [str(ranks), names[layout], Cell(text="0", note="predicted", value=0), NOT_MEASURED, NOT_MEASURED]
        row += [predicted_cell(point) if point else NOT_MEASURED for point in points]
        row += [NOT_MEASURED] * (7 if in_turns else 5)
        rows.append([*row, "predicted, not measured"] if has_remarks else row)
    return Table(
        title="Scaling",
        headings=(
            "Ranks",
            "Layout",
            "Launches",
            f"{speedup_label(scaling)}\nover {units.ranks(scaling.base.ranks)}",
            "Efficiency",
            *(f"Predicted\n{series.where}" for series in extrapolations),
            "Epoch time",
            *(("Incl. interference:\nepoch time", "Incl. interference:\nspeedup") if in_turns else ()),
            "Step time",
            "Samples/s",
            "Global\nbatch",
            "Variation\n(within)",
            *(["Remarks"] if has_remarks else []),
        ),
        rows=rows,
        left=0,
        texts=(1, -1) if has_remarks else (1,),
        note=note,
    )


def _scaling_row(point: PointScaling, scaling: Scaling, layout: str, predicted_columns: int) -> list[str | Cell]:
    """Return the cells of a measured point, without its remarks."""
    is_in_turns = scaling.has_turns
    remarks = [f"+ {point.excluded} invalid"] if point.excluded else []
    remarks += [units.plural(point.outliers, "outlier")] if point.outliers else []
    within = f"({units.percent(point.within, 1)})"
    return [
        str(point.ranks),
        layout,
        Cell(text=str(point.launches), note="; ".join(remarks), value=point.launches),
        *_ratios(point, scaling.base),
        *[NOT_MEASURED] * predicted_columns,
        seconds_cell(point.seconds, point.seconds_interval),
        *(_as_it_ran(point, scaling.base) if is_in_turns else ()),
        seconds_cell(point.step_seconds, point.step_interval),
        Cell(text=units.significant(point.rows_per_second), value=point.rows_per_second),
        Cell(text=units.count(point.global_batch), value=point.global_batch),
        Cell(text=units.percent(point.between, 1), note=within, value=point.between or 0),
    ]


def _ratios(point: PointScaling, base: PointScaling) -> tuple[Cell, Cell]:
    if point is base:
        return Cell(text="1 (base)", value=1, tone="base"), Cell(text="100 % (base)", value=1, tone="base")
    if point.speedup is None or point.efficiency is None:
        return NOT_MEASURED, NOT_MEASURED
    efficiency = percent_cell(point.efficiency, interval=point.efficiency_interval)
    return ratio_cell(point.speedup, point.speedup_interval), efficiency


def _as_it_ran(point: PointScaling, base: PointScaling) -> tuple[Cell, Cell]:
    """Return the time of an epoch including interference, and the speedup of these times."""
    seconds = seconds_cell(point.ran_seconds)
    if point is base:
        return seconds, Cell(text="1 (base)", value=1, tone="base")
    return seconds, ratio_cell(point.ran_speedup, point.ran_speedup_interval)


def _by_ranks(extrapolations: Sequence[Extrapolation]) -> list[tuple[int, list[ExtrapolatedPoint | None]]]:
    """Return what each series says of every predicted rank count."""
    points: dict[int, list[ExtrapolatedPoint | None]] = {}
    for number, series in enumerate(extrapolations):
        for point in series.points:
            points.setdefault(point.ranks, [None] * len(extrapolations))[number] = point
    return sorted(points.items())


def overheads_table(points: Sequence[PointOverheads], scaling: Scaling, names: Names, sweep: str) -> Table:
    """Return what each part of an epoch takes beyond its ideal share."""
    share = "divided by the ratio of the ranks" if scaling.scaling == "strong" else "unchanged"
    has_intervals = any(item.speedup_interval for point in points for item in point.costs)
    interval = ", with its interval (all rows together 95 %)" if has_intervals else ""
    return Table(
        title="Overheads of an epoch",
        headings=(
            "Ranks",
            "Layout",
            "Part",
            "Beyond its\nideal share",
            "Of the\nepoch",
            "Speedup without it,\nat most about",
        ),
        rows=[
            (
                str(point.ranks),
                names[point.layout],
                Cell(text=f"{item.cause.name} (largest)", tone="base") if item is point.largest else item.cause.name,
                seconds_cell(item.seconds),
                percent_cell(item.fraction, 1),
                ratio_cell(item.speedup_without, item.speedup_interval),
            )
            for point in points
            for item in point.costs
        ],
        left=0,
        texts=(1, 2),
        note=f"What each part of an epoch takes beyond its ideal share: the base's part {share}. The last column is "
        "about the most that the speedup could be if that part took its ideal share and nothing else "
        f"changed{interval}. {unequal_cores(scaling)}For the causes of each: "
        f"harness explain {sweep}.",
    )


def unequal_cores(scaling: Scaling) -> str:
    """Return what the slowest core costs, a sentence and a blank; an empty text where it is not known."""
    excess = scaling.unequal_cores
    if excess is None:
        return ""
    low = excess.mean - excess.reach
    high = excess.mean + excess.reach
    span = f"{100 * low:.1f} to {units.percent(high, 1)}"
    if low <= 0 <= high:
        return f"Whether cores are of unequal speed is not resolved (95 % CI {span}). "
    return (
        f"Cores of unequal speed: {units.percent(excess.mean, 1)} ({span}), by which one rank takes longer on its "
        "slowest core than on its cores on average; ranks in step wait for that core, so it is part of the above. "
    )


def parts_table(title: str, frame: pd.DataFrame, parts: Sequence[BarPart], names: Names, note: str = "") -> Table:
    """Return the `parts` of the time of each layout with their shares; `frame` is `time_parts.breakdown_frame`."""
    rows: list[list[str | Cell]] = []
    for row in rows_of(frame):
        total = sum(row[part.column] for part in parts)
        unknown = () if row["sums_timed"] else OF_SUMS
        cells = [NOT_MEASURED if part.column in unknown else _part_cell(row[part.column], total) for part in parts]
        rows.append([str(row["ranks"]), names[row["layout"]], *cells])
    headings = ("Ranks", "Layout", *(part.label.capitalize() for part in parts))
    return Table(title=title, headings=headings, rows=rows, left=0, texts=(1,), note=note)


def _part_cell(seconds: float, total: float) -> Cell:
    """Return a part of a time in seconds, and its share of the `total`."""
    note = units.percent(seconds / total) if total > 0 else ""
    return Cell(text=units.seconds(seconds), value=seconds, note=note)


def causes_table(findings: Sequence[Finding], title: str, *, overheads: bool) -> Table:
    """Return the known causes that the records show; with `overheads` also the overhead that each is part of."""
    part = ["Part of"] if overheads else []
    explained = "" if overheads else " All overheads of an epoch: harness explain."
    return Table(
        title=title,
        headings=("Known cause", *part, "Costs of an\nepoch at most", "Launches", "Evidence", "What to do"),
        rows=[
            (
                finding.cause,
                *([finding.overhead or units.NONE] if overheads else []),
                percent_cell(finding.cost, 1),
                Cell(text=f"{finding.launches} of {finding.of}", value=finding.launches),
                finding.evidence,
                finding.fix,
            )
            for finding in findings
        ],
        left=2 if overheads else 1,
        texts=(-2, -1),
        note="Known causes that the records show, with cost and evidence of the launch where each costs most; costs of "
        f"different causes may overlap.{explained}",
    )


# The columns that the table of launches reads.
_LISTED = ["run", "ranks", "repeat", "started", "seconds", "recorded_seconds", "sync_seconds", "sums_timed"]
_LISTED += ["test_accuracy", "outlier", "valid", "invalid"]


def launches_table(launches: pd.DataFrame, folder: str, failed: Collection[str]) -> Table:
    """Return every launch; `folder` is the link to the sweep's, those with `failed` ranks lead to their timelines."""
    rows: list[tuple[str | Cell, ...]] = []
    in_turns = bool(launches["ran_seconds"].notna().any())
    recorded = "Median epoch, incl.\ninterference and\ncold first steps" if in_turns else "Epoch time"
    ordered = launches.sort_values(["ranks", "layout", "repeat"], kind="stable")
    for row in rows_of(ordered[_LISTED]):
        name = row["run"]
        far = ", an outlier: far from the other launches of its layout, and counted" if row["outlier"] else ""
        valid = Cell(text=f"yes{far}")
        if not row["valid"]:
            valid = Cell(text=f"no: {row['invalid']}", tone="bad", link=f"#{SECTION}" if name in failed else "")
        rows.append(
            (
                Cell(text=name, link=f"{folder}/{name}", mark=f"run-{name}", tone="" if row["valid"] else "invalid"),
                str(row["ranks"]),
                str(row["repeat"] + 1),
                units.moment(row["started"]),
                *([seconds_cell(row["seconds"])] if in_turns else []),
                seconds_cell(row["recorded_seconds"]),
                percent_cell(row["sync_seconds"] / row["seconds"] if row["sums_timed"] else None),
                percent_cell(row["test_accuracy"], 2),
                valid,
            )
        )
    return Table(
        title="Launches",
        headings=(
            "Launch",
            "Ranks",
            "Repeat",
            "Started (UTC)",
            *(["Epoch time\ninterleaved"] if in_turns else []),
            recorded,
            "Synchro-\nnisation",
            "Test accuracy",
            "Valid",
        ),
        rows=rows,
        texts=(3, -1),
    )


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `frame`, by column."""
    return [dict(zip(map(str, row), row.values(), strict=True)) for row in frame.to_dict("records")]


def extrapolation_table(series: Extrapolation, names: Mapping[str, str]) -> Table:
    """Return a predicted series: speedup with its band, and the parts of a step."""
    rows: list[tuple[str | Cell, ...]] = []
    for point in series.points:
        efficiency = Cell(
            text=units.percent(point.efficiency),
            note=units.percent_span(point.efficiency_interval),
            value=point.efficiency,
            computed=True,
        )
        rows.append(
            (
                str(point.ranks),
                names[point.layout],
                predicted_cell(point),
                efficiency,
                seconds_cell(point.seconds, point.seconds_interval, computed=True),
                seconds_cell(point.compute_s, computed=True),
                seconds_cell(point.straggler_s, computed=True),
                seconds_cell(point.allreduce_s, computed=True),
            )
        )
    return Table(
        title=f"Predicted {series.where}, not measured",
        headings=(
            "Ranks",
            "Layout",
            "Predicted\nspeedup",
            "Predicted\nefficiency",
            "Predicted\nepoch time",
            "Computation\nof a step",
            "Wait for the\nslowest",
            "Allreduce",
        ),
        rows=rows,
        left=0,
        texts=(1,),
        note=" ".join(series.rests),
    )
