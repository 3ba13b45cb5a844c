"""`harness retry`: run again what failed or was not valid."""

from pathlib import Path

import click

from harness.cli.batch import approval, cost_options
from harness.cli.folders import one_sweep, results_option


@click.command(name="retry")
@click.argument("sweep", required=False)
@results_option
@click.option("--reports", type=click.Path(path_type=Path), default=Path("reports"), show_default=True)
@cost_options
def command(sweep: str | None, results: Path, reports: Path, max_node_hours: float, yes: bool) -> None:
    """Launch again what failed, is missing or has invalid times of SWEEP (the newest if none is named)."""
    from harness.cli.sweep import run_and_report
    from harness.sweep.collect import retry

    folder = one_sweep(results, sweep)
    approve = approval({"max_node_hours": max_node_hours, "yes": yes})
    run_and_report(lambda: retry(folder, results=results, approve=approve), folder, reports)
