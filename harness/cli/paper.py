"""`harness paper`: paper A's seven experiments, repeated here."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import RunError
from harness.cli.answering import answering
from harness.cli.common import (
    GroupedCommand,
    data_dir_option,
    given_command,
    reports_option,
    results_option,
)
from harness.cli.options import approval, batch_options, build_layouts, build_submission, layout_options
from harness.report.answer import Answer, Table
from harness.schema.presets import PRESETS

if TYPE_CHECKING:
    from harness.report.paper_sections import PaperStudy
    from harness.schema.claim import Claim
    from harness.schema.layout import Layout
    from harness.schema.sweep import Sweep
    from harness.sweep.submission import Submission

Launch = Callable[["Sweep"], Path]
Together = Callable[["Sequence[Sweep]"], int]


@click.command(name="paper", cls=GroupedCommand)
@click.option("--workloads", help="Some of the seven, such as mnist-dnn,mnist-cnn [default: all].")
@click.option("--preset", help=f"Training settings: {', '.join(PRESETS)} [default: the paper's, of March 2016].")
@click.option(
    "--repeats", type=click.IntRange(min=1), help="Launches in turns; 3 give intervals [default: 3, with --full 6]."
)
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs of every experiment, instead of its own number.")
@click.option("--samples", type=click.IntRange(min=1), help="Most training rows of every experiment.")
@click.option("--full", is_flag=True, help="All rows, all epochs, 6 launches; first estimates how long that takes.")
@layout_options
@click.option("--oversubscribe", is_flag=True, help="Run layouts with more ranks than cores: what they learn counts.")
@batch_options
@data_dir_option
@results_option
@reports_option
@answering
def paper(workloads: str | None, data_dir: Path | None, results: Path, reports: Path, **options: Any) -> Answer:
    """Repeat paper A's seven experiments: weights averaged once per epoch, every K steps, gradients each step.

    On one machine all of an experiment trains in turns, in 3 blocks, which give intervals. By default rows and epochs
    are cut so that all of it ends within about 15 minutes on 2 cores. The same command again runs only what is missing.
    The last line is the page's path: printed, measured and predicted, and the verdicts on the paper's claims.
    """
    from harness.base.files import resource
    from harness.claims.campaign import PRESET, ExperimentSize, choose, plan
    from harness.cli.claims import judge, judged
    from harness.report.claims_page import FOLDER
    from harness.report.paper_sections import PAPER
    from harness.report.publish import PAGE, write_page
    from harness.schema.claim import CLAIMS_FILE, EXPERIMENTS, read_published
    from harness.sweep.execute import run_sweep, run_together

    published = read_published(resource(CLAIMS_FILE))
    names = choose(workloads, EXPERIMENTS)
    submission, why = build_submission(options)
    layouts = _layouts(options, submission, published.of(PAPER))
    size = ExperimentSize(**{name: options[name] for name in ("full", "repeats", "epochs", "samples")})
    where: dict[str, Any] = {"data_dir": data_dir, "results": results, "submission": submission}
    launch = partial(run_sweep, **where, approve=approval(options))
    together = partial(run_together, **where) if submission.scheduler == "local" else None

    def planned(size: ExperimentSize) -> dict[str, tuple["Sweep", ...]]:
        preset, over = options["preset"] or PRESET, options["oversubscribe"]
        settings = partial(plan, layouts=layouts, preset=preset, data_dir=data_dir, oversubscribe=over)
        return {
            name: tuple(replace(one, scheduler=submission.scheduler) for one in settings(EXPERIMENTS[name], size=size))
            for name in names
        }

    # All plans first: a wrong setting or a damaged file ends the command before anything runs.
    plans = planned(size)
    if submission.scheduler != "local" or options["scheduler"] != "auto":
        click.echo(why)
    if size.full:
        _tell_time(plans, planned(ExperimentSize()), launch)
    studies = _run_all(plans, launch, together, results, reports)
    answer, rows = judged(studies, judge(results, reports), results, reports, given_command())
    failed = [study.experiment for study in studies if study.problem]
    problem = f"launches failed in {', '.join(failed)}: the same command again runs only what failed"
    answer = replace(
        answer,
        table=replace(rows, rows=[row for row in rows.rows if str(row[0]) in names], title="", note=""),
        data={
            "experiments": [{"name": name, "measured": measured} for name, *measured in _texts(rows) if name in names],
            "claims": reports / FOLDER / PAGE,
        },
        problem=problem if failed else "",
    )
    return write_page(answer, reports, results)


def _texts(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in table.rows]


def _run_all(
    plans: "Mapping[str, Sequence[Sweep]]", launch: Launch, together: Together | None, results: Path, reports: Path
) -> "list[PaperStudy]":
    """Run every experiment, say how long the rest will take by what the launches so far took, and return them."""
    from harness.analysis import numbers
    from harness.report.paper_sections import PaperStudy
    from harness.sweep.plan import format_seconds

    studies = []
    begin, done, total = time.monotonic(), 0, sum(map(_launches, plans.values()))
    for number, (name, sweeps) in enumerate(plans.items(), start=1):
        workload = sweeps[0].workload
        cut = f"{workload.samples:,} rows, {numbers.plural(workload.epochs, 'epoch')}"
        left = format_seconds((time.monotonic() - begin) / done * (total - done)) if done else ""
        click.echo(f"experiment {number} of {len(plans)}: {name}, {cut}{f'; about {left} left of all' if done else ''}")
        problem = _run(sweeps, launch, together)
        folders = tuple(results / sweep.name for sweep in sweeps)
        _report(folders[0], reports)
        studies.append(PaperStudy(experiment=name, folders=folders, problem=problem))
        done += _launches(sweeps)
    return studies


def _launches(sweeps: "Sequence[Sweep]") -> int:
    return sum(sweep.repeats * len(sweep.layouts) for sweep in sweeps)


def _layouts(options: dict[str, Any], submission: "Submission", claims: "Sequence[Claim]") -> "tuple[Layout, ...]":
    """Return the layouts that can run; on one machine, if none are asked for, also at the rank counts of `claims`.

    What cannot run is told. Where nothing can, all are returned: running them is refused with the reason.
    """
    from harness.base.cores import usable_cores
    from harness.claims.campaign import rank_counts
    from harness.sweep.plan import divide

    asked = dict(options)
    if submission.scheduler == "local" and not any(options[name] for name in ("nodes", "cores", "gpus")):
        asked["nodes"] = ",".join(map(str, rank_counts(usable_cores(), claims)))
    layouts, refused = build_layouts(asked, submission)
    scheduler = submission.open(oversubscribe=options["oversubscribe"])
    runnable, skipped = divide(layouts, scheduler.refusal)
    for sentence in (*refused, *(f"{one.layout}: {one.reason}" for one in skipped)):
        click.echo(f"not run: {sentence}")
    return runnable or layouts


def _run(sweeps: "Sequence[Sweep]", launch: Launch, together: Together | None) -> str:
    """Run the sweeps of one experiment and return what failed; that keeps no other launch from running.

    `together` trains them all in turns: on this machine, not in a queue.
    """
    if together is not None:
        missing = together(sweeps)
        return f"{missing} of {_launches(sweeps)} launches failed, or have no valid times" if missing else ""
    problems = []
    for sweep in sweeps:
        try:
            launch(sweep)
        except RunError as error:
            problems.append(str(error))
    return "; ".join(dict.fromkeys(problems))


def _tell_time(plans: "Mapping[str, Sequence[Sweep]]", cut: "Mapping[str, Sequence[Sweep]]", launch: Launch) -> None:
    """Say how long `plans` will take, estimated from the first launches of the `cut` ones, which run if they have not.

    Raises:
        RunError: one of them failed, so that nothing is known.
    """
    from harness.analysis.frames import launch_frame
    from harness.analysis.read_results import load_sweep
    from harness.claims.campaign import quick, seconds_of
    from harness.sweep.plan import format_seconds

    total, launches, tried = 0.0, 0, 0
    for name, sweeps in plans.items():
        click.echo(f"estimating {name} from quick launches")
        for sweep, short in zip(sweeps, quick(cut[name]), strict=True):
            loaded = load_sweep(launch(short))
            total += seconds_of(sweep, launch_frame(loaded.runs, loaded.epochs))
            launches += sweep.repeats * len(sweep.layouts)
            tried += len(loaded.runs)
    click.echo(
        f"FULL=1: {launches} launches, {format_seconds(total)} one after the other if none is done yet, "
        f"estimated from {tried} quick ones; Ctrl-C stops it, the same command goes on"
    )


def _report(folder: Path, reports: Path) -> None:
    """Draw the report of the sweep in `folder`, if it has a launch."""
    from harness.report.sweep_page import report_sweep

    if any(folder.glob("*/run.json")):
        report_sweep(folder, reports)
