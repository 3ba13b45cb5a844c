"""Answers in the formats of other tools: one module for each, which writes an `Answer` as the text of a file."""

from harness.base.errors import UserError, unknown
from harness.report.formats import bencher, caraml, extrap, github, junit, markdown, openmetrics
from harness.report.formats.format import Format

_ALL = (
    bencher.FORMAT,
    caraml.FORMAT,
    extrap.FORMAT,
    github.FORMAT,
    junit.FORMAT,
    markdown.FORMAT,
    openmetrics.FORMAT,
)
FORMATS = {known_format.name: known_format for known_format in _ALL}


def format_of(name: str, command: str) -> Format:
    """Return the format called `name` for the answers of `command`.

    Raises:
        UserError: there is none of that name, or it does not fit the command; the message names those that do.
    """
    if name not in FORMATS:
        raise unknown("FORMAT", name, FORMATS)
    if command not in FORMATS[name].commands:
        fitting = ", ".join(sorted(fit.name for fit in FORMATS.values() if command in fit.commands))
        commands = ", ".join(f"`harness {command}`" for command in sorted(FORMATS[name].commands))
        raise UserError(
            f"FORMAT={name} does not fit `harness {command}`: it has {fitting or 'none'}; {name} is for {commands}"
        )
    return FORMATS[name]
