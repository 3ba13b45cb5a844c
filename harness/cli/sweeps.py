"""`harness sweep`, the main job, from data to a report; status, cancel, report, explain and trace of what is there."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import RunError, UserError
from harness.base.files import write_atomic
from harness.base.user_path import UserPath
from harness.cli import common
from harness.cli.first_use import fetch_for
from harness.cli.options import (
    approval,
    batch_options,
    build_layouts,
    build_submission,
    build_workload,
    find_recorded,
    find_sweep,
    find_sweeps,
    layout_options,
    parse_counts,
    workload_options,
)
from harness.cli.repeat import redrawn
from harness.report.answer import Answer, Banner, plain
from harness.schema.record import read_run
from harness.schema.sweep import Point
from harness.schema.sweep_folder import LaunchFolder, SweepFolder

if TYPE_CHECKING:
    from harness.analysis.stats import Interval
    from harness.sweep.status import LaunchStatus, Status
    from harness.sweep.sweep_command import SweepPlan


_MOST = 24  # repeats
_LOOKS = (3, 6, 9, 12, 18)  # after which it is asked whether the intervals are narrow
_CONFIRMING = 2  # blocks that are made after they were
_NARROW = 0.02  # half the width of a speedup's 95 % interval, of its logarithm, from `_ENOUGH_BLOCKS` on
_ENOUGH_BLOCKS = 6
_NARROW_OF_FEW = 0.01  # the same of fewer blocks
_LONGEST_S = 360  # of a sweep that is made until its speedups are that certain
_MOST_POINTS, _MOST_FINDINGS = 4, 5  # in a terminal


@click.command(name="sweep", cls=common.GroupedCommand)
@workload_options
@layout_options
@common.spread(
    "--repeats",
    common=True,
    type=int,
    help="Launches of each layout; fewer than 6 give no interval [default: 6, and in turns on this machine up to 24, "
    "until the speedup's interval is within 2 % or 6 minutes are over].",
)
@common.spread("--scaling", default="strong", show_default=True, help="strong (the same rows) or weak (rows per rank).")
@common.spread("--oversubscribe", is_flag=True, help="Run layouts with more ranks than cores: never valid for timing.")
@common.spread("--tuned", is_flag=True, help="Sum gradients in the way that `harness probe` found fastest here.")
@common.written("--dry-run", common=True, is_flag=True, help="Write the scripts, print the table, launch nothing.")
@common.written(
    "--predict-first", is_flag=True, help="Store a prediction before the first launch; the report scores it."
)
@common.written(
    "--network",
    help="Between nodes, for predictions: ALPHA,BETA or a probe.json [default: with PREDICT_FIRST=1 the newest probe].",
)
@batch_options
@common.folder_options
@common.answering
def sweep(dry_run: bool, results: Path, reports: Path, data_dir: Path | None, **options: Any) -> Answer:
    """Plan, launch, collect and report a scaling study; the last line is the report's path.

    On one machine a core stands for a node; where Slurm or PBS is, every launch is a job of its own. The same
    command again runs only what is missing or failed. Exit code 0: there is an answer; 1: launches failed; 2: bad
    input; 3: launches ran, and the times of none are valid.
    """
    from harness.analysis.stats import FEWEST_BLOCKS, NEEDED
    from harness.cli.predict import find_network
    from harness.sweep.execute import run_sweep, write_scripts
    from harness.sweep.plan import build_sweep

    workload = build_workload(options)
    submission, why = build_submission(options)
    layouts, refused = build_layouts(options, submission)
    turns = submission.scheduler == "local" and submission.request.shape == "block"
    if not options["container"]:
        common.check_mpi()
    fetch_for(workload, data_dir)
    repeats = options["repeats"]
    if repeats is None:
        repeats = FEWEST_BLOCKS if turns else NEEDED
    settings: tuple[tuple[str, str], ...] = ()
    if options["tuned"]:
        from harness.probe.probe_store import tuned_settings

        settings, sentence = tuned_settings(workload, results)
        click.echo(sentence)
    sweep = build_sweep(
        workload,
        layouts=layouts,
        data_dir=data_dir,
        settings=settings,
        scheduler=submission.scheduler,
        repeats=repeats,
        **{name: options[name] for name in ("scaling", "oversubscribe")},
    )
    network = find_network(options["network"], results) if options["network"] else None
    if submission.scheduler != "local" or options["scheduler"] != "auto":
        click.echo(why)
    for sentence in refused:
        click.echo(f"not run: {sentence}")
    if options["predict_first"]:
        from harness.prediction.forecast import predict_first

        known = network or find_network(None, results)
        if known is None:
            raise UserError("--predict-first needs a network: run `harness probe` first, or give --network ALPHA,BETA")
        click.echo(f"prediction: {predict_first(sweep, results, *known)}")
    if dry_run:
        return _planned(write_scripts(sweep, data_dir=data_dir, results=results, submission=submission))
    from harness.report.sweep_page import report_sweep

    enough = _until_narrow() if turns and options["repeats"] is None else None
    folder, problem = results / sweep.name, ""
    try:
        run_sweep(
            sweep, data_dir=data_dir, results=results, submission=submission, approve=approval(options), enough=enough
        )
    except RunError as error:
        if not SweepFolder(folder).has_records:  # all of them failed
            raise
        problem = str(error)
    return replace(report_sweep(folder, reports, network=network, keep=True), problem=problem)


def _until_narrow() -> Callable[[Path], int]:
    """Return what `run_sweep` asks after each part of a sweep: how many repeats there shall be."""
    begun = monotonic()

    def repeats(folder: Path) -> int:
        from harness.analysis.frames import launch_frame
        from harness.analysis.read_results import load_sweep
        from harness.analysis.scaling import scale

        loaded = load_sweep(folder)
        launches = launch_frame(loaded.runs, loaded.epochs)
        there, scaling = int(launches["repeat"].max()) + 1, scale(launches)
        points = [point for point in scaling.others if point.blocks] if scaling else []
        widest = max((_log_reach(point.speedup_interval) for point in points), default=0.0)
        wanted = next_repeats(widest, there, monotonic() - begun)
        if wanted > there:
            known = f"within {widest:.1%}" if math.isfinite(widest) else "without an interval"
            click.echo(f"the speedup is known {known} after {there} blocks: {wanted - there} more")
        return wanted

    return repeats


def _log_reach(interval: "Interval | None") -> float:
    """Return half the width of a ratio's interval, of the logarithm; infinite where there is none."""
    return math.log(interval.high / interval.low) / 2 if interval else math.inf


