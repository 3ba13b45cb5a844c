"""``harness site``: write a computing centre's file from what is here, or compare one with the live system."""

import click

from harness.base.current_user import expanded
from harness.base.errors import RunError, UserError
from harness.base.files import write_atomic
from harness.base.setting_names import setting
from harness.cli.terminal import echo


@click.group(name="site")
def site_command() -> None:
    """Write a computing centre's file from what is here, or compare one with the live system."""


@site_command.command(name="check")
@click.argument("site", metavar="NAME", required=False)
def check_command(site: str | None) -> None:
    """Compare the site file NAME (or a path, or the one of this machine) with what the scheduler says."""
    from harness.sweep.schedulers import check_site
    from harness.sweep.site import find_site

    findings = tuple(check_site(find_site(site)))
    for finding in findings:
        echo(f"{'ok   ' if finding.good else 'WRONG'} {finding.text}")
    wrong = sum(not finding.good for finding in findings)
    if wrong:
        raise RunError(f"{wrong} statements of the site file are not true: correct the file")


@site_command.command(name="init")
@click.argument("site", metavar="NAME", default="site")
@click.option("--replace", is_flag=True, help="Write over a file of that name.")
def init_command(site: str, replace: bool) -> None:
    """Write NAME.toml, a site file, from what is seen on this machine, for you to read and correct.

    NAME may be a path that ends with .toml. Nothing is submitted.
    """
    from harness.sweep.site_survey import site_file_text, survey_site

    path = expanded(site if site.endswith(".toml") else f"{site}.toml")
    if path.exists() and not replace:
        raise UserError(
            f"site file '{path}' is there: give another NAME, or {setting('replace', True)} to write it anew"
        )
    text = site_file_text(survey_site())
    write_atomic(path, text)
    echo(text, nl=False)
    left = sum(line.startswith("# ") and " = " in line for line in text.splitlines())
    echo(f"\n{path}: read it, and fill in the {left} lines that begin with # where they matter here.")
    echo(f"`harness site check {path}` compares it with the live system, `--site {path}` uses it.")
