"""`harness sweep`: the main job, from data to a report."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import RunError, UserError
from harness.cli.common import reports_option, results_option
from harness.cli.options import (
    approval,
    batch_options,
    build_layouts,
    build_submission,
    build_workload,
    layout_options,
    workload_options,
)

if TYPE_CHECKING:
    from harness.schema.sweep import Sweep
    from harness.schema.workload import Workload
    from harness.sweep.execute import Plan


@click.command(name="sweep")
@workload_options
@layout_options
@click.option("--repeats", type=int, default=3, show_default=True, help="Launches of each layout; 6 give an interval.")
@click.option("--scaling", default="strong", show_default=True, help="strong (the same rows) or weak (rows per rank).")
@click.option("--oversubscribe", is_flag=True, help="Run layouts with more ranks than cores: never valid for timing.")
@click.option("--predict-first", is_flag=True, help="Store a prediction before the first launch; the report scores it.")
@click.option(
    "--network", help="For the prediction: ALPHA,BETA or a probe.json [default: this machine's newest probe]."
)
@click.option("--tuned", is_flag=True, help="Sum gradients in the way that `harness probe` found fastest here.")
@click.option("--dry-run", is_flag=True, help="Write the scripts, print the table, launch nothing.")
@batch_options
@results_option
@reports_option
def sweep(dry_run: bool, results: Path, reports: Path, data_dir: Path | None, **options: Any) -> None:
    """Plan, launch, collect and report a scaling study; the last line is the report's path.

    On one machine a core stands for a node; where Slurm or PBS is, every launch is a job of its own. The same
    command again runs only what is missing or failed.
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

        _print_plan(write_scripts(sweep, data_dir=data_dir, results=results, submission=submission))
        return
    from harness.sweep.execute import run_sweep

    run_and_report(
        lambda: run_sweep(sweep, data_dir=data_dir, results=results, submission=submission, approve=approval(options)),
        results / sweep.name,
        reports,
    )


def _predict(sweep: "Sweep", network: str | None, results: Path) -> None:
    """Store the prediction of `sweep` beside its launches, and say where."""
    from harness.cli.claims import find_network
    from harness.prediction.forecast import predict_first

    found = find_network(network, results)
    if found is None:
        raise UserError("--predict-first needs a network: run `harness probe` first, or give --network ALPHA,BETA")
    click.echo(f"prediction: {predict_first(sweep, results, *found)}")


def _tuned(workload: "Workload", results: Path) -> tuple[tuple[str, str], ...]:
    from harness.probe.store import tuned_settings

    settings, sentence = tuned_settings(workload, results)
    click.echo(sentence)
    return settings


def run_and_report(run: Callable[[], Path], folder: Path, reports: Path) -> None:
    """Run the sweep and report what there is, also when some launches failed."""
    try:
        run()
    except RunError:
        if any(folder.glob("*/run.json")):
            click.echo(f"report of what has finished: {draw_report(folder, reports)}")
        raise
    click.echo(draw_report(folder, reports))


def draw_report(folder: Path, reports: Path) -> Path:
    """Draw the report of the sweep in `folder` and return its path."""
    from harness.report.sweep_page import write_report

    return write_report(folder, reports)


def _print_plan(plan: "Plan") -> None:
    from harness.sweep.jobs import JOBS

    for number, point in enumerate(plan.missing, start=1):
        layout = point.layout
        click.echo(f"{number:4}  {layout}, repeat {point.repeat}: {layout.ranks} ranks, {layout.cores} cores")
    click.echo(f"scripts, in launch order: {plan.folder / JOBS}")
