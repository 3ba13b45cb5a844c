"""``harness cancel``: end what a batch system still has of a sweep."""

import click

from harness.base.command_context import Context
from harness.base.errors import UserError
from harness.cli.answer_output import answering
from harness.cli.common_options import context_options, sweep_argument
from harness.cli.sweep_argument import find_sweep, find_sweeps
from harness.report.answer import Answer


@click.command(name="cancel")
@sweep_argument
@context_options("results")
@answering
def cancel_command(sweep: str | None, context: Context) -> Answer:
    """End the queued and running launches of SWEEP, which may be left out where there is one only.

    Finished records are kept.
    """
    from harness.sweep import execute

    if sweep is None and len(find_sweeps(None, context.results)) > 1:
        raise UserError("there are several sweeps: name the one to cancel, `harness status` lists them")
    folder = find_sweep(sweep, context.results)
    launches, waited_for = execute.cancel_launches(folder)
    more = "; the command that waits for them takes them in" if waited_for else ""
    return Answer(
        sentence=f"{folder.name}: cancelled {launches} launches{more}",
        data={"sweep": folder.name, "cancelled": launches, "waited_for": waited_for},
    )
