"""Several sweeps of one workload side by side: speed at equal samples beside speed to equal accuracy."""

import shlex
from collections.abc import Sequence
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
from harness.report.answer import FigureBlock
from harness.report.axes import time_unit
from harness.report.launch_summary import machine_words, run_facts
from harness.report.provenance import sweeps_origin
from harness.report.publish import Page, PageSummary, publish
from harness.report.render import PAGE, Head, check_replaceable, relative_link
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


def write_policies(folders: Sequence[Path], reports: Path, target: float | None = None) -> Path:
    """Write ``REPORTS/side-by-side/index.html`` about the sweeps in `folders`; return its path.

    The time to the `target` test accuracy (a fraction) is over the first sweep's fewest ranks; by default it is
    that base's final accuracy less one percentage point.

    Raises:
        UserError: fewer than two sweeps, other data or models, a sweep without a valid launch or tested accuracy,
            or the report cannot be written.
    """
    if len(folders) < 2:
        raise UserError("side by side needs at least two sweeps: name them")
    place = reports / FOLDER
    check_replaceable(place)
    entries = [_entry(folder, place) for folder in folders]
    _check_alike(entries)
    entries = _titled(entries)
    first = entries[0]
    goal = target if target is not None else default_accuracy(first.launches, first.scaling.base.layout)
    if goal is None:
        raise UserError(f"sweep '{first.loaded.folder}' has no test accuracy: side by side needs one")
    rows = _rows(entries, goal)
    block = _figure(entries, goal)
    subject = captions.subject(first.loaded.runs[0].point.workload)
    head = Head(
        question=f"Which of these sweeps of {subject} reaches {numbers.percent(goal, 1)} test accuracy soonest?",
        answer=_headline(rows, goal),
        facts=run_facts(
            [run for entry in entries for run in entry.loaded.valid],
            [run for entry in entries for run in entry.loaded.runs],
        ),
        command=shlex.join(["harness", "report", *(entry.name for entry in entries), "--together"])
        + (f" --target {target:g}" if target is not None else ""),
    )
    values = {"rows": rows, "target": goal, "subject": subject, "base": first.scaling.base, "figure": block}
    summary = PageSummary(
        kind="side by side",
        title=f"{subject}: {', '.join(entry.title for entry in entries)}",
        answer=head.answer,
        when=max(run.started for entry in entries for run in entry.loaded.runs),
        machine=machine_words(first.loaded.runs[0].provenance.machine),
    )
    page = Page(
        place=FOLDER, template="policies.html.j2", summary=summary, head=head, values=values, figures=(block,),
        origin=sweeps_origin(head.command, [entry.loaded for entry in entries]),
    )  # fmt: skip
    return publish(page, reports, folders[0].resolve().parent)


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
