"""``harness advise``: which ranks, batch, sync policy and wire to take for a deadline or a budget."""

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.cli.answer import answering
from harness.cli.common import reports_option, results_option
from harness.cli.select import find_sweeps
from harness.report.answer import Answer, Table

if TYPE_CHECKING:
    from harness.analysis.read_results import Loaded
    from harness.prediction.advice import TrainingJob, Way

_MOST_ROWS = 12  # in a terminal; the page has all


@click.command()
@click.argument("workload", nargs=-1, required=True, metavar="WORKLOAD|SWEEP...")
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), help="Minutes that the job may take.")
@click.option("--node-hours", type=click.FloatRange(min=0, min_open=True), help="Node-hours that the job may cost.")
@click.option("--epochs", type=click.IntRange(min=1), help="Length of the job [default: as most launches had].")
@click.option("--accuracy", type=click.FloatRange(0, 1), help="Until this test accuracy, in place of --epochs.")
@click.option("--nodes", default="", help="Node counts to predict beside, such as 16..64*2, by growth models.")
@results_option
@reports_option
@answering
def advise(
    workload: tuple[str, ...],
    deadline: float | None,
    node_hours: float | None,
    epochs: int | None,
    accuracy: float | None,
    nodes: str,
    results: Path,
    reports: Path,
) -> Answer:
    """Tell which rank count, batch, sync policy and wire to use for a job.

    Compares all sweeps in --results whose names begin with a WORKLOAD or SWEEP: strong scaling of the same rows. Given
    --deadline, the cheapest way that holds it; given --node-hours alone, the fastest one. What counts is the upper end
    of the interval for one more launch. The advice is written beside the sweep's launches: those made afterwards score
    it, and the next advice tells how it did. Exit code 1: no way holds the limits.
    """
    from harness.prediction.advice import JobLimits, choose_way, scores, write_advice
    from harness.report.advise_page import HEADINGS, asked_words, score_sentence, sentence, way_rows, write_advice_page
    from harness.schema.layout import parse_counts

    if deadline is None and node_hours is None:
        raise UserError("advise needs a limit: give --deadline MINUTES or --node-hours HOURS")
    for name, value in (("deadline", deadline), ("node-hours", node_hours), ("accuracy", accuracy)):
        if value is not None and not math.isfinite(value):
            raise UserError(f"--{name} {value} is no number: write one such as 0.9")
    found = _same_work(workload, results)
    job = _job(found, epochs, accuracy)
    ways = _ways(found, job, parse_counts("NODES", nodes) if nodes else ())
    limits = JobLimits(deadline_s=None if deadline is None else 60 * deadline, node_hours=node_hours)
    chosen, asked = choose_way(ways, limits), asked_words(job, limits)
    told = [score_sentence(one.folder.name, score) for one in found for score in scores(one)]
    for line in told:
        click.echo(line)
    said = sentence(ways, chosen, asked, {one.folder: one.study.sweep for one in found if one.study})
    if chosen:
        write_advice(chosen, job, asked)
    ways.sort(key=lambda way: way.seconds)
    words = ["harness", "advise", *workload]
    for name, value in (("deadline", deadline), ("node-hours", node_hours), ("epochs", epochs), ("accuracy", accuracy)):
        words += [f"--{name}", f"{value:g}"] if value is not None else []
    command = shlex.join([*words, *(["--nodes", nodes] if nodes else [])])
    return Answer(
        sentence=said,
        table=Table(
            title="",
            headings=[heading for heading in HEADINGS if heading != "Nodes"],
            rows=[[*row[:2], *row[3:]] for row in way_rows(ways, chosen)[:_MOST_ROWS]],
        ),
        data={"asked": asked, "chosen": chosen, "ways": ways, "scores": told},
        page=write_advice_page(ways, chosen, limits, said, told, command, reports, results),
        code=0 if chosen else 1,
    )


def _same_work(names: tuple[str, ...], results: Path) -> "list[Loaded]":
    """Return the sweeps of `names` that train the same rows, strong scaling; say which are left out."""
    from harness.analysis.read_results import load_sweep
    from harness.analysis.select_sweep import standing

    folders = dict.fromkeys(folder for name in names for folder in find_sweeps(name, results))
    loaded = [one for folder in folders if (one := load_sweep(folder)).valid and one.study]
    strong = [one for one in loaded if one.valid[0].point.scaling == "strong"]
    if not strong:
        raise UserError(f"no valid launch of {', '.join(names)} under strong scaling in '{results}': sweep first")
    first = max(strong, key=standing)
    found = [one for one in strong if _rows(one) == _rows(first)]
    for one in loaded:
        if one not in found:
            click.echo(f"{one.folder.name} is left out: it trains other rows than {first.folder.name}")
    return found


def _rows(loaded: "Loaded") -> tuple[str, int]:
    run = loaded.valid[0]
    return run.data.sha256, sum(rank.rows for rank in run.ranks)


def _job(found: "list[Loaded]", epochs: int | None, accuracy: float | None) -> "TrainingJob":
    from harness.prediction.advice import TrainingJob

    most = max(found, key=lambda one: len(one.valid))
    return TrainingJob(epochs=epochs or most.valid[0].point.workload.epochs, target=accuracy)


def _ways(found: "list[Loaded]", job: "TrainingJob", nodes: tuple[int, ...]) -> "list[Way]":
    from harness.prediction.advice import measured_ways, predicted_ways
    from harness.schema.presets import distinguishing_names

    plain = [replace(one.valid[0].point.workload, epochs=1) for one in found]
    ways: list[Way] = []
    for one, name in zip(found, distinguishing_names(plain), strict=True):
        called = name or plain[0].name
        ways += measured_ways(one, called, job)
        if nodes:
            predicted, why = predicted_ways(one, called, job, nodes)
            ways += predicted
            if why:
                click.echo(why)
    if not ways:
        raise UserError("no layout has 2 valid launches that reach the end of the job: sweep with REPEATS=6")
    return ways
