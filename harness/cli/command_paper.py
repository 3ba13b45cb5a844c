"""``harness paper``: the papers' experiments at the core counts that this machine has."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.cores import usable_cores
from harness.base.errors import RunError, unknown
from harness.base.files import resource
from harness.cli.answer_output import answering
from harness.cli.command_claims import judge_all_claims, judged_answer
from harness.cli.common_options import (
    GroupedCommand,
    context_options,
    given_command,
    mpi_option,
    names_in,
    option_group,
    take,
)
from harness.cli.first_use import fetch_small_set
from harness.cli.launch_options import BatchOptions, approval, batch_options, build_submission
from harness.cli.terminal import echo
from harness.cli.training_options import LayoutOptions, build_layouts, layout_options
from harness.report.answer import Answer, Table
from harness.schema.claim import CLAIMS_FILE, EXPERIMENTS, Claim, read_published
from harness.schema.layout import Layout
from harness.schema.presets import PRESETS
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from harness.report.experiment_results import PaperStudy
    from harness.sweep.job_cost import NodeHours
    from harness.sweep.submission_settings import Submission

Run = Callable[[Sequence[Sweep]], str]
"""Runs the sweeps of one experiment and returns what failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperOptions:
    """What the command line of `harness paper` asks for; the options' help says what each is."""

    layouts: LayoutOptions
    batch: BatchOptions
    workloads: str | None
    preset: str | None
    repeats: int | None
    epochs: int | None
    samples: int | None
    full: bool
    oversubscribe: bool
    dry_run: bool


@click.command(
    name="paper",
    cls=GroupedCommand,
    brief=(
        "--workloads",
        "--preset",
        "--repeats",
        "--epochs",
        "--samples",
        "--full",
        "--nodes",
        "--ranks-per-node",
        "--scheduler",
        "--dry-run",
        "--results",
        "--reports",
        "--json",
    ),
    examples=(
        "harness paper",
        "harness paper --workloads mnist-dnn,mnist-cnn --nodes 1,2",
        "harness paper --full --nodes 1..8",
    ),
)
@click.option("--workloads", help="Some of the seven, such as mnist-dnn,mnist-cnn [default: all].")
@click.option(
    "--preset", metavar="|".join(PRESETS), help="Training settings by name [default: the paper's, of March 2016]."
)
@click.option(
    "--repeats", type=click.IntRange(min=1), help="Interleaved launches; 3 give intervals [default: 3, with --full 6]."
)
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs of every experiment, instead of its own number.")
@click.option("--samples", type=click.IntRange(min=1), help="Most training samples of every experiment.")
@click.option("--full", is_flag=True, help="All samples, all epochs, 6 launches.")
@layout_options
@click.option("--oversubscribe", is_flag=True, help="Run layouts with more ranks than cores: what they learn counts.")
@click.option("--dry-run", is_flag=True, help="Print what would be launched, fetch and launch nothing.")
@batch_options
@context_options("data_dir", "results", "reports", measures=True)
@option_group("options", partial(take, PaperOptions))
@answering
@mpi_option
def paper_command(options: PaperOptions, context: Context) -> Answer:
    """Repeat paper A's seven experiments: weights averaged once per epoch, every K steps, gradients each step.

    On one machine all of an experiment trains interleaved, in 3 blocks, which give intervals. By default rows and
    epochs are cut so that all of it ends within about 15 minutes on 2 cores. The same command again runs only what is
    missing. The last line is the page's path: printed, measured and predicted, and the verdicts on the paper's claims.
    """
    from harness.report.experiment_results import PAPER

    published = read_published(resource(CLAIMS_FILE))
    names = names_in(options.workloads or "") or tuple(EXPERIMENTS)
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown("workload", name, EXPERIMENTS)
    submission, reason = build_submission(options.batch)
    layouts = _layouts(options, submission, published.of(PAPER))
    plan = partial(_plan, layouts=layouts, scheduler=submission.scheduler, data_dir=context.data_dir, options=options)
    # Only what has been checked is worth a download.
    planned = [sweep for name in names for sweep in plan(name)]
    if options.dry_run:
        return _planned(planned)
    for name in names:
        fetch_small_set(EXPERIMENTS[name].dataset, context.data_dir)
    # All plans first: a damaged file ends the command before anything runs.
    plans = {name: plan(name) for name in names}
    if submission.scheduler != "local" or options.batch.scheduler != "auto":
        echo(reason)
    run = partial(_run, context=context, submission=submission, approve=approval(options.batch))
    studies = _run_all(plans, run, context)
    answer = judged_answer(judge_all_claims(context), context, given_command(), ran=studies)
    return _of_experiments(answer, names, studies, context)


def _plan(
    name: str, layouts: tuple[Layout, ...], scheduler: str, data_dir: Path | None, options: PaperOptions
) -> tuple[Sweep, ...]:
    """Return the sweeps of the experiment `name`, as large as the command line's `options` ask for."""
    from harness.claims.paper_experiments import PRESET, ExperimentSize, plan_experiments

    sweeps = plan_experiments(
        EXPERIMENTS[name],
        layouts=layouts,
        preset=options.preset or PRESET,
        size=ExperimentSize(full=options.full, repeats=options.repeats, epochs=options.epochs, samples=options.samples),
        data_dir=data_dir,
        oversubscribe=options.oversubscribe,
    )
    return tuple(replace(sweep, scheduler=scheduler) for sweep in sweeps)


