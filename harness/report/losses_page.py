"""The launches of a sweep that outlived lost ranks, as a page: a timeline of each, and what the losses cost."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.axes_grid1 import make_axes_locatable

from harness.analysis import numbers
from harness.analysis.lost_ranks import around, rate, redone
from harness.analysis.read_results import Loaded
from harness.report import captions
from harness.report.answer import FigureBlock, Table, Tile
from harness.report.launch_summary import machine_words, run_facts
from harness.report.provenance import sweeps_origin
from harness.report.publish import Page, PageSummary, publish
from harness.report.render import SCREEN, Head
from harness.report.svg import BLUE, SKY, VERMILLION, draw
from harness.schema.record import LossRecord, RunRecord

FOLDER = "losses"  # reports/losses/<sweep>/
_MOST_TIMELINES = 12
_HEADINGS = (
    "Loss", "Steps made", "At", "Begun again", "Went on after", "Ranks then", "Rows/s before", "Rows/s after",
    "Process", "Noticed by",
)  # fmt: skip


def write_losses(loaded: Loaded, head: Head, drawn_by: str, reports: Path, *, style: str = SCREEN) -> Path | None:
    """Write ``REPORTS/losses/<sweep>/index.html`` and return its path; None where no launch has lost a rank.

    `head` is that of the sweep's page, `drawn_by` the command that draws both. `style` as in `render.write_figures`.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    runs = [run for run in loaded.runs if run.losses]
    if not runs:
        return None
    subject = captions.subject(runs[0].point.workload)
    own = Head(
        question=f"What did lost ranks cost {subject}?",
        answer=_answer(runs),
        tiles=_tiles(runs),
        facts=run_facts(runs, runs),
        command=head.command,
        remark=head.remark,
    )
    shown = [run for run in runs if run.stretches][:_MOST_TIMELINES]
    figures = [_timeline(run, number, subject) for number, run in enumerate(shown, 1)]
    summary = PageSummary(
        kind="losses", title=f"Lost ranks of {subject}", answer=own.answer, when=max(run.started for run in runs),
        machine=machine_words(runs[0].provenance.machine),
    )  # fmt: skip
    values = {
        "tables": [_table(run) for run in runs],
        "banners": (),
        "tones_of": {},
        "figures": figures,
        "lines": (),
    }
    page = Page(
        place=f"{FOLDER}/{loaded.folder.resolve().name}", template="tables.html.j2", summary=summary, head=own,
        values=values, figures=figures, origin=sweeps_origin(drawn_by, [loaded]),
    )  # fmt: skip
    return publish(page, reports, style=style)


def _answer(runs: Sequence[RunRecord]) -> str:
    losses = [loss for run in runs for loss in run.losses]
    went_on = [loss.recovery_s for loss in losses]
    lost = f"{numbers.plural(len(runs), 'launch')} lost {numbers.ranks(len(losses))} and came to the end"
    spread = f" in the median ({numbers.seconds(max(went_on))} at most)" if len(losses) > 1 else ""
    again = redone(losses)
    anew = _begun_anew(runs)
    last = f" In {numbers.plural(anew, 'launch')} no rank that knew the weights was left: training began anew."
    return (
        f"{lost}: training went on after {numbers.seconds(median(went_on))}{spread}, and "
        f"{numbers.plural(again, 'step')} {'was' if again == 1 else 'were'} begun again.{last if anew else ''}"
    )


def _begun_anew(runs: Sequence[RunRecord]) -> int:
    return sum(any(loss.anew for loss in run.losses) for run in runs)


def _tiles(runs: Sequence[RunRecord]) -> tuple[Tile, ...]:
    losses = [loss for run in runs for loss in run.losses]
    went_on = [loss.recovery_s for loss in losses]
    anew = _begun_anew(runs)
    beside = f"and all in {numbers.plural(anew, 'launch')}" if anew else "of all launches"
    ratios = []
    for run in runs:
        for loss in run.losses:
            before, after = around(run, loss)
            if before and after:
                ratios.append(rate(run, after) / rate(run, before))
    tiles = [
        Tile(name="Ranks lost", value=str(len(losses)), detail=f"in {numbers.plural(len(runs), 'launch')}"),
        Tile(name="Went on after", value=numbers.seconds(median(went_on)), detail="median, from notice to next step"),
        Tile(name="Steps begun again", value=str(redone(losses)), detail=beside),
    ]
    if ratios:
        tiles.append(
            Tile(name="Speed after", value=numbers.percent(median(ratios)), detail="of the speed before, median")
        )
    return tuple(tiles)


