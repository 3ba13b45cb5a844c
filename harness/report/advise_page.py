"""`harness advise` as a page: every way to run a job, with its time and cost, and the one to take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from harness.analysis import numbers
from harness.prediction.advice import AdviceScore, JobLimits, TrainingJob, Way
from harness.report.answer import FigureBlock, Table, Tile
from harness.report.publish import Page, PageSummary, publish
from harness.report.render import Head
from harness.report.svg import MUTED, draw, mark
from harness.schema.presets import sweep_command
from harness.schema.sweep import Sweep

HEADINGS = ("From", "Ranks", "Nodes", "TrainingJob", "95 % interval", "Node-hours", "Accuracy", "Settings")


def asked_words(job: TrainingJob, limits: JobLimits) -> str:
    """Return the question: ``10 epochs within 5 min``."""
    words = [f"{job.target:.3g} test accuracy" if job.target is not None else numbers.plural(job.epochs, "epoch")]
    if limits.deadline_s:
        words.append(f"within {numbers.seconds(limits.deadline_s)}")
    if limits.node_hours:
        words.append(f"for {numbers.significant(limits.node_hours)} node-hours")
    return " ".join(words)


def way_rows(ways: Sequence[Way], chosen: Way | None) -> tuple[tuple[str, ...], ...]:
    """Return the rows of HEADINGS; the first cell says whether a way was measured, and which one to take."""
    return tuple(
        (
            ("take: " if way is chosen else "") + _basis(way),
            f"{way.layout.ranks:,}",
            f"{way.layout.nodes:,}",
            numbers.seconds(way.seconds),
            numbers.seconds_span(way.interval),
            numbers.significant(way.node_hours),
            numbers.NONE if way.accuracy is None else numbers.percent(way.accuracy, 1),
            way.name,
        )
        for way in ways
    )


def _basis(way: Way) -> str:
    return numbers.plural(way.launches, "launch") if way.measured else "predicted"


def sentence(ways: Sequence[Way], chosen: Way | None, asked: str, sweeps: Mapping[Path, Sweep]) -> str:
    """Return the advice in a sentence, with the command that follows it."""
    if chosen is None:
        fastest, cheapest = (min(ways, key=key) for key in (lambda way: way.seconds, lambda way: way.node_hours))
        return (
            f"No way is sure to make {asked}: the fastest takes {numbers.seconds(fastest.seconds)} "
            f"({numbers.seconds_span(fastest.interval)}) on {numbers.ranks(fastest.layout.ranks)}, the cheapest "
            f"{numbers.significant(cheapest.node_hours)} node-hours."
        )
    basis = f"{numbers.plural(chosen.launches, 'launch')} there" if chosen.measured else "predicted, not measured"
    known = "" if chosen.accuracy is None else f", test accuracy {numbers.percent(chosen.accuracy, 1)}"
    command = sweep_command(replace(sweeps[chosen.folder], layouts=(chosen.layout,), repeats=1))
    return (
        f"For {asked}: {chosen.name} on {numbers.ranks(chosen.layout.ranks)}, {numbers.seconds(chosen.seconds)} "
        f"({numbers.seconds_span(chosen.interval)}) and {numbers.significant(chosen.node_hours)} node-hours{known} "
        f"({basis}): {command}"
    )


def score_sentence(name: str, score: AdviceScore) -> str:
    """Return how an earlier advice did."""
    advice = score.advice
    off = f"{numbers.percent(abs(score.error), 1)} too {'much' if score.error > 0 else 'little'}"
    return (
        f"Advice of {numbers.moment(advice.made)} UTC, {name} on {numbers.ranks(advice.layout.ranks)}: said "
        f"{numbers.seconds(advice.seconds)}, took {numbers.seconds(score.seconds)}; {off}, {score.covered} of "
        f"{numbers.plural(score.launches, 'launch')} since within {numbers.seconds(advice.low)} to "
        f"{numbers.seconds(advice.high)}."
    )


def write_advice_page(
    ways: Sequence[Way],
    chosen: Way | None,
    limits: JobLimits,
    said: str,
    scores: Sequence[str],
    command: str,
    reports: Path,
    results: Path,
) -> Path:
    """Write ``REPORTS/advise/index.html`` and return its path.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    tiles = [Tile(name="TrainingJob", value=numbers.seconds(chosen.seconds), detail=chosen.name)] if chosen else []
    answer = said.partition(": make sweep")[0].rstrip(".") + "."
    head = Head(question="How should this job be run?", answer=answer, tiles=tuple(tiles), facts=(), command=command)
    note = (
        "Intervals are for one more launch in another sitting. Predicted: by growth models of the sweep's parts, "
        "without accuracy. Limits are held by the upper end."
    )
    table = Table(title="Ways", headings=HEADINGS, rows=way_rows(ways, chosen), note=note)
    figure = _figure(ways, chosen, limits)
    summary = PageSummary(kind="advise", title=ways[0].folder.name, answer=head.answer, when=datetime.now(UTC))
    values = {
        "banners": (), "tables": (table,), "figures": (figure,), "lines": tuple(scores),
        "lines_title": "How earlier advice did", "tones_of": {},
    }  # fmt: skip
    page = Page(place="advise", template="tables.html.j2", summary=summary, head=head, values=values, figures=(figure,))
    return publish(page, reports, results)


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
                color=MUTED.light, linestyle="none", label="take",
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

    told = {"settings": [way.name for way in ways], "nodes": [way.layout.nodes for way in ways]}
    times = {"seconds": [way.seconds for way in ways], "low": [way.interval.low for way in ways]}
    table = pd.DataFrame(told | times | {"high": [way.interval.high for way in ways]})
    spoken = "; ".join(f"{way.name} on {way.layout.ranks} ranks {numbers.seconds(way.seconds)}" for way in ways)
    picture = draw("advice", "Node-hours against the time of the job", paint, numbers=spoken)
    caption = "Every way to run the job. Filled: measured. Hollow: predicted. The ring is the one to take."
    return FigureBlock(picture=picture, title="Time and cost", caption=caption, table=table)
