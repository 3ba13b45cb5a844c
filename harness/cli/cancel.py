"""`harness cancel`: end what is queued or running in a batch system."""

from pathlib import Path

import click

from harness.cli.folders import one_sweep, results_option


@click.command(name="cancel")
@click.argument("sweep", required=False)
@results_option
def command(sweep: str | None, results: Path) -> None:
    """End the queued and running launches of SWEEP (the newest if none is named); finished records are kept."""
    from harness.sweep.collect import cancel

    folder = one_sweep(results, sweep)
    found = cancel(folder)
    told = (
        f"{found.ended} launches" if not found.left else f"{found.left} launches; the command that waits settles them"
    )
    click.echo(f"{folder.name}: cancelled {told}")
