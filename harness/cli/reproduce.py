"""``harness reproduce`` repeats launches from their records; what ``harness report --whence`` says of a figure's."""

from pathlib import Path
from typing import Any

import click

from harness.base.errors import UserError
from harness.cli.answering import answering
from harness.cli.common import GroupedCommand, data_dir_option, results_option
from harness.cli.options import batch_options, build_submission
from harness.cli.select import find_recorded
from harness.report.answer import Answer, Table


@click.command(cls=GroupedCommand)
@click.argument("name", metavar="LAUNCH|SWEEP|FILE")
@click.option(
    "--same-layout/--here", default=True, show_default=True, help="On the recorded ranks, or on what fits here."
)
@results_option
@data_dir_option
@batch_options
@answering
def reproduce(name: str, same_layout: bool, results: Path, data_dir: Path | None, **options: Any) -> Answer:
    """Repeat LAUNCH from its record, of a SWEEP one launch of each layout, and compare.

    Only the record is used: settings, seed, layout and data are the recorded ones. What it depends on (source,
    versions, machine) is compared first. Weights must be the same bit for bit where all that decides them is the same,
    the loss must be within 2 %, the epoch's time within 95 % of repetitions on the same machine. Exit code 0: all
    that could be compared is reproduced; 1: something is not; 3: nothing could be compared.
    """
    from harness.bundle import repetition

    folder = find_recorded(name, results)
    submission, _ = build_submission(options)
    lines, changes = [], []
    for known in repetition.recorded(folder):
        old = known.run
        again = repetition.plan_repetition(old, data_dir, here=not same_layout)
        new = repetition.repeat_launch(again, data_dir=data_dir, results=results, submission=submission)
        basis = repetition.environment(old, new)
        for line in basis:
            click.echo(f"{line.quantity}: {line.recorded} then, {line.now} now ({line.remark})")
        if any(line.quantity == "source" for line in basis):
            changes = [*repetition.source_changes(old)]
            click.echo("\n".join(f"  {line}" for line in changes))
        lines += [(str(old.point.layout.ranks), line) for line in repetition.results_of(old, new, known.same_layout)]
    found = [line for _, line in lines]
    verdicts = {line.verdict for line in found}
    code = 1 if repetition.DIFFERENT in verdicts else 3 if verdicts == {repetition.NOT_COMPARED} else 0
    said = [f"{line.verdict}: {line.remark}" if line.remark else line.verdict for line in found]
    rows = [(ranks, one.quantity, one.recorded, one.now, told) for (ranks, one), told in zip(lines, said, strict=True)]
    return Answer(
        sentence=repetition.overall_verdict(found),
        table=Table(title="", headings=("Ranks", "Quantity", "Recorded", "Now", "Verdict"), rows=rows),
        data={"lines": found, "source": changes},
        code=code,
    )


def whence(file: Path, results: Path, reports: Path) -> Answer:
    """Return the launches that `file` of a report shows, their sweep and the commands; code 1: some are not there.

    Raises:
        UserError: it is not a file of a report, or cannot be read.
    """
    from harness.analysis.numbers import plural
    from harness.report.figure_origin import find_origin, launches_in, launches_of

    origin = find_origin(file, reports)
    if origin is None:
        raise UserError(f"'{file}' does not say what it was made of: not an SVG, PNG, PDF or CSV file of a report")
    there = launches_in(results)
    shown = launches_of(origin)
    rows = [(source.sweep, mark, there.get(started, "not there")) for source, mark, started in shown]
    missing = sum(started not in there for _, _, started in shown)
    click.echo(f"drawn by: {origin.command or 'a command that is not recorded'} (harness {origin.harness})")
    for command in dict.fromkeys(line for source in origin.sources for line in source.command.splitlines()):
        click.echo(f"launched by: {command}")
    sweeps = ", ".join(dict.fromkeys(source.sweep for source in origin.sources))
    of = f"{plural(len(shown), 'launch')} of {sweeps}" if shown else "no launch of a sweep"
    where = f"{missing} of them not" if missing else "all of them"
    return Answer(
        sentence=f"{file.name} shows {of}" + (f", {where} in '{results}'." if shown else "."),
        table=Table(title="", headings=("Sweep", "Launch", "In the results"), rows=rows),
        data={"origin": origin, "missing": missing},
        code=1 if missing else 0,
    )
