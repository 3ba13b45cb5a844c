"""Several sweeps of one workload side by side: speed at equal samples beside speed to equal accuracy."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from harness.analysis import numbers
from harness.analysis.frames import launch_frame
from harness.analysis.learning import TimeToAccuracy, curve_frame, default_accuracy, side_by_side
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import PointScaling, Scaling, scale
from harness.base.errors import UserError
from harness.report import captions
from harness.report.answer import Answer, Cell, FigureBlock, Section, Table
from harness.report.axes import time_unit
from harness.report.figure_origin import sweeps_origin
from harness.report.launch_summary import machine_words, run_facts
from harness.report.render import PAGE, relative_link
from harness.report.svg import draw, mark
from harness.schema.presets import distinguishing_names

FOLDER = "side-by-side"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySweep:
    """One sweep: its folder's name, what sets it apart from the others, its numbers, and its rows of epochs."""

    name: str
    title: str
    link: str
    loaded: Loaded
    scaling: Scaling
    epochs: pd.DataFrame
    launches: pd.DataFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRow:
    """One layout of one sweep. `point` is its scaling over its own base, `target` over the common base."""

    entry: PolicySweep
    point: PointScaling
    target: TimeToAccuracy
    accuracy: float


def policies_answer(folders: Sequence[Path], reports: Path, target: float | None = None) -> Answer:
    """Return which of the sweeps in `folders` learns soonest, for a page in `reports`.

    The time to the `target` test accuracy (a fraction) is over the first sweep's fewest ranks; by default it is
    that base's final accuracy less one percentage point.

    Raises:
        UserError: fewer than two sweeps, other data or models, or a sweep without a valid launch or tested accuracy.
    """
    if len(folders) < 2:
        raise UserError("side by side needs at least two sweeps: name them")
    entries = [_entry(folder, reports / FOLDER) for folder in folders]
    _check_alike(entries)
    entries = _titled(entries)
    first = entries[0]
    goal = target if target is not None else default_accuracy(first.launches, first.scaling.base.layout)
    if goal is None:
        raise UserError(f"sweep '{first.loaded.folder}' has no test accuracy: side by side needs one")
    rows = _rows(entries, goal)
    subject = captions.subject(first.loaded.runs[0].point.workload)
    every = [run for entry in entries for run in entry.loaded.runs]
    command = shlex.join(["harness", "report", *(entry.name for entry in entries), "--together"])
    command += f" --target {target:g}" if target is not None else ""
    table = _table(rows, goal, first.scaling.base.ranks)
    return Answer(
        question=f"Which of these sweeps of {subject} reaches {numbers.percent(goal, 1)} test accuracy soonest?",
        sentence=_headline(rows, goal),
        facts=run_facts([run for entry in entries for run in entry.loaded.valid], every),
        sections=(
            Section(title=table.title, name="table", blocks=[table]),
            Section(title="Accuracy against time", name="figure", blocks=[_figure(entries, goal)]),
        ),
        command=command,
        kind="side by side",
        place=FOLDER,
        title=f"{subject}: {', '.join(entry.title for entry in entries)}",
        when=max(run.started for run in every),
        machine=machine_words(first.loaded.runs[0].provenance.machine),
        origin=sweeps_origin(command, [entry.loaded for entry in entries]),
    )


def _table(rows: Sequence[PolicyRow], goal: float, base: int) -> Table:
    shown = numbers.percent(goal, 1)
    cells = [
        (
            row.entry.title,
            str(row.point.ranks),
            str(row.point.launches),
            _cell(row.point.seconds, numbers.seconds, numbers.seconds_span(row.point.seconds_interval)),
            _cell(row.point.speedup, "{:.2f}".format, numbers.ratio_span(row.point.speedup_interval)),
            replace(
                _cell(row.target.seconds, numbers.seconds, "", missing="not reached"),
                note=f"{row.target.reached} of {row.target.launches} launches",
            ),
            _cell(row.target.speedup, "{:.2f}".format, numbers.ratio_span(row.target.interval)),
            _cell(row.accuracy, lambda value: numbers.percent(value, 2), ""),
            Cell(text=row.entry.name, link=row.entry.link),
        )
        for row in rows
    ]
    headings = (
        "Sweep", "Ranks", "Launches", "Epoch time", "Speedup at\nequal samples", f"Training time\nto {shown}",
        f"Speedup to\n{shown}", "Final test\naccuracy", "Folder",
    )  # fmt: skip
    note = (
        "Speedup at equal samples is over each sweep's own fewest ranks: the same rows in less time. Speedup to "
        f"accuracy is over the first sweep's {numbers.ranks(base)}: the median training time after which a "
        "launch first has the target, epochs not interpolated; one that never reaches it counts as infinitely long. "
        "Below: 95 % intervals, where there are 6 launches."
    )
    return Table(title="At equal samples and to equal accuracy", headings=headings, rows=cells, note=note)


