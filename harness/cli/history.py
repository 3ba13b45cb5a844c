"""``harness history``: a study over commits, and where it changed."""

from pathlib import Path

import click

from harness.cli.common import baselines_option, reports_option, results_option, sweep_argument


@click.command(name="history")
@sweep_argument
@results_option
@baselines_option
@reports_option
def history(sweep: str | None, results: Path, baselines: Path, reports: Path) -> None:
    """Draw every commit's launches of one study on one machine, and name the commits at which it changed.

    The study is that of SWEEP (default: the newest sweep, else the newest baseline). Its launches come from
    all sweeps in --results and from the baselines. The last line is the page's path.
    """
    from harness.cli.select import find_measurement
    from harness.regression.formats import console, print_table
    from harness.regression.history import history
    from harness.regression.resolve import all_of
    from harness.report.history_page import headline, sentence, series_name, state_rows, write_history

    study = find_measurement(sweep, results=results, baselines=baselines)
    found = history(all_of(study, results=results, baselines=baselines))
    names = [f"{series_name(series)}".capitalize() for series in found.series]
    rows = [(row.since, str(row.launches), *row.medians, row.commit) for row in state_rows(found)]
    to = console()
    print_table(to, ("First launch (UTC)", "Launches", *names, "Commit"), rows)
    for change in found.changes:
        to.print(sentence(found, change), markup=False)
    to.print(headline(found), style="bold", markup=False)
    click.echo(write_history(found, reports))