def next_repeats(reach: float, there: int, seconds: float) -> int:
    """Return how many repeats a sweep shall have whose `there` repeats took so many `seconds`; `there`: it ends.

    `reach` is half the width of its widest speedup's interval, of the logarithm. To stop where an interval happens to
    be narrow costs some of its coverage. So two more blocks are made after it is narrow, and intervals of few blocks
    must be the narrower: of intervals of 95 %, 93 to 95 % hold the truth, by
    simulation (tests/analysis/test_turn_blocks.py).
    """
    if there - _CONFIRMING in _LOOKS:
        return there
    narrow = _NARROW if there >= _ENOUGH_BLOCKS else _NARROW_OF_FEW
    wanted = there + _CONFIRMING
    if reach > narrow:
        wanted = min((look for look in _LOOKS if look > there), default=_MOST)
    late = seconds * wanted > _LONGEST_S * there
    return there if late else max(there, min(wanted, _MOST))


def _planned(plan: "SweepPlan") -> Answer:
    from harness.analysis.numbers import plural
    from harness.sweep.progress import Pace

    name = Pace(plan.points).name
    launches: list[tuple[Point, ...]] = []
    for job in plan.jobs:
        launches += [job.points] if job.shape == "block" else [(point,) for point in job.points]
    for number, points in enumerate(launches, start=1):
        cores = max(point.layout.cores for point in points)
        click.echo(f"{number:4}  {name(*points)}: {plural(cores, 'core')}")
    scripts = SweepFolder(plan.folder).jobs
    return Answer(
        sentence=f"in this order, by scripts in {scripts}", data={"launches": plan.missing, "scripts": scripts}
    )


_TAIL_LINES = 3


@click.command()
@common.sweep_argument
@common.results_option
@common.answering
def status(sweep: str | None, results: Path) -> Answer:
    """Tell what is done, running, failed, missing and skipped of every sweep whose name begins with SWEEP."""
    from harness.sweep.status import read_status

    found = []
    for folder in find_sweeps(sweep, results):
        found.append(read_status(folder))
        _print(found[-1], folder, whole=sweep is not None)
    counts = {one.name: Counter(entry.state for entry in one.entries) for one in found}
    return Answer(sentence="", data={"counts": counts, "sweeps": found})


