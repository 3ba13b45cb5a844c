"""``harness explain``: why a sweep does not scale, every lost percent with its cause."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import RunError
from harness.cli.answer import answering, print_table
from harness.cli.common import data_dir_option, reports_option, results_option, style_option, sweep_argument
from harness.cli.select import find_sweep
from harness.report.answer import Answer, Table

if TYPE_CHECKING:
    from harness.diagnosis.case import Finding
    from harness.explain.evidence import Explanation
    from harness.explain.prove import Proofs

_MOST_POINTS, _MOST_FINDINGS = 4, 5  # in a terminal


@click.command()
@sweep_argument
@click.option("--base", type=click.IntRange(min=1), help="Rank count that ratios are over [default: the smallest].")
@click.option("--prove", is_flag=True, help="Launch counterfactuals, which take one cause away each, here and now.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    default=6,
    show_default=True,
    help="With --prove: launches of each; 6 give an interval.",
)
@style_option
@results_option
@reports_option
@data_dir_option
@answering
def explain(
    sweep: str | None,
    base: int | None,
    prove: bool,
    repeats: int,
    style: str,
    results: Path,
    reports: Path,
    data_dir: Path | None,
) -> Answer:
    """Tell why SWEEP (the newest if none is named) does not scale.

    Prints POP's tree of efficiencies for every point and the bill of the largest one: what it takes beyond the ideal
    time, by cause. With --prove the dearest causes are taken away one at a time in launches of their own; what each
    must give is printed before it is launched, beside what it gave. The last line is the page's path.
    """
    from harness.diagnosis.study import diagnose_sweep
    from harness.explain.evidence import explain
    from harness.explain.prove import newest_proofs
    from harness.explain.prove import prove as launch
    from harness.explain.wording import tree_table
    from harness.report.explain_page import write_explanation

    folder = find_sweep(sweep, results)
    found = explain(folder, base)
    for sentence in found.loaded.damaged:
        click.echo(f"left out: {sentence}", err=True)
    print_table(*tree_table(found.trees, most=_MOST_POINTS))
    click.echo(found.network)
    findings = diagnose_sweep(found.loaded)
    for finding in findings[:_MOST_FINDINGS]:
        click.echo(f"{finding.cause} ({finding.launches} of {finding.of} launches): {finding.evidence} {finding.fix}")
    if len(findings) > _MOST_FINDINGS:
        click.echo(f"The sweep's report has {len(findings) - _MOST_FINDINGS} more diagnoses (`make report`).")
    problem, proofs = "", newest_proofs(results, folder.resolve().name)
    if prove:
        try:
            proofs = launch(found, blocks=repeats, data_dir=data_dir, results=results, say=click.echo)
        except RunError as error:
            problem = str(error)
    words = ["harness", "explain", folder.name, *(["--base", str(base)] if base else [])]
    page = write_explanation(found, proofs, shlex.join(words), reports, results, style=style)
    return replace(_answer(found, proofs, findings), page=page, problem=problem)


def _answer(found: "Explanation", proofs: "Proofs | None", findings: "tuple[Finding, ...]") -> Answer:
    """Return the bill of the largest point, behind it what was proven."""
    from harness.explain.wording import BILL_HEADINGS, PROOF_HEADINGS, answer, bill_rows, proof_rows, proof_sentence

    said = answer(found)
    if proofs:
        print_table(PROOF_HEADINGS, proof_rows(proofs.proofs))
        said += f" {proof_sentence(proofs.proofs)}"
    return Answer(
        sentence=said,
        table=Table(title="", headings=BILL_HEADINGS, rows=bill_rows(found.main) if found.main else ()),
        data={
            "trees": found.trees,
            "bills": found.bills,
            "launch_bills": found.launch_bills,
            "last_ranks": found.explained.last,
            "network": found.network,
            "proofs": proofs,
            "findings": findings,
        },
    )
