"""``harness site``: the files of computing centres, and whether they say what the live system says."""

import click

from harness.base.errors import RunError


@click.group(name="site")
def site_command() -> None:
    """List the known computing centres, or check one against the live system."""


@site_command.command(name="list")
def list_sites_command() -> None:
    """Name the site files that travel with the harness."""
    from harness.sweep.site import known_sites, read_site

    for name, path in known_sites().items():
        site = read_site(path)
        click.echo(f"{name:16} {site.scheduler:6} {site.note}")


@site_command.command(name="check")
@click.argument("site", metavar="NAME", required=False)
def check_site_command(**options: str | None) -> None:
    """Compare the site file NAME (or a path, or the one of this machine) with what the scheduler says."""
    from harness.sweep.schedulers import check_site as check
    from harness.sweep.site import find_site

    findings = tuple(check(find_site(options["site"])))
    for finding in findings:
        click.echo(f"{'ok   ' if finding.good else 'WRONG'} {finding.text}")
    wrong = sum(not finding.good for finding in findings)
    if wrong:
        raise RunError(f"{wrong} statements of the site file are not true: correct the file")
