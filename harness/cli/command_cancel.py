"""``harness cancel``: end what a batch system still has of a sweep."""

import click

from harness.base.command_context import Context
from harness.cli.common_options import context_options, sweep_argument
from harness.cli.sweep_argument import find_sweep
from harness.cli.terminal import echo


@click.command(name="cancel")
@sweep_argument
@context_options("results")
def cancel_command(sweep: str | None, context: Context) -> None:
    """End the queued and running launches of SWEEP (the newest if none is named); finished records are kept."""
    from harness.sweep import execute

    folder = find_sweep(sweep, context.results)
    launches, waited_for = execute.cancel_launches(folder)
    more = "; the command that waits for them takes them in" if waited_for else ""
    echo(f"{folder.name}: cancelled {launches} launches{more}")
