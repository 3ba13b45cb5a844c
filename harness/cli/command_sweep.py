"""``harness sweep``, the main job: plan, launch, collect and report a scaling study."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.current_user import UserPath
from harness.base.errors import RunError, UserError
from harness.base.removal import check_folder
from harness.base.setting_names import setting
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import (
    GroupedCommand,
    NumberRange,
    context_options,
    mpi_option,
    option_group,
    refuse_bad_mpi,
    spread,
    take,
    written,
)
from harness.cli.first_use import fetch_for
from harness.cli.launch_options import BatchOptions, approval, batch_options, build_submission
from harness.cli.study_file import read_study_options
from harness.cli.terminal import echo
from harness.cli.training_options import (
    LayoutOptions,
    WorkloadOptions,
    build_layouts,
    build_workload,
    layout_options,
    workload_options,
)
from harness.report.answer import Answer
from harness.schema.point import Point
from harness.schema.presets import usual_scaling
from harness.schema.sweep import USUAL_MINUTES, USUAL_WIDTH, Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.schema.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.prediction.network_cost import Uncertain
    from harness.sweep.planned_launches import SweepPlan
    from harness.sweep.submission_settings import Submission

MOST_BLOCKS = 24  # of a job of a batch system, which its time limit may end before
_WIDEST = 0.5  # what WIDTH may be at most: such an interval says next to nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepOptions:
    """What the command line of `harness sweep` asks for; the options' help says what each is."""

    workload: WorkloadOptions
    layouts: LayoutOptions
    batch: BatchOptions
    repeats: int | None
    budget: float | None
    width: str | None
    scaling: str | None
    oversubscribe: bool
    tuned: bool
    dry_run: bool
    network: str | None


@click.command(
    name="sweep",
    cls=GroupedCommand,
    brief=(
        "--dataset",
        "--data",
        "--model",
        "--script",
        "--batch-per-rank",
        "--global-batch",
        "--epochs",
        "--samples",
        "--nodes",
        "--ranks-per-node",
        "--repeats",
        "--site",
        "--dry-run",
    ),
    examples=(
        "harness sweep --dataset mnist --nodes 1..2",
        "harness sweep --dataset higgs --nodes 1..8 --global-batch 64 --dry-run",
        "harness sweep --script train.py --nodes 1,2,4",
    ),
)
@click.argument(
    "study", type=UserPath(), required=False, is_eager=True, expose_value=False, callback=read_study_options
)
@workload_options
@layout_options
@spread(
    "--repeats",
    common=True,
    type=int,
    help="Launches of each layout [default: interleaved 3 blocks and more, until --width or --budget ends it, or on a "
    "cluster 24 blocks or the time limit; else 6; an interval needs 3].",
)
@spread(
    "--budget",
    type=NumberRange(min=0, min_open=True),
    metavar="MINUTES",
    help="Minutes after which no block beyond the third begins on this machine [default: 6].",
)
@spread(
    "--width", metavar="PERCENT%", help="Half the width of a speedup's interval at which it is enough [default: 2%]."
)
@spread(
    "--scaling",
    metavar="strong|weak",
    help="strong: the same samples; weak: as many for each rank [default: strong, with --preset jupiter weak].",
)
@spread("--oversubscribe", is_flag=True, help="Run layouts with more ranks than cores: never valid for timing.")
@spread("--tuned", is_flag=True, help="Sum gradients in the way that `harness probe` found fastest here.")
@written("--dry-run", common=True, is_flag=True, help="Write the scripts, print the table, launch nothing.")
@written(
    "--network",
    metavar="ALPHA,BETA|FILE",
    help="Between nodes, for predictions of counts that cannot run here; FILE: a probe.json.",
)
@batch_options
@format_options
@context_options("results", "reports", "data_dir", measures=True)
@option_group("options", partial(take, SweepOptions))
@answering
@mpi_option
def sweep_command(options: SweepOptions, context: Context) -> Answer:
    """Plan, launch, collect and report a scaling study; the last line is the report's path.

    On one machine a core stands for a node; where Slurm, PBS or Flux is, all node counts train in one job. The same
    command again runs only what is missing or failed. STUDY is a .toml file of these options; those of the command
    line come first. Exit code 0: there is an answer; 1: launches failed; 2: bad input; 3: launches ran, and the times
    of none are valid.
    """
    from harness.prediction.network_cost import read_links
    from harness.sweep.execute import write_scripts

    workload = build_workload(options.workload)
    submission, reason = build_submission(options.batch)
    _refuse_limits(options, submission)
    if submission.in_turns and options.repeats is None and submission.request.allocations == 1:
        submission = replace(submission, most_blocks=MOST_BLOCKS, width=parse_width(options.width))
    sweep, refused = _build(workload, submission, context, options)
    network = read_links(options.network) if options.network else None
    echo(reason)
    for sentence in refused:
        echo(f"not run: {sentence}")
    if options.dry_run:
        return _planned(write_scripts(sweep, context, submission))
    return _run(sweep, submission, network, context, options)


