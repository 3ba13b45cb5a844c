"""``harness reproduce``: recorded launches, made again and compared."""

from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.exit_codes import FAILED, UNDECIDED
from harness.cli.answer_output import answering
from harness.cli.common_options import GroupedCommand, context_options, mpi_option
from harness.cli.launch_options import BatchOptions, batch_options, build_submission
from harness.cli.sweep_argument import find_recorded
from harness.cli.terminal import echo
from harness.report.answer import Answer, Table

if TYPE_CHECKING:
    from harness.bundle.repetition import ReproducedQuantity


@click.command(
    name="reproduce",
    cls=GroupedCommand,
    brief=(
        "--same-layout",
        "--trust",
        "--results",
        "--data-dir",
        "--scheduler",
        "--site",
        "--partition",
        "--account",
        "--walltime",
        "--max-node-hours",
        "--yes",
        "--json",
        "--quiet",
    ),
    examples=(
        "harness reproduce SWEEP",
        "harness reproduce SWEEP --here",
        "harness reproduce bundle.zip --trust",
    ),
)
@click.argument("name", metavar="LAUNCH|SWEEP|FILE")
@click.option(
    "--same-layout/--here", default=True, show_default=True, help="On the recorded ranks, or on what fits here."
)
@click.option("--trust", is_flag=True, help="Run the code of others that the record names: without it, it is listed.")
@context_options("results", "data_dir", measures=True)
@batch_options
@answering
@mpi_option
def reproduce_command(name: str, same_layout: bool, trust: bool, batch: BatchOptions, context: Context) -> Answer:
    """Repeat LAUNCH from its record, of a SWEEP one launch of each layout, and compare.

    Only the record is used: settings, seed, layout and data are the recorded ones. A script, a MODEL, SYNC or OPTIMIZER
    of somebody's own and settings of the communication run only with --trust. What it depends on (source,
    versions, machine) is compared first. Weights must be the same bit for bit where all that decides them is the same,
    the loss must be within 2 %, the epoch's time within 95 % of repetitions on the same machine. Exit code 0: all
    that could be compared is reproduced; 1: something is not; 3: nothing could be compared.
    """
    from harness.bundle import repetition

    folder = find_recorded(name, context.results)
    originals = repetition.recorded(folder)
    if not trust:
        repetition.require_trust([original.run for original in originals])
    submission, _ = build_submission(batch)
    lines: list[ReproducedQuantity] = []
    rows = []
    for original in originals:
        old = original.run
        again = repetition.plan_repetition(old, context.data_dir, here=not same_layout)
        new = repetition.repeat_launch(again, context, submission)
        compared = repetition.Repetition(old=old, new=new, others=original.same_layout)
        for line in compared.environment():
            echo(f"{line.quantity}: {line.recorded} then, {line.now} now ({line.remark})")
        for line in compared.results():
            verdict = f"{line.verdict}: {line.remark}" if line.remark else line.verdict
            lines.append(line)
            rows.append((str(old.point.layout.ranks), line.quantity, line.recorded, line.now, verdict))
    verdicts = {line.verdict for line in lines}
    code = UNDECIDED if verdicts == {repetition.NOT_COMPARED} else 0
    return Answer(
        sentence=repetition.overall_verdict(lines),
        table=Table(title="", headings=("Ranks", "Quantity", "Recorded", "Now", "Verdict"), rows=rows),
        data={"lines": lines},
        code=FAILED if repetition.DIFFERENT in verdicts else code,
    )
