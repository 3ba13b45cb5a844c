"""`harness site`: the site files, and whether they are true."""

import click


@click.group(name="site")
def command() -> None:
    """List the known computing centres, show one, or check one against the live system."""


@command.command(name="list")
def list_sites() -> None:
    """Name the site files that travel with the harness."""
    from harness.sweep.site import known_sites, read_site

    for name, path in known_sites().items():
        site = read_site(path)
        click.echo(f"{name:16} {site.scheduler:6} {site.note}")


@command.command(name="check")
@click.argument("site", metavar="NAME", required=False)
def check_site(site: str | None) -> None:
    """Hold the site file NAME (or a path, or the one of this machine) against what the scheduler says."""
    from harness.base.errors import RunError
    from harness.sweep.site import find_site
    from harness.sweep.site_check import check

    findings = check(find_site(site))
    for finding in findings:
        click.echo(f"{'ok   ' if finding.good else 'WRONG'} {finding.text}")
    wrong = sum(not finding.good for finding in findings)
    if wrong:
        raise RunError(f"{wrong} statements of the site file are not true: correct the file")