def parse_width(text: str | None) -> float:
    """Return the part of one that `text`, such as ``2%``, is; the usual one of None.

    Raises:
        UserError: it is no percentage above 0 and up to 50 %.
    """
    if text is None:
        return USUAL_WIDTH
    number, sign, rest = text.partition("%")
    try:
        width = float(number) / 100
    except ValueError:
        width = math.nan
    if not sign or rest.strip() or not 0 < width <= _WIDEST:
        raise UserError(
            f"{setting('width', text)} is not a width: write a percentage up to {100 * _WIDEST:g}%, such as 2%"
        )
    return width


def _refuse_limits(options: SweepOptions, submission: "Submission") -> None:
    """Refuse a budget and a width where something else says how many blocks there are.

    Raises:
        UserError: naming what does.
    """
    limits = {"budget": options.budget, "width": options.width}
    words = [setting(name, limit) for name, limit in limits.items() if limit is not None]
    if not words:
        return
    asked = words[0]
    if options.repeats is not None:
        repeats = setting("repeats", options.repeats)
        raise UserError(f"{repeats} says how many launches there are: leave it out, or {asked}")
    if not submission.in_turns:
        repeats = setting("repeats")
        raise UserError(f"{asked} is for interleaved launches, these follow each other: say {repeats} instead")
    if submission.request.allocations > 1:
        allocations = setting("allocations", submission.request.allocations)
        raise UserError(f"{asked} is for one allocation, these are {allocations}")
    if options.budget is not None and submission.scheduler != "local":
        scheduler = setting("scheduler", submission.scheduler)
        walltime = setting("walltime")
        raise UserError(f"{asked} is for launches on this machine: a job of {scheduler} ends by {walltime}")


def _build(
    workload: Workload, submission: "Submission", context: Context, options: SweepOptions
) -> "tuple[Sweep, tuple[str, ...]]":
    """Return the sweep of `workload` that the command line describes, and why combinations of its lists cannot be."""
    from harness import datasets
    from harness.analysis.confidence_intervals import FEWEST_BLOCKS, FEWEST_LAUNCHES

    layouts, refused = build_layouts(options.layouts, submission, oversubscribe=options.oversubscribe)
    if not options.batch.request["container"]:
        refuse_bad_mpi()
    repeats = options.repeats
    if repeats is None:
        repeats = FEWEST_LAUNCHES
        if submission.in_turns:
            repeats = FEWEST_BLOCKS * submission.request.allocations
    settings: tuple[tuple[str, str], ...] = ()
    if options.tuned:
        from harness.probe.tuning import tuned_settings

        settings, sentence = tuned_settings(workload, context.results)
        echo(sentence)
    sweep = Sweep(
        workload=workload,
        layouts=layouts,
        data_id="",
        settings=settings,
        scheduler=submission.scheduler,
        repeats=repeats,
        scaling=options.scaling or usual_scaling(workload.preset),
        oversubscribe=options.oversubscribe,
    )
    fetch_for(workload, context.data_dir)  # only what has been checked is worth a download
    return replace(sweep, data_id=datasets.locate(workload, context.data_dir).data_id), refused


def _run(
    sweep: "Sweep",
    submission: "Submission",
    network: "tuple[Uncertain, str] | None",
    context: Context,
    options: SweepOptions,
) -> Answer:
    """Launch what is missing of `sweep` and report it; the answer's problem says what failed.

    Raises:
        RunError: no launch has left a record or a failure.
    """
    from harness.report.sweep_answer import report_sweep
    from harness.sweep.execute import run_sweep

    enough = _enough(submission, options)
    folder = context.results / sweep.name
    problem = ""
    try:
        check_folder(context.reports / sweep.name, "report")
        run_sweep(sweep, context, submission, approve=approval(options.batch), enough=enough)
    except RunError as error:
        if not SweepFolder(folder).has_launches:  # none was started
            raise
        problem = str(error)
    return replace(report_sweep(folder, context.reports, network=network), problem=problem)


def _enough(submission: "Submission", options: SweepOptions) -> "Callable[[Path], int] | None":
    """Return what says how many repeats there shall be, None where the command line does, or a job looks for itself."""
    if submission.scheduler != "local" or not submission.in_turns or options.repeats is not None:
        return None
    from harness.cli.sweep_end import EndRule, until_known

    minutes = USUAL_MINUTES if options.budget is None else options.budget
    return until_known(EndRule(width=parse_width(options.width), budget_s=60 * minutes))


def _planned(plan: "SweepPlan") -> Answer:
    from harness.analysis.units import plural
    from harness.sweep.progress import Pace

    name = Pace(plan.wanted.points).name
    launches: list[tuple[Point, ...]] = []
    for job in plan.jobs:
        launches += job.needed_blocks if job.in_turns else [(point,) for point in job.points]
    for number, points in enumerate(launches, start=1):
        cores = max(point.layout.cores for point in points)
        echo(f"{number:4}  {name(*points)}: {plural(cores, 'core')}")
    scripts = SweepFolder(plan.wanted.folder).jobs
    sentence = f"in this order, by scripts in {scripts}" if launches else "all of them have been measured already"
    return Answer(sentence=sentence, data={"launches": plan.missing, "scripts": scripts})
