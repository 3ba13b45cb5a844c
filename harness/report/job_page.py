"""`harness predict` for a deadline or a budget: every way to run a job, with its time and cost, and the one to take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from harness.analysis import numbers
from harness.prediction.advice import AdviceScore, JobLimits, TrainingJob, Way
from harness.report.answer import Answer, Cell, FigureBlock, Items, Section, Table, Tile
from harness.report.svg import MUTED, draw, mark
from harness.schema.presets import repeat_command
from harness.schema.sweep import Sweep

_HEADINGS = ("From", "Ranks", "Nodes", "Job", "95 % interval", "Node-hours", "Accuracy", "Settings")


def asked_words(job: TrainingJob, limits: JobLimits) -> str:
    """Return the question: ``10 epochs within 5 min``."""
    words = [f"{job.target:.3g} test accuracy" if job.target is not None else numbers.plural(job.epochs, "epoch")]
    if limits.deadline_s:
        words.append(f"within {numbers.seconds(limits.deadline_s)}")
    if limits.node_hours:
        words.append(f"for {numbers.significant(limits.node_hours)} node-hours")
    return " ".join(words)


def job_answer(
    ways: Sequence[Way],
    chosen: Way | None,
    asked: str,
    limits: JobLimits,
    sweeps: Mapping[Path, Sweep],
    scores: Sequence[tuple[str, AdviceScore]],
    command: str,
) -> Answer:
    """Return the way to take of `ways`, fastest first, for what was `asked` by the `command`.

    `sweeps` are those that the ways are of, by folder, `scores` those of earlier advice, with the sweeps' names.
    """
    sentence = _sentence(ways, chosen, asked)
    if chosen:
        sweep = replace(sweeps[chosen.folder], layouts=(chosen.layout,), repeats=1)
        sentence = f"{sentence.rstrip('.')}: {repeat_command(chosen.folder, sweep)}"
    tables = [_table(ways, chosen, measured=kind) for kind in (True, False) if any(w.measured == kind for w in ways)]
    earlier = [_score_sentence(name, score) for name, score in scores]
    return Answer(
        question="How should this job be run?",
        sentence=sentence,
        table=tables[0],
        data={"asked": asked, "chosen": chosen, "ways": ways, "scores": earlier},
        tiles=[Tile(name="Job", value=numbers.seconds(chosen.seconds), detail=chosen.name)] if chosen else [],
        sections=(
            Section(title="Ways to run it", name="ways", blocks=[*tables, _figure(ways, chosen, limits)]),
            Section(title="How earlier advice did", name="scores", blocks=[Items(texts=earlier)] if earlier else []),
        ),
        command=command,
        code=0 if chosen else 1,
        kind="predict",
        place="predict-job",
        title=ways[0].folder.name,
    )


def _table(ways: Sequence[Way], chosen: Way | None, *, measured: bool) -> Table:
    rows: list[list[str | Cell]] = []
    for way in (way for way in ways if way.measured == measured):
        basis = numbers.plural(way.launches, "launch") if measured else "predicted"
        values = (
            numbers.seconds(way.seconds), numbers.seconds_span(way.interval), numbers.significant(way.node_hours),
            numbers.NONE if way.accuracy is None else numbers.percent(way.accuracy, 1),
        )  # fmt: skip
        place = (("take: " if way is chosen else "") + basis, f"{way.layout.ranks:,}", f"{way.layout.nodes:,}")
        rows.append([*place, *(Cell(text=value, computed=not measured) for value in values), way.name])
    note = (
        "Intervals are for one more launch in another session, and hold together for all ways, of which the best was "
        "chosen (Bonferroni); their upper end has to meet the limit."
    )
    if not measured:
        note = f"Predicted by {', '.join(dict.fromkeys(way.predicted for way in ways if way.predicted))}. {note}"
    return Table(title="Measured" if measured else "Predicted", headings=_HEADINGS, rows=rows, note=note)


def _sentence(ways: Sequence[Way], chosen: Way | None, asked: str) -> str:
    if chosen is None:
        fastest, cheapest = (min(ways, key=key) for key in (lambda way: way.seconds, lambda way: way.node_hours))
        return (
            f"No way is certain to make {asked}: the fastest takes {numbers.seconds(fastest.seconds)} "
            f"({numbers.seconds_span(fastest.interval)}) on {numbers.ranks(fastest.layout.ranks)}, the cheapest "
            f"{numbers.significant(cheapest.node_hours)} node-hours."
        )
    basis = f"{numbers.plural(chosen.launches, 'launch')} there" if chosen.measured else "predicted, not measured"
    known = "" if chosen.accuracy is None else f", test accuracy {numbers.percent(chosen.accuracy, 1)}"
    return (
        f"For {asked}: {chosen.name} on {numbers.ranks(chosen.layout.ranks)}, {numbers.seconds(chosen.seconds)} "
        f"({numbers.seconds_span(chosen.interval)}) and {numbers.significant(chosen.node_hours)} node-hours{known} "
        f"({basis})."
    )


def _score_sentence(name: str, score: AdviceScore) -> str:
    """Return how an earlier advice did."""
    advice = score.advice
    off = f"{numbers.percent(abs(score.error), 1)} too {'high' if score.error > 0 else 'low'}"
    return (
        f"Advice of {numbers.moment(advice.made)} UTC, {name} on {numbers.ranks(advice.layout.ranks)}: predicted "
        f"{numbers.seconds(advice.seconds)}, took {numbers.seconds(score.seconds)}; {off}, {score.covered} of "
        f"{numbers.plural(score.launches, 'launch')} since within {numbers.seconds(advice.low)} to "
        f"{numbers.seconds(advice.high)}."
    )


def _figure(ways: Sequence[Way], chosen: Way | None, limits: JobLimits) -> FigureBlock:
    names = list(dict.fromkeys(way.name for way in ways))

    def paint(axes: Axes) -> None:
        for number, name in enumerate(names, start=1):
            look = mark(number)
            for measured, face in ((True, look.colour), (False, "none")):
                own = [way for way in ways if way.name == name and way.measured == measured]
                if own:
                    label = name if measured else f"{name}, predicted"
                    axes.plot(
                        [way.seconds / 60 for way in own], [way.node_hours for way in own], look.marker, label=label,
                        color=look.colour, markerfacecolor=face, linestyle="none",
                    )  # fmt: skip
        if chosen:
            axes.plot(
                [chosen.seconds / 60], [chosen.node_hours], "o", markersize=13, markerfacecolor="none",
                color=MUTED.light, linestyle="none", label="recommended",
            )  # fmt: skip
        if limits.deadline_s:
            axes.axvline(limits.deadline_s / 60, color=MUTED.light, linestyle=(0, (4, 2)), label="deadline")
        if limits.node_hours:
            axes.axhline(limits.node_hours, color=MUTED.light, linestyle=(0, (1, 1.5)), label="budget")
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("Job (min)")
        axes.set_ylabel("Node-hours")

    columns = {"settings": [way.name for way in ways], "nodes": [way.layout.nodes for way in ways]}
    times = {"seconds": [way.seconds for way in ways], "low": [way.interval.low for way in ways]}
    table = pd.DataFrame(columns | times | {"high": [way.interval.high for way in ways]})
    spoken = "; ".join(f"{way.name} on {way.layout.ranks} ranks {numbers.seconds(way.seconds)}" for way in ways)
    picture = draw("advice", "Node-hours against the time of the job", paint, numbers=spoken)
    caption = "Every way to run the job. Filled: measured. Hollow: predicted. The ring is the recommended one."
    return FigureBlock(picture=picture, title="Time and cost", caption=caption, table=table)
