"""``harness sweep``, the main job: plan, launch, collect and report a scaling study."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.current_user import UserPath
from harness.base.errors import RunError
from harness.base.removal import check_folder
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import (
    GroupedCommand,
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
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.schema.workload import Workload

if TYPE_CHECKING:
    from harness.prediction.network_cost import Uncertain
    from harness.sweep.planned_launches import SweepPlan
    from harness.sweep.submission_settings import Submission

# How many repeats a sweep in turns shall have: until its speedups are known well enough.

_MOST = 24  # repeats
_LOOKS = (3, 6, 9, 12, 18)  # after which it is asked whether the intervals are narrow
_CONFIRMING = 2  # blocks that are made after they were
_NARROW = 0.02  # half the width of a speedup's 95 % CI, of its logarithm, from `_ENOUGH_BLOCKS` on
_ENOUGH_BLOCKS = 6
_NARROW_OF_FEW = 0.01  # the same of fewer blocks
_LONGEST_S = 360  # of a sweep that is made until its speedups are that certain


def until_narrow() -> Callable[[Path], int]:
    """Return what `run_sweep` asks after each part of a sweep: how many repeats there shall be."""
    begun = monotonic()

    def wanted_repeats(folder: Path) -> int:
        widest, repeats = widest_interval(folder)
        wanted = next_repeats(widest, repeats, monotonic() - begun)
        if wanted > repeats:
            certainty = f"within {widest:.1%}" if math.isfinite(widest) else "without an interval"
            echo(f"the speedup is known {certainty} after {repeats} blocks: {wanted - repeats} more")
        return wanted

    return wanted_repeats


def widest_interval(folder: Path) -> tuple[float, int]:
    """Return half the width of the widest interval of the sweep's speedups, of its logarithm, and how many repeats."""
    from harness.analysis.launch_frames import launch_frame
    from harness.analysis.read_results import load_sweep
    from harness.analysis.scaling import scale

    loaded = load_sweep(folder)
    launches = launch_frame(loaded.runs, loaded.epochs)
    repeats = int(launches["repeat"].max()) + 1
    scaling = scale(launches)
    widest = 0.0
    for point in scaling.others if scaling else ():
        interval = point.speedup_interval
        if point.blocks:
            widest = max(widest, math.log(interval.high / interval.low) / 2 if interval else math.inf)
    return widest, repeats


def next_repeats(reach: float, repeats: int, seconds: float) -> int:
    """Return how many repeats a sweep shall have of which `repeats` took `seconds`: the same number where it ends.

    `reach` is half the width of its widest speedup's interval, of the logarithm. To stop where an interval happens to
    be narrow costs some of its coverage. So two more blocks are made after it is narrow, and intervals of few blocks
    must be the narrower: of intervals of 95 %, 93 to 95 % hold the truth, by
    simulation (tests/analysis/test_turn_blocks.py).
    """
    if repeats - _CONFIRMING in _LOOKS:
        return repeats
    narrow = _NARROW if repeats >= _ENOUGH_BLOCKS else _NARROW_OF_FEW
    wanted = repeats + _CONFIRMING
    if reach > narrow:
        wanted = min((look for look in _LOOKS if look > repeats), default=_MOST)
    late = seconds * wanted > _LONGEST_S * repeats
    return repeats if late else max(repeats, min(wanted, _MOST))


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepOptions:
    """What the command line of `harness sweep` asks for; the options' help says what each is."""

    workload: WorkloadOptions
    layouts: LayoutOptions
    batch: BatchOptions
    repeats: int | None
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
    help="Launches of each layout [default: in turns 3 to 24 blocks, until the speedup's interval is within 2 %, "
    "6 minutes are over, or on a cluster the time limit; else 6; an interval needs 3].",
)
@spread("--scaling", help="strong (the same rows) or weak (rows per rank) [default: strong, with PRESET=jupiter weak].")
@spread("--oversubscribe", is_flag=True, help="Run layouts with more ranks than cores: never valid for timing.")
@spread("--tuned", is_flag=True, help="Sum gradients in the way that `harness probe` found fastest here.")
@written("--dry-run", common=True, is_flag=True, help="Write the scripts, print the table, launch nothing.")
@written(
    "--network",
    help="Between nodes, for predictions of counts that cannot run here: ALPHA,BETA or a probe.json.",
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
    if submission.in_turns and options.repeats is None and submission.request.allocations == 1:
        submission = replace(submission, most_blocks=_MOST)
    sweep, refused = _build(workload, submission, context, options)
    network = read_links(options.network) if options.network else None
    echo(reason)
    for sentence in refused:
        echo(f"not run: {sentence}")
    if options.dry_run:
        return _planned(write_scripts(sweep, context, submission))
    return _run(sweep, submission, network, context, options)


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

    is_here = submission.scheduler == "local"  # else the job itself looks at its speedups between blocks
    enough = until_narrow() if is_here and submission.in_turns and options.repeats is None else None
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
    return Answer(
        sentence=f"in this order, by scripts in {scripts}", data={"launches": plan.missing, "scripts": scripts}
    )
