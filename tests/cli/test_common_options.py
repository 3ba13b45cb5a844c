"""What the options that several commands share do."""

from dataclasses import dataclass
from functools import partial

import click
from click.testing import CliRunner

from harness.cli.common_options import given_command, option_group, take


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """The options of a group."""

    nodes: str
    zipped: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class All:
    """The options of a command, a group among them."""

    counts: Counts
    ranks: int


@click.command(name="grouped")
@option_group("counts", partial(take, Counts), click.option("--nodes"), click.option("--zip", "zipped", is_flag=True))
@click.option("--ranks", type=int)
@click.option("--quiet", is_flag=True)
@option_group("options", partial(take, All))
def grouped_command(options: All, quiet: bool) -> None:
    """Print what arrives."""
    click.echo(f"{options} {quiet}")


def test_options_arrive_as_one_object_with_their_groups_and_the_others_alone() -> None:
    result = CliRunner().invoke(grouped_command, ["--ranks", "2", "--nodes", "1..8", "--quiet"])
    assert result.output == f"{All(counts=Counts(nodes='1..8', zipped=False), ranks=2)} True\n"
