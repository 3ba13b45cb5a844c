"""The one way of commands to print a line."""

import click

from harness.base.record_words import printable


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print `text`, on standard error with `err`; what steers a terminal is shown and not sent."""
    click.echo(printable(text), err=err, nl=nl)
