"""What the options that several commands share do."""

import re
import shlex
from dataclasses import dataclass
from functools import partial

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import UserError
from harness.cli.common_options import NumberRange, given_command, option_group, parse_counts, take


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


@pytest.mark.parametrize("value", ["nan", "-NaN", "11", "-1"])
def test_what_is_not_within_a_range_is_refused(value: str) -> None:
    with pytest.raises(click.BadParameter):
        NumberRange(0, 10).convert(value, None, None)
    assert NumberRange(0, 10).convert("2.5", None, None) == 2.5


def test_options_arrive_as_one_object_with_their_groups_and_the_others_alone() -> None:
    result = CliRunner().invoke(grouped_command, ["--ranks", "2", "--nodes", "1..8", "--quiet"])
    assert result.output == f"{All(counts=Counts(nodes='1..8', zipped=False), ranks=2)} True\n"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1..8", range(1, 9)),
        ("1..64*2", [1, 2, 4, 8, 16, 32, 64]),
        ("4,1,2,2", [1, 2, 4]),
        ("3", [3]),
        ("1..3,8", [1, 2, 3, 8]),
    ],
)
def test_counts_are_parsed(text, counts):
    assert parse_counts("nodes", text) == tuple(counts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8..1", "runs backwards: write 1..8"),
        ("0", "below 1"),
        ("", "not a list of counts"),
        ("1..8*1", "never grows"),
        ("-2", "not a list"),
        ("1..9999999999", "above 1,000,000"),
        ("²", "not a list"),
    ],
)
def test_counts_that_make_no_sense_are_one_sentence(text, message):
    with pytest.raises(UserError, match="^" + re.escape(f"--nodes {shlex.quote(text)} ") + f".*{message}"):
        parse_counts("nodes", text)


@given(st.text(max_size=12))
def test_any_text_is_counts_or_a_user_error(text):
    try:
        counts = parse_counts("nodes", text)
    except UserError:
        return
    assert counts == tuple(sorted(set(counts)))
    assert counts[0] >= 1
