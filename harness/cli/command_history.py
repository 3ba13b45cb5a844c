"""``harness history``: one study over sessions."""

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
    """Draw every session of one study on one machine as control charts.

    The study is that of SWEEP (default: the newest sweep). Its launches come from all sweeps and checks in --results
    and from the baselines; the limits are those of the study's baseline that was saved last. Where the stack or the
    level changed is marked. The last line is the page's path.
    """
    from harness.regression.baselines import measured_on, read_baselines, studies_of_sweeps_and_checks
    from harness.regression.history import history_of
    from harness.report.history_answer import history_answer

    study = find_measurement(sweep, results=context.results, baselines=context.baselines)
    measured = measured_on(study.machine, results=context.results, baselines=context.baselines)
    of_study = [measurement for measurement in measured if measurement.is_same_study(study)]
    saved = [baseline.measurement for baseline in read_baselines(context.baselines)]
    baseline = next((measurement for measurement in saved if measurement.is_same_study(study)), None)
    skipped = studies_of_sweeps_and_checks(context.results).damaged
    return history_answer(history_of(of_study or [study], baseline), skipped=skipped)
