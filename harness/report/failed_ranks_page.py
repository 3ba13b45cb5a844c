"""The page of launches that went on after ranks failed: a timeline of each, and what the failures cost."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import median

import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.analysis.frames import steps_repeated, stretch_rate, stretches_around
from harness.analysis.read_results import Loaded
from harness.report import sweep_sentences
from harness.report.answer import Answer, Fact, FigureBlock, Section, Table
from harness.report.publish import sweeps_origin
from harness.report.svg import BLUE, VERMILLION, draw
from harness.report.sweep_facts import machine_words, run_facts
from harness.schema.record import FailedRank, RunRecord

FOLDER = "failed-ranks"  # reports/failed-ranks/<sweep>/
_MOST_TIMELINES = 12
_HEADINGS = (
    "Failed", "Steps made", "At", "Steps repeated", "Recovery time", "Ranks after", "Rows/s before", "Rows/s after",
    "Process", "Detected by",
)  # fmt: skip


def failed_ranks_answer(loaded: Loaded, command: str, remark: str, drawn_by: str) -> Answer | None:
    """Return what the failures of ranks cost the sweep's launches, None where no rank has failed.

    `command` gives the launches again, with `remark` on what it needs; `drawn_by` draws the page.
    """
    runs = [run for run in loaded.runs if run.losses]
    if not runs:
        return None
    subject = sweep_sentences.subject(runs[0].point.workload)
    shown = [run for run in runs if run.stretches][:_MOST_TIMELINES]
    tables = [_table(run) for run in runs]
    return Answer(
        question=f"What did failed ranks cost {subject}?",
        sentence=_sentence(runs),
        tiles=tuple(_tiles(runs)),
        facts=run_facts(runs, runs),
        sections=[
            *(
                Section(title=table.title, name=f"launch-{number}", blocks=[table])
                for number, table in enumerate(tables, 1)
            ),
            Section(title="", name="", blocks=[_timeline(run, number, subject) for number, run in enumerate(shown, 1)]),
        ],
        command=command,
        remark=remark,
        kind="failed ranks",
        place=f"{FOLDER}/{loaded.folder.resolve().name}",
        title=f"Failed ranks of {subject}",
        when=max(run.started for run in runs),
        machine=machine_words(runs[0].provenance.machine),
        origin=sweeps_origin(drawn_by, [loaded]),
    )


def _sentence(runs: Sequence[RunRecord]) -> str:
    failures = [loss for run in runs for loss in run.losses]
    recoveries = [loss.recovery_s for loss in failures]
    several, repeated, restarted = len(failures) > 1, steps_repeated(failures), _restarted(runs)
    said = (
        f"{numbers.plural(len(runs), 'launch')} went on to the end after {numbers.ranks(len(failures))} had failed: "
        f"{'median ' if several else ''}recovery time {numbers.seconds(median(recoveries))}"
        f"{f' ({numbers.seconds(max(recoveries))} at most)' if several else ''}, "
        f"{numbers.plural(repeated, 'step')} repeated."
    )
    again = f" In {numbers.plural(restarted, 'launch')} no rank with the weights was left: training started again."
    return said + (again if restarted else "")


def _restarted(runs: Sequence[RunRecord]) -> int:
    """Return how many launches started again from the first step."""
    return sum(any(loss.anew for loss in run.losses) for run in runs)


def _tiles(runs: Sequence[RunRecord]) -> Iterator[Fact]:
    failures = [loss for run in runs for loss in run.losses]
    recovery, restarted = median(loss.recovery_s for loss in failures), _restarted(runs)
    beside = f"and all in {numbers.plural(restarted, 'launch')}" if restarted else "of all launches"
    yield Fact(name="Ranks failed", value=str(len(failures)), detail=f"in {numbers.plural(len(runs), 'launch')}")
    yield Fact(name="Recovery time", value=numbers.seconds(recovery), detail="median, detection to next step")
    yield Fact(name="Steps repeated", value=str(steps_repeated(failures)), detail=beside)
    sides = [(run, *stretches_around(run, loss)) for run in runs for loss in run.losses]
    ratios = [stretch_rate(run, after) / stretch_rate(run, before) for run, before, after in sides if before and after]
    if ratios:
        yield Fact(name="Speed after", value=numbers.percent(median(ratios)), detail="of the speed before, median")


def _table(run: RunRecord) -> Table:
    def row(loss: FailedRank) -> tuple[str, ...]:
        speeds = [
            numbers.NONE if each is None else numbers.count(stretch_rate(run, each))
            for each in stretches_around(run, loss)
        ]
        return (
            "a spare" if loss.rank is None else f"rank {loss.rank}",
            numbers.NONE if loss.anew else numbers.count(loss.epoch * run.steps_per_epoch + loss.step),
            numbers.seconds(_since(run, loss.noticed)),
            "all" if loss.anew else str(loss.redone),
            numbers.seconds(loss.recovery_s),
            str(loss.ranks),
            *speeds,
            f"{loss.pid} on {loss.host}",
            loss.how.removeprefix("harness: ") or "MPI",
        )

    return Table(
        title=f"Launch {run.point.folder}",
        headings=_HEADINGS,
        rows=[row(loss) for loss in run.losses],
        note="At: since the launch began. Rows/s: before the failure and after it, evaluation not counted. "
        "Ranks that failed together share the repeated steps and the recovery time.",
    )


def _timeline(run: RunRecord, number: int, subject: str) -> FigureBlock:
    table = pd.DataFrame(
        [
            {
                "ranks": each.ranks,
                "begin_s": _since(run, each.started),
                "end_s": _since(run, each.ended),
                "first_step": each.first,
                "steps": each.steps,
                "rows_per_s": stretch_rate(run, each),
            }
            for each in run.stretches
        ]
    )
    spoken = "; ".join(
        f"{numbers.ranks(each.ranks)} {numbers.count(stretch_rate(run, each))} rows/s" for each in run.stretches
    )
    return FigureBlock(
        picture=draw(
            f"timeline-{number}",
            f"Progress of {subject} while ranks failed, launch {run.point.folder}",
            lambda axes: _paint(axes, run),
            numbers=spoken,
        ),
        title=f"Launch {run.point.folder}",
        caption="Epochs trained: each line is a stretch without a failure, with its ranks and rows/s, each cross a "
        f"failed rank, and the gaps between lines recovery. {numbers.ranks(run.point.layout.ranks)} at first, global "
        f"batch {numbers.count(run.global_batch)}.",
        table=table,
    )


def _since(run: RunRecord, moment: datetime) -> float:
    return (moment - run.started).total_seconds()


def _paint(axes: Axes, run: RunRecord) -> None:
    for index, each in enumerate(run.stretches):
        span = (_since(run, each.started), _since(run, each.ended))
        epochs = (each.first / run.steps_per_epoch, (each.first + each.steps) / run.steps_per_epoch)
        axes.plot(span, epochs, color=BLUE.light, label="" if index else "trained without a failure")
        if each.training_s > 0:
            place = (sum(span) / 2, sum(epochs) / 2)
            said = f"{numbers.ranks(each.ranks)}, {numbers.count(stretch_rate(run, each))}/s"
            axes.annotate(said, place, (4, -4), textcoords="offset points", va="top", fontsize=7)
    at = [_since(run, loss.noticed) for loss in run.losses]
    made = [loss.epoch + loss.step / run.steps_per_epoch for loss in run.losses]
    axes.plot(at, made, "x", color=VERMILLION.light, markeredgewidth=2, label="a rank failed")
    axes.set(xlabel="Seconds since the launch began", ylabel="Epochs trained")
    axes.margins(y=0.08)
