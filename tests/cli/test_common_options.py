"""What the options that several commands share do."""

import click
from click.testing import CliRunner

from harness.cli.common_options import given_command


@click.command(name="trace")
@click.argument("sweep")
@click.option("--ranks")
@click.option("--turns/--no-turns")
@click.option("--json", "as_json", is_flag=True)
@click.option("--format", "formats", multiple=True)
def command(**_: object) -> None:
    """Print the command as a page shows it."""
    click.echo(given_command())


def test_the_shown_command_has_no_option_of_how_its_answer_is_printed() -> None:
    words = ["mnist", "--ranks", "1..8", "--no-turns", "--json", "--format", "junit"]
    result = CliRunner().invoke(command, words)
    assert result.output == "harness trace --ranks 1..8 --no-turns mnist\n"