@click.command()
@common.sweep_argument
@common.results_option
def cancel(sweep: str | None, results: Path) -> None:
    """End the queued and running launches of SWEEP (the newest if none is named); finished records are kept."""
    from harness.sweep import execute

    folder = find_sweep(sweep, results)
    launches, waited_for = execute.cancel(folder)
    more = "; the command that waits for them takes them in" if waited_for else ""
    click.echo(f"{folder.name}: cancelled {launches} launches{more}")


@click.command()
@click.argument("sweep", nargs=-1, metavar="[SWEEP]...")
@common.folder_options
@click.option("--base", type=click.IntRange(min=1), help="Rank count that ratios are over [default: the smallest].")
@common.style_option
@click.option("--together", is_flag=True, help="One page that sets the SWEEPs side by side, such as sync policies.")
@click.option("--target", type=click.FloatRange(0, 1), help="With --together: test accuracy to reach, such as 0.97.")
@click.option("--from", "bundled", type=UserPath(), help="Draw a bundle's pages again and compare.")
@common.answering
def report(
    sweep: tuple[str, ...],
    results: Path,
    reports: Path,
    base: int | None,
    style: str,
    together: bool,
    target: float | None,
    bundled: Path | None,
) -> Answer:
    """Draw the report of each SWEEP from its records, of the newest if none is named.

    With --from it does nothing else: exit code 1 if a file is not the bundle's byte for byte.
    """
    if bundled is not None:
        return redrawn(bundled, reports)
    folders = [find_sweep(name, results) for name in sweep or (None,)]
    if together:
        from harness.report.policies_page import policies_answer

        return policies_answer(folders, reports, target)
    from harness.report.sweep_page import report_sweep

    answers = [report_sweep(folder, reports, base=base, style=style) for folder in folders]
    for answer in answers[:-1]:
        warnings = "".join(f"{banner.kind}: {banner.text}\n" for banner in answer.banners)
        click.echo(f"{plain(common.told(warnings + answer.sentence))}\n{answer.page}\n")
    pages = [answer.page for answer in answers]
    return replace(answers[-1], data={**answers[-1].data, "pages": pages}, code=0)


def _print(status: "Status", folder: Path, *, whole: bool) -> None:
    """Print a sweep: one line if it is done and not asked for, else every launch, equal ones in one line."""
    from harness.sweep.plan import format_seconds

    states = ("done", "invalid", "queued", "running", "ended", "unknown", "failed", "missing")
    counts = ", ".join(f"{status.count(state)} {state}" for state in states if status.count(state))
    counts += f" ({status.other_code} more ran a different code version)" if status.other_code else ""
    left = f", about {format_seconds(status.left)} left" if status.left is not None else ""
    at_work = status.active or status.count("queued", "running")
    click.echo(f"{status.name}: {counts}{left}{'' if at_work else ' (nothing runs now)'}")
    if not whole and not at_work and status.count("done") == len(status.entries) and not status.skipped:
        return
    for entry, repeats in _group_entries(status.entries):
        detail = f": {entry.detail}" if entry.detail else ""
        click.echo(f"  {entry.state:8} {entry.point.layout}, {repeats}{detail}")
        if entry.state == "failed":
            for line in entry.tail.splitlines()[-_TAIL_LINES:]:
                click.echo(f"           | {line}")
            click.echo(f"           log: {SweepFolder(folder).log(entry.point.folder)}")
    for skipped in status.skipped:
        click.echo(f"  skipped  {skipped.layout}: {skipped.reason}")
    if status.active or not status.command:
        return
    if status.count("ended", "queued", "running"):
        click.echo("  no command waits for these launches; this one takes them in and launches what is missing:")
    elif status.to_launch:
        click.echo("  this command launches again what failed, is missing or has no valid times:")
    else:
        return
    for line in status.command.splitlines():
        click.echo(f"    {common.told(f'`{line}`').strip('`')}")


