"""``--help``: the first options and examples; ``--help-all``: every one; what is wrong on a command line."""

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness.__main__ import run_command_line
from harness.base.exit_codes import BAD_INPUT
from harness.cli import COMMANDS, main
from harness.cli.common_options import GroupedCommand

MOST = 15


def find_command(*names: str) -> click.Command:
    command: click.Command = main
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


def names_of_commands() -> list[tuple[str, ...]]:
    names: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = find_command(name)
        if isinstance(command, click.Group):
            names += [(name, part) for part in command.list_commands(click.Context(command))]
        else:
            names.append((name,))
    return names


LONG = [name for (name, *_) in names_of_commands() if isinstance(find_command(name), GroupedCommand)]


def shown_options(text: str) -> list[str]:
    """Return the lines of a help that begin with an option."""
    return [line.split()[0].rstrip(",") for line in text.splitlines() if line.startswith("  -")]


@pytest.mark.parametrize("names", names_of_commands(), ids=" ".join)
def test_help_shows_at_most_fifteen_options(names: tuple[str, ...]) -> None:
    text = CliRunner().invoke(main, [*names, "--help"], terminal_width=200).output
    own_help = 1
    assert len(shown_options(text)) - own_help <= MOST


@pytest.mark.parametrize("name", LONG)
def test_help_all_shows_every_option(name: str) -> None:
    text = CliRunner().invoke(main, [name, "--help-all"], terminal_width=200).output
    options = [one for one in find_command(name).params if isinstance(one, click.Option) and not one.hidden]
    assert len(options) > MOST
    assert len(shown_options(text)) == len(options) + 2  # --help and --help-all
    assert "more: --help-all" not in text


@pytest.mark.parametrize("name", LONG)
def test_every_option_of_the_short_help_is_one_of_the_command(name: str) -> None:
    command = find_command(name)
    assert isinstance(command, GroupedCommand)
    own = {word for one in command.params for word in one.opts}
    assert set(command.brief) <= own


@pytest.mark.parametrize("name", LONG)
def test_help_ends_with_three_examples_that_are_command_lines(name: str) -> None:
    command = find_command(name)
    assert isinstance(command, GroupedCommand)
    text = CliRunner().invoke(main, [name, "--help"], terminal_width=200).output
    assert text.splitlines()[-1] == "more: --help-all"
    assert len(command.examples) == 3
    for example in command.examples:
        assert f"  {example}\n" in text
        _, words = example.split(f"harness {name}")
        command.make_context(name, shlex.split(words))


@pytest.mark.parametrize("wrong", ["sweep --nodez 2", "swep", "sweep --dataset", "run", "paper --epochs x"])
def test_a_wrong_command_line_is_one_line_that_begins_as_every_error(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(shlex.split(wrong)) == BAD_INPUT
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("harness: ") and "--help`" in line


def test_a_sweep_is_checked_before_its_data_set_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.cli.command_sweep.fetch_for", lambda *_: pytest.fail("it is downloaded"))
    words = "sweep --dataset mnist --nodes 1,2 --scaling weak --scheduler local --dry-run"
    assert run_command_line(shlex.split(words)) == BAD_INPUT
    assert "samples" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(("short", "long"), [("-o", "--output"), ("-q", "--quiet"), ("-y", "--yes")])
def test_short_names_are_those_of_the_long_options(short: str, long: str) -> None:
    for names in names_of_commands():
        for option in find_command(*names).params:
            assert (short in option.opts) == (long in option.opts), (names, option.opts)


@pytest.mark.parametrize("names", names_of_commands(), ids=" ".join)
def test_choices_are_written_with_bars(names: tuple[str, ...]) -> None:
    for parameter in find_command(*names).params:
        if isinstance(parameter.type, click.Choice):
            assert parameter.metavar == "|".join(parameter.type.choices), parameter.opts
