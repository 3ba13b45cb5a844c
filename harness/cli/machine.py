"""Commands about this machine: is it ready, and is what a site file says of its centre true?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.common import data_dir_option

if TYPE_CHECKING:
    from harness.doctor.machine import Check


_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@data_dir_option
@click.pass_context
def doctor(context: click.Context, as_json: bool, data_dir: Path | None) -> None:
    """Tell which MPI, TensorFlow, cores, memory, compiler and GPUs are in use, and what is wrong with them.

    The exit code is 0 when everything that runs need works, else 1.
    """
    from harness.base.processes import interruptible
    from harness.doctor.diagnose import diagnose, exit_code
    from harness.schema.record import encode

    checks = []
    with interruptible():
        for check in diagnose(data_dir):
            checks.append(check)
            if not as_json:
                _show(check)
    if as_json:
        click.echo(encode(checks), nl=False)
    context.exit(exit_code(checks))


def _show(check: "Check") -> None:
    status = click.style(f"{check.status:8}", fg=_COLOURS[check.status])
    click.echo(f"{status} {check.topic:14} {check.found}")
    if check.fix:
        click.echo(f"{'':8} {'':14} fix: {check.fix}")


@click.group(name="site")
def site() -> None:
    """List the known computing centres, show one, or check one against the live system."""


@site.command(name="list")
def list_sites() -> None:
    """Name the site files that travel with the harness."""
    from harness.sweep.site import known_sites, read_site

    for name, path in known_sites().items():
        site = read_site(path)
        click.echo(f"{name:16} {site.scheduler:6} {site.note}")


@site.command(name="check")
@click.argument("site", metavar="NAME", required=False)
def check_site(**options: str | None) -> None:
    """Hold the site file NAME (or a path, or the one of this machine) against what the scheduler says."""
    from harness.base.errors import RunError
    from harness.sweep.schedulers import check_site as check
    from harness.sweep.site import find_site

    findings = tuple(check(find_site(options["site"])))
    for finding in findings:
        click.echo(f"{'ok   ' if finding.good else 'WRONG'} {finding.text}")
    wrong = sum(not finding.good for finding in findings)
    if wrong:
        raise RunError(f"{wrong} statements of the site file are not true: correct the file")
