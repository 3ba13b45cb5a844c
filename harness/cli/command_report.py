"""``harness report``: the page of a sweep, from its records."""

from dataclasses import replace

import click

from harness.base.command_context import Context
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import base_option, context_options, network_option, style_option
from harness.cli.sweep_argument import find_sweep
from harness.cli.terminal import echo
from harness.report.answer import Answer, CaseSuite, plain


@click.command(name="report")
@click.argument("sweep", nargs=-1, metavar="[SWEEP]...")
@format_options
@context_options("results", "reports")
@base_option
@style_option
@network_option
@answering
def report_command(
    sweep: tuple[str, ...], context: Context, base: int | None, style: str, network: str | None
) -> Answer:
    """Draw the report of each SWEEP from its records, of the newest if none is named."""
    from harness.prediction.network_cost import read_links
    from harness.report.sweep_answer import report_sweep

    folders = [find_sweep(name, context.results) for name in sweep or (None,)]
    links = read_links(network) if network else None
    answers = [report_sweep(folder, context.reports, base=base, style=style, network=links) for folder in folders]
    for answer in answers[:-1]:
        warnings = "".join(f"{banner.kind}: {banner.text}\n" for banner in answer.banners)
        echo(f"{plain(warnings + answer.sentence)}\n{answer.page}\n")
    pages = [answer.page for answer in answers]
    cases = [case for answer in answers for case in answer.suite.cases]
    suite = CaseSuite(name=", ".join(dict.fromkeys(answer.suite.name for answer in answers)), cases=cases)
    return replace(answers[-1], data={**answers[-1].data, "pages": pages}, code=0, suite=suite)