def _table(run: RunRecord) -> Table:
    return Table(
        title=f"Launch {run.point.folder}",
        headings=_HEADINGS,
        rows=tuple(_row(run, loss) for loss in run.losses),
        note="At: since the launch began. Rows/s: of the stretch before and of the one after, evaluation not counted. "
        "Ranks that were lost at once share the steps begun again and the recovery.",
    )


def _row(run: RunRecord, loss: LossRecord) -> tuple[str, ...]:
    speeds = [numbers.NONE if each is None else numbers.count(rate(run, each)) for each in around(run, loss)]
    return (
        "a spare" if loss.rank is None else f"rank {loss.rank}",
        numbers.NONE if loss.anew else numbers.count(loss.epoch * run.steps_per_epoch + loss.step),
        numbers.seconds((loss.noticed - run.started).total_seconds()),
        "all" if loss.anew else str(loss.redone),
        numbers.seconds(loss.recovery_s),
        str(loss.ranks),
        *speeds,
        f"{loss.pid} on {loss.host}",
        loss.how.removeprefix("harness: ") or "MPI",
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
                "rows_per_s": rate(run, each),
            }
            for each in run.stretches
        ]
    )
    told = "; ".join(f"{numbers.ranks(each.ranks)} {numbers.count(rate(run, each))} rows/s" for each in run.stretches)
    return FigureBlock(
        picture=draw(
            f"timeline-{number}",
            f"Progress of {subject} while ranks were lost, launch {run.point.folder}",
            lambda axes: _paint(axes, run),
            (4.8, 3.9),
            numbers=told,
        ),
        title=f"Launch {run.point.folder}",
        caption="Above: the ranks that train and the spares that wait. Below: epochs trained; each line is a stretch "
        "without a loss, the number its rows/s, each cross a lost rank, and what is between lines recovery. "
        f"{numbers.ranks(run.point.layout.ranks)} at first, global batch {numbers.count(run.global_batch)}.",
        table=table,
    )


def _since(run: RunRecord, moment: datetime) -> float:
    return (moment - run.started).total_seconds()


def _paint(axes: Axes, run: RunRecord) -> None:
    begin, end = _since(run, run.stretches[0].started), _since(run, run.stretches[-1].ended)
    for index, each in enumerate(run.stretches):
        span = (_since(run, each.started), _since(run, each.ended))
        epochs = (each.first / run.steps_per_epoch, (each.first + each.steps) / run.steps_per_epoch)
        axes.plot(span, epochs, color=BLUE.light, label="" if index else "trained without a loss")
        if each.training_s > 0:
            place = (sum(span) / 2, sum(epochs) / 2)
            said = f"{numbers.count(rate(run, each))}/s"
            axes.annotate(said, place, (4, -4), textcoords="offset points", va="top", fontsize=7)
    at = [_since(run, loss.noticed) for loss in run.losses]
    made = [loss.epoch + loss.step / run.steps_per_epoch for loss in run.losses]
    axes.plot(at, made, "x", color=VERMILLION.light, markeredgewidth=2, label="a rank lost")
    axes.set(xlabel="Seconds since the launch began", ylabel="Epochs trained")
    axes.margins(y=0.08)
    above = make_axes_locatable(axes).append_axes("top", size="34%", pad=0.12, sharex=axes)
    times, ranks, spares = _crew(run, begin, end)
    above.stackplot(times, ranks, spares, step="post", colors=(BLUE.light, SKY.light))
    above.tick_params(labelbottom=False, length=3)
    above.set_ylabel("Processes")
    above.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.fill_between([], [], color=BLUE.light, label="ranks that train")
    if any(spares):
        axes.fill_between([], [], color=SKY.light, label="spares that wait")


def _crew(run: RunRecord, begin: float, end: float) -> tuple[list[float], list[int], list[int]]:
    """Return from when on how many ranks trained and how many spares waited."""
    total = run.point.layout.ranks + (run.point.workload.spares or 0)
    times, ranks, spares = [begin], [run.point.layout.ranks], [run.point.workload.spares or 0]
    for loss in run.losses:
        total -= 1
        times.append(_since(run, loss.noticed))
        ranks.append(loss.ranks)
        spares.append(max(0, total - loss.ranks))
    return [*times, end], [*ranks, ranks[-1]], [*spares, spares[-1]]
