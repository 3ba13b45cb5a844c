"""Several sweeps of one workload side by side: speed at equal samples beside speed to equal accuracy."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from harness.analysis import units
from harness.analysis.accuracy_times import Side, default_accuracy, side_by_side
from harness.analysis.confidence_intervals import FEWEST_BLOCKS, FEWEST_LAUNCHES
from harness.analysis.launch_frames import curve_frame, launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import scale
from harness.base.errors import UserError
from harness.base.own_matplotlib import Axes
from harness.report import sweep_sentences
from harness.report.answer import Answer, Cell, PageFigure, Section, Table
from harness.report.figures.learning_curves import draw_curves, spoken_ends
from harness.report.html_pages import PAGE, relative_link
from harness.report.learning_tables import sides_table
from harness.report.run_words import machine_words
from harness.report.svg import draw, mark
from harness.report.sweep_facts import run_facts
from harness.report.sweep_warnings import sweep_warnings
from harness.schema.setting_words import distinguishing_names

FOLDER = "side-by-side"


@dataclass(frozen=True, kw_only=True, slots=True)
class _NamedSweep:
    """One of the sweeps: what a reader calls it, its folder's name, and its layouts over the first sweep's base."""

    title: str
    folder: str
    loaded: Loaded
    sides: Sequence[Side]


def policies_answer(
    folders: Sequence[Path],
    reports: Path,
    target: float | None = None,
    *,
    titles: Sequence[str] = (),
    command: str = "",
) -> Answer:
    """Return which of the sweeps in `folders` learns soonest, for a page in `reports`.

    They are called by `titles` where these are given, else by what differs. `command` is what was given, by default
    that which sets the sweeps side by side.

    The time to the `target` test accuracy (a fraction) is over the first sweep's fewest ranks; by default it is
    that base's final accuracy less one percentage point.

    Raises:
        UserError: fewer than two sweeps, other data or models, or a sweep without a valid launch or tested accuracy.
    """
    loaded = _load_comparable(folders)
    frames = [(launch_frame(sweep.runs, sweep.epochs), sweep.epochs) for sweep in loaded]
    scaling = scale(frames[0][0])
    assert scaling is not None
    goal = target if target is not None else default_accuracy(frames[0][0], scaling.base.layout)
    if goal is None:
        raise UserError(f"sweep '{loaded[0].folder}' has no test accuracy: side by side needs one")
    folder_names = [folder.resolve().name for folder in folders]
    sweeps = [
        _NamedSweep(title=title, folder=folder, loaded=sweep, sides=sided.sides)
        for title, folder, sweep, sided in zip(
            titles or _titles(loaded, folder_names), folder_names, loaded, side_by_side(frames, goal), strict=True
        )
    ]
    table = _table(sweeps, goal, scaling.base.ranks, reports)
    subject = sweep_sentences.subject(loaded[0].runs[0].point.workload)
    launched = [run for sweep in loaded for run in sweep.launched]
    if not command:
        command = shlex.join(["harness", "policies", *folder_names])
        command += f" --target {target:g}" if target is not None else ""
    return Answer(
        question=f"Which of these sweeps of {subject} reaches {units.percent(goal, 1)} test accuracy soonest?",
        sentence=_headline(sweeps, goal),
        banners=[
            replace(banner, text=f"{sweep.title}: {banner.text}")
            for sweep in sweeps
            for banner in sweep_warnings(sweep.loaded)
        ],
        facts=run_facts([run for sweep in loaded for run in sweep.valid], launched),
        sections=(
            Section(title=table.title, name="table", elements=[table]),
            Section(title="Accuracy against time", name="figure", elements=[_figure(sweeps, goal)]),
        ),
        command=command,
        kind="side by side",
        place=FOLDER,
        title=f"{subject}: {', '.join(sweep.title for sweep in sweeps)}",
        when=max(run.started for run in launched),
        machine=machine_words(loaded[0].runs[0].provenance.machine),
    )


def _load_comparable(folders: Sequence[Path]) -> list[Loaded]:
    """Return the sweeps in `folders`; raise a UserError where they cannot be compared."""
    if len(folders) < 2:
        raise UserError("side by side needs at least two sweeps: name them")
    loaded = [load_sweep(folder) for folder in folders]
    for sweep in loaded:
        if not sweep.valid:
            raise UserError(f"sweep '{sweep.folder}' has no valid launch: run it again")
    kinds = {(sweep.runs[0].point.workload.name, sweep.runs[0].data.sha256) for sweep in loaded}
    if len(kinds) > 1:
        names = ", ".join(sorted({name for name, _ in kinds}))
        raise UserError(f"the sweeps are not of one workload and data ({names}): compare like with like")
    return loaded


def _titles(loaded: Sequence[Loaded], folder_names: Sequence[str]) -> list[str]:
    """Return what distinguishes the sweeps where all say what they were asked for, else the names of their folders."""
    workloads = [sweep.study.sweep.workload for sweep in loaded if sweep.study]
    if len(workloads) < len(loaded):
        return list(folder_names)
    titles = distinguishing_names(workloads)
    return [title or name for title, name in zip(titles, folder_names, strict=True)]


def _table(sweeps: Sequence[_NamedSweep], goal: float, base_ranks: int, reports: Path) -> Table:
    note = (
        "Speedup at equal samples is over each sweep's own fewest ranks: the same rows in less time. Speedup to "
        f"accuracy is over the first sweep's {units.ranks(base_ranks)}: the median training time after which a "
        "launch first has the target, epochs not interpolated; one that never reaches it counts as infinitely long. "
        f"Below: 95 % CIs (times: of this session only); at equal samples from {FEWEST_BLOCKS} launches on, to "
        f"accuracy from {FEWEST_LAUNCHES} on."
    )
    rows = []
    for sweep in sweeps:
        page = reports / sweep.folder / PAGE
        name = Cell(text=sweep.title, link=relative_link(page, reports / FOLDER) if page.exists() else "")
        rows += [(name, side) for side in sweep.sides]
    return sides_table("Sweep", rows, goal, note)


def _headline(sweeps: Sequence[_NamedSweep], goal: float) -> str:
    times = []
    for sweep in sweeps:
        for side in sweep.sides:
            if side.target and side.target.seconds is not None:
                times.append((side.target.seconds, side.ranks, sweep.title))
    if not times:
        return f"No sweep reaches {units.percent(goal, 1)} test accuracy."
    seconds, ranks, title = min(times)
    return (
        f"{units.percent(goal, 1)} test accuracy is reached soonest by {title} on {units.ranks(ranks)}: "
        f"{units.seconds(seconds)} of training."
    )


def _figure(sweeps: Sequence[_NamedSweep], goal: float) -> PageFigure:
    curves = pd.concat(
        [
            curve_frame(sweep.loaded.epochs).assign(sync=sweep.loaded.runs[0].point.workload.sync, sweep=sweep.title)
            for sweep in sweeps
        ]
    )
    drawn = curves.assign(layout=curves["sweep"] + " " + curves["layout"])
    lines = drawn.drop_duplicates("layout")[["layout", "sweep", "ranks"]].itertuples(index=False)
    labels = {layout: f"{sweep}, {units.ranks(int(ranks))}" for layout, sweep, ranks in lines}

    def paint(axes: Axes) -> None:
        draw_curves(axes, drawn, "trained_s", "test_accuracy", labels)
        axes.axhline(goal, linestyle=":", linewidth=1, color=mark(6).colour)

    spoken = spoken_ends(drawn, "test_accuracy", labels)
    return PageFigure(
        picture=draw("accuracy-by-policy", "Test accuracy against time", paint, numbers=spoken),
        title="Accuracy against time",
        caption="Test accuracy after each epoch against training time, medians of the launches, shaded from the "
        "least to the greatest, one line for each sweep and rank count. Dotted: the target, "
        f"{units.percent(goal, 1)}.",
        table=curves,
    )