def _cell(value: float | None, words: Callable[[float], str], span: str, *, missing: str = numbers.NONE) -> Cell:
    """Return a number with its interval, by which the table is sorted."""
    if value is None:
        return Cell(text=missing, value="")
    return Cell(text=words(value), note="" if span == numbers.NONE else span, value=value)


def _titled(entries: Sequence[PolicySweep]) -> list[PolicySweep]:
    """Return `entries`, each called by what sets it apart."""
    studies = [entry.loaded.study for entry in entries]
    if not all(studies):
        return list(entries)
    apart = distinguishing_names([study.sweep.workload for study in studies if study])
    return [replace(entry, title=title or entry.name) for entry, title in zip(entries, apart, strict=True)]


def _entry(folder: Path, place: Path) -> PolicySweep:
    loaded = load_sweep(folder)
    if not loaded.valid:
        raise UserError(f"sweep '{folder}' has no valid launch: run it again")
    epochs = loaded.epochs
    launches = launch_frame(loaded.runs, epochs)
    scaling = scale(launches)
    assert scaling is not None
    return PolicySweep(
        name=folder.resolve().name,
        title=folder.resolve().name,
        link=relative_link(place.parent / folder.resolve().name / PAGE, place),
        loaded=loaded,
        scaling=scaling,
        epochs=epochs,
        launches=launches,
    )


def _check_alike(entries: Sequence[PolicySweep]) -> None:
    kinds = {(e.loaded.runs[0].point.workload.name, e.loaded.runs[0].data.sha256) for e in entries}
    if len(kinds) > 1:
        names = ", ".join(sorted({name for name, _ in kinds}))
        raise UserError(f"the sweeps are not of one workload and data ({names}): compare like with like")


def _rows(entries: Sequence[PolicySweep], goal: float) -> tuple[PolicyRow, ...]:
    sided = side_by_side([(entry.launches, entry.epochs) for entry in entries], goal)
    return tuple(
        PolicyRow(entry=entry, point=side.point, target=side.target, accuracy=side.accuracy)
        for entry, one in zip(entries, sided, strict=True)
        for side in one.sides
        if side.point and side.target
    )


def _headline(rows: Sequence[PolicyRow], goal: float) -> str:
    there = [row for row in rows if row.target.seconds is not None]
    if not there:
        return f"No sweep reaches {numbers.percent(goal, 1)} test accuracy."
    best = min(there, key=lambda row: row.target.seconds or 0.0)
    assert best.target.seconds is not None
    return (
        f"{numbers.percent(goal, 1)} test accuracy is reached soonest by {best.entry.title} on "
        f"{numbers.ranks(best.point.ranks)}: {numbers.seconds(best.target.seconds)} of training."
    )


def _figure(entries: Sequence[PolicySweep], goal: float) -> FigureBlock:
    curves = pd.concat(
        [
            curve_frame(entry.epochs).assign(sync=entry.loaded.runs[0].point.workload.sync, sweep=entry.title)
            for entry in entries
        ]
    )
    caption = (
        "Test accuracy after each epoch against training time, medians of the launches, one line for each sweep and "
        f"rank count. Dotted: the target, {numbers.percent(goal, 1)}."
    )
    last = curves.drop_duplicates(["sweep", "layout"], keep="last")
    spoken = "At the end: " + "; ".join(
        f"{row['sweep']}, {numbers.ranks(int(row['ranks']))}: {numbers.percent(float(row['test_accuracy']), 2)} after "
        f"{numbers.seconds(float(row['trained_s']))}"
        for _, row in last.iterrows()
    )
    title = "Test accuracy against time"
    picture = draw("accuracy-by-policy", title, lambda axes: _paint(axes, curves, goal), numbers=spoken)
    return FigureBlock(picture=picture, title="Accuracy against time", caption=caption, table=curves)


def _paint(axes: Axes, curves: pd.DataFrame, goal: float) -> None:
    factor, unit = time_unit(float(curves["trained_s"].max()))
    for number, ((sweep, _layout), rows) in enumerate(curves.groupby(["sweep", "layout"], sort=False)):
        look = mark(number)
        label = f"{sweep}, {numbers.ranks(int(rows['ranks'].iloc[0]))}"
        axes.plot(
            rows["trained_s"] * factor, rows["test_accuracy"], color=look.colour, marker=look.marker,
            linestyle=look.dashes, markersize=4, label=label,
        )  # fmt: skip
    axes.axhline(goal, linestyle=":", linewidth=1, color=mark(6).colour)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.set_ylabel("Test accuracy")
    axes.set_xlabel(f"Training time, without evaluation ({unit})")
