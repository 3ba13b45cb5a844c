"""``harness whence``: of which launches, and by which commands, a figure or table was made."""

from pathlib import Path

import click

from harness.base.errors import UserError
from harness.cli.answer import Answer, answering
from harness.cli.common import reports_option, results_option


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
    from harness.report.origin import Origin, find_origin, launches_in, launches_of

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
        headings=("Sweep", "Launch", "In the results"),
        rows=rows,
        data={"origin": origin, "missing": lost},
        code=1 if lost else 0,
    )
