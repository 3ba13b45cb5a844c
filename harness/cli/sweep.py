"""`harness sweep`: the main job, from data to a report."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import RunError, UserError
from harness.cli.answer import answering
from harness.cli.common import GroupedCommand, reports_option, results_option, setting
from harness.cli.options import (
    approval,
    batch_options,
    build_layouts,
    build_submission,
    build_workload,
    layout_options,
    workload_options,
)
from harness.report.answer import Answer, Table
from harness.schema.option import SPREAD, WRITTEN
from harness.schema.record import RUN_FILE

if TYPE_CHECKING:
    from harness.analysis.scaling import PointScaling
    from harness.schema.sweep import Sweep
    from harness.schema.workload import Workload
    from harness.sweep.execute import SweepPlan


NOTHING_VALID = 3  # exit code of a sweep whose launches ran and have no valid times


@click.command(name="sweep", cls=GroupedCommand)
@workload_options
@layout_options
@setting(
    "--repeats",
    group=SPREAD,
    common=True,
    type=int,
    default=6,
    show_default=True,
    help="Launches of each layout; fewer than 6 give no interval. mnist's 12 on 2 cores take about 3 minutes.",
)
@setting(
    "--scaling",
    group=SPREAD,
    default="strong",
    show_default=True,
    help="strong (the same rows) or weak (rows per rank).",
)
@setting(
    "--oversubscribe",
    group=SPREAD,
    is_flag=True,
    help="Run layouts with more ranks than cores: never valid for timing.",
)
@setting(
    "--tuned",
    group=SPREAD,
    is_flag=True,
    help="Sum gradients in the way that `harness probe` found fastest here.",
)
@setting(
    "--dry-run", group=WRITTEN, common=True, is_flag=True, help="Write the scripts, print the table, launch nothing."
)
@setting(
    "--predict-first",
    group=WRITTEN,
    is_flag=True,
    help="Store a prediction before the first launch; the report scores it.",
)
@setting(
    "--network",
    group=WRITTEN,
    help="For the prediction: ALPHA,BETA or a probe.json [default: this machine's newest probe].",
)
@batch_options
@results_option
@reports_option
@answering
def sweep(dry_run: bool, results: Path, reports: Path, data_dir: Path | None, **options: Any) -> Answer:
    """Plan, launch, collect and report a scaling study; the last line is the report's path.

    On one machine a core stands for a node; where Slurm or PBS is, every launch is a job of its own. The same
    command again runs only what is missing or failed. Exit code 0: there is an answer; 1: launches failed; 2: bad
    input; 3: launches ran, and the times of none are valid.
    """
    from harness.sweep.plan import build_sweep

    workload = build_workload(options)
    submission, why = build_submission(options)
    layouts, refused = build_layouts(options, submission)
    sweep = build_sweep(
        workload,
        layouts=layouts,
        data_dir=data_dir,
        settings=_tuned(workload, results) if options["tuned"] else (),
        **{name: options[name] for name in ("repeats", "scaling", "oversubscribe")},
    )
    if submission.scheduler != "local" or options["scheduler"] != "auto":
        click.echo(why)
    for sentence in refused:
        click.echo(f"not run: {sentence}")
    if options["predict_first"]:
        _predict(sweep, options["network"], results)
    if dry_run:
        from harness.sweep.execute import write_scripts

        return _planned(write_scripts(sweep, data_dir=data_dir, results=results, submission=submission))
    from harness.sweep.execute import run_sweep

    return run_and_answer(
        lambda: run_sweep(sweep, data_dir=data_dir, results=results, submission=submission, approve=approval(options)),
        results / sweep.name,
        reports,
    )


def _predict(sweep: "Sweep", network: str | None, results: Path) -> None:
    """Store the prediction of `sweep` beside its launches, and say where."""
    from harness.cli.predict import find_network
    from harness.prediction.forecast import predict_first

    found = find_network(network, results)
    if found is None:
        raise UserError("--predict-first needs a network: run `harness probe` first, or give --network ALPHA,BETA")
    click.echo(f"prediction: {predict_first(sweep, results, *found)}")


def _tuned(workload: "Workload", results: Path) -> tuple[tuple[str, str], ...]:
    from harness.probe.probe_store import tuned_settings

    settings, sentence = tuned_settings(workload, results)
    click.echo(sentence)
    return settings


def run_and_answer(run: Callable[[], Path], folder: Path, reports: Path) -> Answer:
    """Run the sweep and return what there is, also when some launches failed.

    Raises:
        RunError: all of them did.
    """
    problem = ""
    try:
        run()
    except RunError as error:
        if not any(folder.glob(f"*/{RUN_FILE}")):
            raise
        problem = str(error)
    return replace(sweep_answer(folder, reports), problem=problem)


def sweep_answer(folder: Path, reports: Path) -> Answer:
    """Draw the report of the sweep in `folder` and return what it says.

    The exit code is `NOTHING_VALID` if no launch is valid, but for a sweep that was asked to oversubscribe.
    """
    from harness.analysis import numbers
    from harness.analysis.frames import launch_frame
    from harness.analysis.learning import final_frame
    from harness.analysis.read_results import load_sweep
    from harness.analysis.scaling import scale
    from harness.report.sweep_page import headline, write_report

    page = write_report(folder, reports)
    loaded = load_sweep(folder)
    launches = launch_frame(loaded.runs, loaded.epochs) if loaded.runs else None
    scaling = scale(launches) if launches is not None else None
    sentence = headline(loaded, scaling)
    if scaling is None or launches is None:
        meant = any(run.point.oversubscribe for run in loaded.runs)
        code = NOTHING_VALID if loaded.runs and not meant else 0
        return Answer(sentence=sentence, data={"sweep": folder.name, "scaling": None}, page=page, code=code)
    final = final_frame(launches).set_index("layout")["test_accuracy"]
    rows = [
        (
            _ranks(point),
            numbers.seconds(point.seconds),
            numbers.significant(point.speedup) if point.speedup is not None else numbers.NONE,
            numbers.ratio_span(point.speedup_interval) if point.speedup_interval else numbers.NONE,
            numbers.percent(point.efficiency) if point.efficiency is not None else numbers.NONE,
            numbers.percent(float(final[point.layout]), 2),
            str(point.launches),
        )
        for point in scaling.points
    ]
    return Answer(
        sentence=sentence,
        table=Table(
            title="",
            headings=("Ranks", "Epoch", "Speedup", "95 % interval", "Efficiency", "Test accuracy", "Launches"),
            rows=rows,
        ),
        data={"sweep": folder.name, "scaling": scaling, "test_accuracy": final.to_dict()},
        page=page,
    )


def _ranks(point: "PointScaling") -> str:
    """Return a point's ranks, with its threads and nodes where they are not one for each rank."""
    text = f"{point.ranks}" if point.threads == 1 else f"{point.ranks} x {point.threads} threads"
    return text if point.nodes == point.ranks else f"{text} on {point.nodes} nodes"


def _planned(plan: "SweepPlan") -> Answer:
    from harness.analysis.numbers import plural
    from harness.sweep.jobs import JOBS
    from harness.sweep.progress import layout_words

    for number, point in enumerate(plan.missing, start=1):
        layout = point.layout
        click.echo(f"{number:4}  {layout_words(layout)}, launch {point.repeat + 1}: {plural(layout.cores, 'core')}")
    scripts = plan.folder / JOBS
    return Answer(sentence=f"scripts, in launch order: {scripts}", data={"launches": plan.missing, "scripts": scripts})
