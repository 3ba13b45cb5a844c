"""Launches that went on after ranks failed, for a sweep's page: a timeline of each, and what the failures cost."""

from collections.abc import Sequence
from datetime import datetime
from statistics import median

import pandas as pd

from harness.analysis import units
from harness.analysis.time_parts import steps_repeated, stretch_rate, stretches_around
from harness.base.own_matplotlib import Axes
from harness.report.answer import Element, PageFigure, Prose, Section, Table
from harness.report.svg import BLUE, VERMILLION, draw
from harness.schema.record import FailedRank, LossReason, RunRecord

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
    "Rows/s before",
    "Rows/s after",
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
        note="At: since the launch began. Rows/s: before the failure and after it, evaluation not counted. "
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
        f"{units.ranks(stretch.ranks)} {units.count(stretch_rate(run, stretch))} rows/s" for stretch in run.stretches
    )
    return PageFigure(
        picture=draw(
            f"timeline-{number}",
            f"Progress of {subject} while ranks failed, launch {run.point.folder}",
            lambda axes: _paint(axes, run),
            numbers=spoken,
        ),
        title=f"Launch {run.point.folder}",
        caption="Epochs trained: each line is a stretch without a failure, with its ranks and rows/s, each cross a "
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
