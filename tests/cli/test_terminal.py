"""Commands print by one function, which sends nothing that steers a terminal."""

from pathlib import Path

import pytest

import harness
from harness.cli.terminal import echo


def test_no_command_prints_by_itself() -> None:
    modules = [path for path in (Path(harness.__file__).parent / "cli").glob("*.py") if path.name != "terminal.py"]
    assert [path.name for path in modules if "click.echo" in path.read_text()] == []


def test_what_steers_is_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    echo("a\x1b[2J")
    echo("\u202eb", err=True)
    said = capsys.readouterr()
    assert said.out == "a\\u001b[2J\n" and said.err == "\\u202eb\n"
