"""``harness history``: one study over commits."""

import click

from harness.base.command_context import Context
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import context_options, sweep_argument
from harness.cli.sweep_argument import find_measurement
from harness.report.answer import Answer


@click.command(name="history")
@sweep_argument
@format_options
@context_options("results", "baselines", "reports")
@answering
def history_command(sweep: str | None, context: Context) -> Answer:
    """Draw every commit's launches of one study on one machine.

    The study is that of SWEEP (default: the newest sweep, else the newest baseline). Its launches come from
    all sweeps in --results and from the baselines. The last line is the page's path.
    """
    from harness.regression.baselines import measurements_of
    from harness.regression.history import history_of
    from harness.report.history_answer import history_answer

    study = find_measurement(sweep, results=context.results, baselines=context.baselines)
    return history_answer(history_of(measurements_of(study, results=context.results, baselines=context.baselines)))
