"""Several sweeps of one workload side by side: speed at equal samples beside speed to equal accuracy."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from harness.analysis import numbers
from harness.analysis.accuracy_times import default_accuracy
from harness.analysis.frames import curve_frame, launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.scaling import scale
from harness.analysis.side_by_side import Side, side_by_side
from harness.base.errors import UserError
from harness.base.own_matplotlib import Axes
from harness.report import sweep_sentences
from harness.report.answer import Answer, Cell, FigureBlock, Section
from harness.report.figures.learning_curves import draw_curves, spoken_ends
from harness.report.publish import PAGE, relative_link
from harness.report.svg import draw, mark
from harness.report.sweep_facts import machine_words, run_facts, sweep_warnings
from harness.report.sweep_tables import sides_table
from harness.schema.setting_words import distinguishing_names

FOLDER = "side-by-side"


def policies_answer(folders: Sequence[Path], reports: Path, target: float | None = None) -> Answer:
    """Return which of the sweeps in `folders` learns soonest, for a page in `reports`.

    The time to the `target` test accuracy (a fraction) is over the first sweep's fewest ranks; by default it is
    that base's final accuracy less one percentage point.

    Raises:
        UserError: fewer than two sweeps, other data or models, or a sweep without a valid launch or tested accuracy.
    """
    if len(folders) < 2:
        raise UserError("side by side needs at least two sweeps: name them")
    loaded = [load_sweep(folder) for folder in folders]
    for one in loaded:
        if not one.valid:
            raise UserError(f"sweep '{one.folder}' has no valid launch: run it again")
    kinds = {(one.runs[0].point.workload.name, one.runs[0].data.sha256) for one in loaded}
    if len(kinds) > 1:
        names = ", ".join(sorted({name for name, _ in kinds}))
        raise UserError(f"the sweeps are not of one workload and data ({names}): compare like with like")
    frames = [(launch_frame(one.runs, one.epochs), one.epochs) for one in loaded]
    first = scale(frames[0][0])
    assert first is not None
    goal = target if target is not None else default_accuracy(frames[0][0], first.base.layout)
    if goal is None:
        raise UserError(f"sweep '{loaded[0].folder}' has no test accuracy: side by side needs one")
    folder_names = [folder.resolve().name for folder in folders]
    sweeps = [one.study.sweep.workload for one in loaded if one.study]
    titles = distinguishing_names(sweeps) if len(sweeps) == len(loaded) else [""] * len(loaded)
    titles = [title or name for title, name in zip(titles, folder_names, strict=True)]
    sides = [sided.sides for sided in side_by_side(frames, goal)]
    links = [relative_link(reports / name / PAGE, reports / FOLDER) for name in folder_names]
    named = [Cell(text=title, link=link) for title, link in zip(titles, links, strict=True)]
    note = (
        "Speedup at equal samples is over each sweep's own fewest ranks: the same rows in less time. Speedup to "
        f"accuracy is over the first sweep's {numbers.ranks(first.base.ranks)}: the median training time after which a "
        "launch first has the target, epochs not interpolated; one that never reaches it counts as infinitely long. "
        "Below: 95 % intervals, a time's of this session only, where there are 6 launches."
    )
    called = [(cell, side) for cell, its in zip(named, sides, strict=True) for side in its]
    table = sides_table("Sweep", called, goal, note)
    subject = sweep_sentences.subject(loaded[0].runs[0].point.workload)
    every = [run for one in loaded for run in one.launched]
    command = shlex.join(["harness", "policies", *folder_names])
    command += f" --target {target:g}" if target is not None else ""
    return Answer(
        question=f"Which of these sweeps of {subject} reaches {numbers.percent(goal, 1)} test accuracy soonest?",
        sentence=_headline(dict(zip(titles, sides, strict=True)), goal),
        banners=[
            replace(banner, text=f"{title}: {banner.text}")
            for title, one in zip(titles, loaded, strict=True)
            for banner in sweep_warnings(one)
        ],
        facts=run_facts([run for one in loaded for run in one.valid], every),
        sections=(
            Section(title=table.title, name="table", blocks=[table]),
            Section(title="Accuracy against time", name="figure", blocks=[_figure(titles, loaded, goal)]),
        ),
        command=command,
        kind="side by side",
        place=FOLDER,
        title=f"{subject}: {', '.join(titles)}",
        when=max(run.started for run in every),
        machine=machine_words(loaded[0].runs[0].provenance.machine),
    )


def _headline(sweeps: Mapping[str, Sequence[Side]], goal: float) -> str:
    times = [(side.target.seconds, side.ranks, title) for title, its in sweeps.items() for side in its if side.target]
    there = [(seconds, ranks, title) for seconds, ranks, title in times if seconds is not None]
    if not there:
        return f"No sweep reaches {numbers.percent(goal, 1)} test accuracy."
    seconds, ranks, title = min(there)
    return (
        f"{numbers.percent(goal, 1)} test accuracy is reached soonest by {title} on {numbers.ranks(ranks)}: "
        f"{numbers.seconds(seconds)} of training."
    )


def _figure(titles: Sequence[str], loaded: Sequence[Loaded], goal: float) -> FigureBlock:
    curves = pd.concat(
        [
            curve_frame(one.epochs).assign(sync=one.runs[0].point.workload.sync, sweep=title)
            for title, one in zip(titles, loaded, strict=True)
        ]
    )
    drawn = curves.assign(layout=curves["sweep"] + " " + curves["layout"])
    lines = drawn.drop_duplicates("layout")[["layout", "sweep", "ranks"]].itertuples(index=False)
    labels = {layout: f"{sweep}, {numbers.ranks(int(ranks))}" for layout, sweep, ranks in lines}

    def paint(axes: Axes) -> None:
        draw_curves(axes, drawn, "trained_s", "test_accuracy", labels)
        axes.axhline(goal, linestyle=":", linewidth=1, color=mark(6).colour)

    spoken = spoken_ends(drawn, "test_accuracy", labels)
    return FigureBlock(
        picture=draw("accuracy-by-policy", "Test accuracy against time", paint, numbers=spoken),
        title="Accuracy against time",
        caption="Test accuracy after each epoch against training time, medians of the launches, shaded from the "
        "least to the greatest, one line for each sweep and rank count. Dotted: the target, "
        f"{numbers.percent(goal, 1)}.",
        table=curves,
    )