def _group_entries(entries: "Iterable[LaunchStatus]") -> "list[tuple[LaunchStatus, str]]":
    """Return one entry for all of the same layout and state with the same detail, and which launches in words."""
    groups: dict[object, list[LaunchStatus]] = {}
    for entry in entries:
        own = entry.point.folder if entry.state == "failed" else ""  # each has a log of its own
        groups.setdefault((entry.point.layout, entry.state, entry.detail, own), []).append(entry)
    return [(group[0], _numbers(sorted(entry.point.repeat + 1 for entry in group))) for group in groups.values()]


def _numbers(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"launch {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"launches {numbers[0]} to {numbers[-1]}"
    return f"launches {', '.join(map(str, numbers))}"


@click.command()
@common.sweep_argument
@click.option("--base", type=click.IntRange(min=1), help="Rank count that ratios are over [default: the smallest].")
@common.style_option
@common.folder_options
@common.answering
def explain(sweep: str | None, base: int | None, results: Path, **_: object) -> Answer:
    """Say why SWEEP (the newest if none is named) does not scale.

    Prints POP's tree of efficiencies for every point and the overheads of the largest one: what it takes beyond the
    ideal time, by cause. The last line is the page's path.
    """
    from harness.report.explain_page import explain_answer, tree_table
    from harness.why.known_causes import diagnose_sweep
    from harness.why.overheads import explain_sweep

    folder = find_sweep(sweep, results)
    found = explain_sweep(folder, base)
    for sentence in found.loaded.damaged:
        click.echo(f"left out: {sentence}", err=True)
    common.print_table(*tree_table(found.efficiencies, most=_MOST_POINTS))
    click.echo(found.network)
    findings = diagnose_sweep(found.loaded)
    for finding in findings[:_MOST_FINDINGS]:
        click.echo(f"{finding.cause} ({finding.launches} of {finding.of} launches): {finding.evidence} {finding.fix}")
    if len(findings) > _MOST_FINDINGS:
        click.echo(f"The page has {len(findings) - _MOST_FINDINGS} more known causes.")
    command = shlex.join(["harness", "explain", folder.name, *(["--base", str(base)] if base else [])])
    return explain_answer(found, findings, command)


@click.command()
@click.argument("sweep", required=False, metavar="[LAUNCH|SWEEP]")
@click.option("--epochs", metavar="COUNTS", help="Epochs to draw, such as 1..3 [default: all].")
@click.option("--output", type=UserPath(), help="The file [default: REPORTS/traces/LAUNCH.json.gz].")
@common.folder_options
@common.answering
def trace(sweep: str | None, epochs: str | None, output: Path | None, results: Path, reports: Path) -> Answer:
    """Write what every rank of LAUNCH did when, on one clock, as a Chrome trace.

    Steps, allreduces with their wait and wire, input, evaluation, set-up and epochs; arrows lead from the last rank
    that came to an allreduce to those that waited for it. Of a SWEEP (the newest if none is named) the valid launch of
    median time on the most ranks is taken. Open the file in ui.perfetto.dev.
    """
    from harness.analysis.frames import launch_frame, middle_launch
    from harness.analysis.numbers import plural as counted
    from harness.analysis.read_results import load_sweep, read_calls
    from harness.analysis.trace import trace_events, trace_file

    folder = find_recorded(sweep, results)
    if not LaunchFolder(folder).is_recorded:
        loaded = load_sweep(folder)
        if not loaded.valid:
            raise UserError(f"sweep '{folder}' has no valid launch: name a launch's folder, or sweep again")
        folder = folder / middle_launch(launch_frame(loaded.runs, loaded.epochs))
        click.echo(f"harness: of {loaded.folder.name} the middle launch on most ranks: {folder.name}", err=True)
    run = read_run(folder)
    numbers = [count - 1 for count in parse_counts("--epochs", epochs)] if epochs else None
    content = trace_file(run, trace_events(run, read_calls(folder, run), numbers))
    path = output or reports / "traces" / f"{run.point.folder}.json.gz"
    write_atomic(path, content)
    counts = (counted(len(run.ranks), "rank"), counted(len(numbers or run.epochs), "epoch"))
    calls = "" if len(run.ranks) > 1 else " One rank alone makes no allreduce, which is what separates steps."
    return Answer(
        banners=[Banner(kind="warning", text=f"Its times are not valid: {reason}.") for reason in run.invalid],
        sentence=f"{', '.join(counts)}, {len(content) / 1e3:,.0f} kB: drop it on ui.perfetto.dev.{calls}",
        page=path,
    )