def _planned(sweeps: Sequence[Sweep]) -> Answer:
    """Return what would be launched, a row for each of the `sweeps`."""
    rows = []
    for sweep in sweeps:
        workload = sweep.workload
        ranks = ",".join(str(layout.ranks) for layout in sweep.layouts)
        numbers = (workload.samples, workload.epochs, _launches([sweep]))
        rows.append((workload.name, workload.sync, ranks, *map(str, numbers)))
    headings = ("Experiment", "Sync policy", "Ranks", "Samples", "Epochs", "Launches")
    launches = _launches(sweeps)
    return Answer(
        sentence=f"{launches} launches of {len(sweeps)} sweeps; nothing was launched",
        table=Table(title="", headings=headings, rows=rows),
        data={"launches": launches, "sweeps": [sweep.name for sweep in sweeps]},
    )


def _of_experiments(answer: Answer, names: Sequence[str], studies: "Sequence[PaperStudy]", context: Context) -> Answer:
    """Return the claims' `answer` with the table of the experiments called `names` alone, and what failed in them."""
    from harness.report.claims_answer import FOLDER
    from harness.report.html_pages import PAGE

    failed = [study.experiment for study in studies if study.problem]
    problem = f"launches failed in {', '.join(failed)}: the same command again runs only what failed"
    table = next(block for block in answer.sections[0].elements if isinstance(block, Table))
    rows = [row for row in table.rows if str(row[0]) in names]
    experiments = [{"name": str(name), "measured": list(map(str, measured))} for name, *measured in rows]
    return replace(
        answer,
        table=replace(table, rows=rows, title="", note=""),
        data={"experiments": experiments, "claims": context.reports / FOLDER / PAGE},
        problem=problem if failed else "",
    )


def _run_all(plans: Mapping[str, Sequence[Sweep]], run: Run, context: Context) -> "list[PaperStudy]":
    """Run every experiment, say how long the rest will take by what the launches so far took, and return them."""
    from harness.analysis import units
    from harness.report.experiment_results import PaperStudy
    from harness.report.sweep_answer import report_sweep
    from harness.sweep.plan import format_seconds

    studies = []
    begin = time.monotonic()
    done = 0
    total = sum(map(_launches, plans.values()))
    for number, (name, sweeps) in enumerate(plans.items(), start=1):
        workload = sweeps[0].workload
        cut = f"{workload.samples:,} rows, {units.plural(workload.epochs, 'epoch')}"
        left = ""
        if done:
            left = f"; about {format_seconds((time.monotonic() - begin) / done * (total - done))} left of all"
        context.say(f"experiment {number} of {len(plans)}: {name}, {cut}{left}")
        problem = run(sweeps)
        folders = tuple(context.results / sweep.name for sweep in sweeps)
        if SweepFolder(folders[0]).has_records:
            report_sweep(folders[0], context.reports)
        studies.append(PaperStudy(experiment=name, folders=folders, problem=problem))
        done += _launches(sweeps)
    return studies


def _launches(sweeps: Sequence[Sweep]) -> int:
    return sum(sweep.repeats * len(sweep.layouts) for sweep in sweeps)


def _layouts(options: PaperOptions, submission: "Submission", claims: Sequence[Claim]) -> tuple[Layout, ...]:
    """Return the layouts that can run; on one machine, if none are asked for, also at the rank counts of `claims`.

    A line says what cannot run. Where nothing can, all are returned: running them is refused with the reason.
    """
    from harness.claims.paper_experiments import rank_counts
    from harness.sweep.plan import split_runnable

    asked = options.layouts
    if submission.scheduler == "local" and not (asked.nodes or asked.cores or asked.gpus):
        asked = replace(asked, nodes=",".join(map(str, rank_counts(usable_cores(), claims))))
    layouts, refused = build_layouts(asked, submission, oversubscribe=options.oversubscribe)
    scheduler = submission.open(oversubscribe=options.oversubscribe)
    runnable, skipped = split_runnable(layouts, scheduler.refusal)
    for sentence in (*refused, *(f"{skip.layout}: {skip.reason}" for skip in skipped)):
        echo(f"not run: {sentence}")
    return runnable or layouts


def _run(
    sweeps: Sequence[Sweep], context: Context, submission: "Submission", approve: "Callable[[NodeHours], None]"
) -> str:
    """Run the sweeps of one experiment and return what failed; that keeps no other launch from running.

    On this machine all of them train interleaved, in a queue they do not.
    """
    from harness.sweep.execute import run_sweep, run_together

    if submission.scheduler == "local":
        missing = run_together(sweeps, context, submission)
        return f"{missing} of {_launches(sweeps)} launches failed, or have no valid times" if missing else ""
    problems = []
    for sweep in sweeps:
        try:
            run_sweep(sweep, context, submission, approve=approve)
        except RunError as error:
            problems.append(str(error))
    return "; ".join(dict.fromkeys(problems))
