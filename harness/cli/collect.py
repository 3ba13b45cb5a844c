"""`harness collect`: take in what a batch system has finished."""

from pathlib import Path

import click

from harness.cli.folders import one_sweep, results_option


@click.command(name="collect")
@click.argument("sweep", required=False)
@click.option("--wait", is_flag=True, help="Wait until all of it has ended.")
@results_option
@click.option("--reports", type=click.Path(path_type=Path), default=Path("reports"), show_default=True)
def command(sweep: str | None, wait: bool, results: Path, reports: Path) -> None:
    """Settle the queued launches of SWEEP (the newest if none is named) that have ended, and draw the report."""
    from harness.base.errors import RunError
    from harness.cli.sweep import report
    from harness.sweep.collect import collect

    folder = one_sweep(results, sweep)
    found = collect(folder, wait=wait)
    click.echo(f"{folder.name}: {found.ended} ended, {found.failed} of them failed, {found.left} still to come")
    if any(folder.glob("*/run.json")):
        click.echo(report(folder, reports))
    if found.failed:
        raise RunError(f"{found.failed} launches failed: see `harness status {folder.name}`, then `harness retry`")
