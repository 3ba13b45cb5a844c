"""``harness explain``: why a sweep does not scale."""

import shlex

import click

from harness.base.command_context import Context
from harness.cli.answer_output import answering, format_options, print_table
from harness.cli.common_options import base_option, context_options, style_option, sweep_argument
from harness.cli.sweep_argument import find_sweep
from harness.cli.terminal import echo
from harness.report.answer import Answer

_MOST_POINTS = 4  # in a terminal
_MOST_FINDINGS = 5


@click.command(name="explain")
@sweep_argument
@base_option
@style_option
@format_options
@context_options("results", "reports")
@answering
def explain_command(sweep: str | None, base: int | None, style: str, context: Context) -> Answer:
    """Say why SWEEP (the newest if none is named) does not scale.

    Prints POP's tree of efficiencies for every point and the overheads of the largest one: what it takes beyond the
    ideal time, by cause. The last line is the page's path.
    """
    from harness.report.explain_answer import explain_answer, tree_table
    from harness.why.explanation import explain_sweep
    from harness.why.known_causes import diagnose_sweep

    folder = find_sweep(sweep, context.results)
    explanation = explain_sweep(folder, base)
    for sentence in explanation.loaded.damaged:
        echo(f"left out: {sentence}", err=True)
    print_table(*tree_table(explanation.efficiencies, most=_MOST_POINTS))
    echo(explanation.network)
    findings = diagnose_sweep(explanation.loaded)
    for finding in findings[:_MOST_FINDINGS]:
        echo(f"{finding.cause} ({finding.launches} of {finding.of} launches): {finding.evidence} {finding.fix}")
    if len(findings) > _MOST_FINDINGS:
        echo(f"The page has {len(findings) - _MOST_FINDINGS} more known causes.")
    command = shlex.join(["harness", "explain", folder.name, *(["--base", str(base)] if base else [])])
    return explain_answer(explanation, findings, command)
