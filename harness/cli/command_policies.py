"""``harness policies``: sweeps of several sync policies side by side, at equal samples and at equal accuracy."""

import click

from harness.base.command_context import Context
from harness.cli.answer_output import answering
from harness.cli.common_options import context_options
from harness.cli.sweep_argument import find_sweep
from harness.report.answer import Answer


@click.command(name="policies")
@click.argument("sweep", nargs=-1, required=True, metavar="SWEEP...")
@click.option("--target", type=click.FloatRange(0, 1), help="Test accuracy to reach, such as 0.97.")
@context_options("results", "reports")
@answering
def policies_command(sweep: tuple[str, ...], target: float | None, context: Context) -> Answer:
    """Set the SWEEPs, such as those of several sync policies, side by side: which one arrives first?"""
    from harness.report.policies_answer import policies_answer

    return policies_answer([find_sweep(name, context.results) for name in sweep], context.reports, target)
