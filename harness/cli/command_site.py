"""``harness site``: whether a computing centre's file says what the live system says."""

import click

from harness.base.errors import RunError
from harness.cli.terminal import echo


@click.command(name="site")
@click.argument("site", metavar="NAME", required=False)
def site_command(site: str | None) -> None:
    """Compare the site file NAME (or a path, or the one of this machine) with what the scheduler says."""
    from harness.sweep.schedulers import check_site
    from harness.sweep.site import find_site

    findings = tuple(check_site(find_site(site)))
    for finding in findings:
        echo(f"{'ok   ' if finding.good else 'WRONG'} {finding.text}")
    wrong = sum(not finding.good for finding in findings)
    if wrong:
        raise RunError(f"{wrong} statements of the site file are not true: correct the file")
