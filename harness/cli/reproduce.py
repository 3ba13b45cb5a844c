"""``harness whence`` names the launches that a figure shows, ``harness reproduce`` repeats them from their records."""

from pathlib import Path
from typing import Any

import click

from harness.base.errors import UserError
from harness.cli.answer import answering
from harness.cli.common import data_dir_option, reports_option, results_option
from harness.cli.options import batch_options, build_submission
from harness.cli.select import find_recorded
from harness.report.answer import Answer, Table


@click.command()
@click.argument("name", metavar="LAUNCH|SWEEP|FILE")
@click.option(
    "--same-layout/--here", default=True, show_default=True, help="On the recorded ranks, or on what fits here."
)
@results_option
@data_dir_option
@batch_options
@answering
def reproduce(name: str, same_layout: bool, results: Path, data_dir: Path | None, **options: Any) -> Answer:
    """Launch again what the record of LAUNCH tells of, of a SWEEP one launch of each layout, and compare.

    Nothing but the record is asked: settings, seed, layout and data are the recorded ones. What it rests on (source,
    versions, machine) is compared first. Weights must be the same bit for bit where all that decides them is the same,
    the loss must be within 2 %, the epoch's time within 95 % of repetitions on the same machine. Exit code 0: all
    that could be compared is reproduced; 1: something is not; 3: nothing could be compared.
    """
    from harness.reproduction.rerun import plan, recorded, repeat, source_changes
    from harness.reproduction.verdicts import DIFFERENT, NOT_COMPARED, environment, results_of, sentence

    folder = find_recorded(name, results)
    submission, _ = build_submission(options)
    lines, changes = [], []
    for known in recorded(folder):
        old = known.run
        again = plan(old, data_dir, here=not same_layout)
        new = repeat(again, data_dir=data_dir, results=results, submission=submission)
        basis = environment(old, new)
        for line in basis:
            click.echo(f"{line.quantity}: {line.recorded} then, {line.now} now ({line.remark})")
        if any(line.quantity == "source" for line in basis):
            changes = [*source_changes(old)]
            click.echo("\n".join(f"  {line}" for line in changes))
        lines += [(old.point.layout, line) for line in results_of(old, new, known.alike)]
    verdicts = [line.verdict for _, line in lines]
    code = 1 if DIFFERENT in verdicts else 3 if set(verdicts) == {NOT_COMPARED} else 0
    return Answer(
        sentence=sentence([line for _, line in lines]),
        table=Table(
            title="",
            headings=("Ranks", "Quantity", "Recorded", "Now", "Verdict"),
            rows=[(str(at.ranks), line.quantity, line.recorded, line.now, _verdict(line)) for at, line in lines],
        ),
        data={"lines": [line for _, line in lines], "source": changes},
        code=code,
    )


def _verdict(line: Any) -> str:
    return f"{line.verdict}: {line.remark}" if line.remark else line.verdict


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@results_option
@reports_option
@answering
def whence(file: Path, results: Path, reports: Path) -> Answer:
    """Name the launches that FILE (an SVG, PNG, PDF or CSV of a report) shows, their sweep and the commands.

    A CSV file that was moved is known again by its content, as long as its report is in the reports. Exit code 0: all
    launches are in the results, or FILE shows none; 1: some are not, or others have replaced them.
    """
    from harness.analysis.numbers import plural
    from harness.report.provenance import Origin, find_origin, launches_in, launches_of

    origin: Origin | None = find_origin(file, reports)
    if origin is None:
        raise UserError(f"'{file}' does not tell what it was made of: it is no SVG, PNG, PDF or CSV file of a report")
    there = launches_in(results)
    shown = launches_of(origin)
    rows = [(source.sweep, mark, there.get(started, "not there")) for source, mark, started in shown]
    lost = sum(started not in there for _, _, started in shown)
    click.echo(f"drawn by: {origin.command or 'a command that it does not tell'} (harness {origin.harness})")
    for command in dict.fromkeys(line for source in origin.sources for line in source.command.splitlines()):
        click.echo(f"launched by: {command}")
    sweeps = ", ".join(dict.fromkeys(source.sweep for source in origin.sources))
    of = f"{plural(len(shown), 'launch')} of {sweeps}" if shown else "no launch of a sweep"
    where = f"{lost} of them not" if lost else "all of them"
    return Answer(
        sentence=f"{file.name} shows {of}" + (f", {where} in '{results}'." if shown else "."),
        table=Table(title="", headings=("Sweep", "Launch", "In the results"), rows=rows),
        data={"origin": origin, "missing": lost},
        code=1 if lost else 0,
    )
