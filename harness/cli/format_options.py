"""``--format NAME --output FILE``: answers in the formats of other tools, where a command has what they need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.printable import printable
from harness.base.removal import check_output
from harness.base.user_path import UserPath
from harness.cli.common_options import with_options
from harness.cli.terminal import echo
from harness.report.answer import Answer

if TYPE_CHECKING:
    from harness.report.formats import Format

format_options: Callable[[Any], Any] = with_options(
    click.option(
        "--format",
        "formats",
        multiple=True,
        metavar="NAME",
        help="Write the answer for another tool too: junit or markdown, as far as it fits; repeatable.",
    ),
    click.option(
        "--output",
        "outputs",
        multiple=True,
        type=UserPath(),
        metavar="FILE",
        help="The file of the format; of several formats one each, in their order [default: standard output].",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendering:
    """An answer that was asked for in a format; `file` is None for standard output."""

    format: "Format"
    file: Path | None

    def write(self, answer: Answer) -> None:
        """Write `answer`, whole or not at all."""
        text = printable(self.format.render(answer))
        if self.file is None:
            echo(text, nl=False)
        else:
            write_atomic(self.file, text)


def asked_renderings(formats: Sequence[str], outputs: Sequence[Path], *, as_json: bool) -> list[Rendering]:
    """Return what the running command is to write beside its answer, before anything runs.

    Raises:
        UserError: a format is unknown or does not fit the command, or files do not match the formats.
    """
    if not formats and outputs:
        raise UserError(f"OUTPUT={outputs[0]} needs a format: add --format NAME")
    if not formats:
        return []
    for file in outputs:
        check_output(file, "--output")
    from harness.report.formats import format_of

    command = click.get_current_context().command.name or ""
    chosen = [format_of(name, command) for name in formats]
    if len(chosen) == 1 and not outputs:
        if as_json:
            raise UserError("--json and --format both write to standard output: give --output FILE for the format")
        return [Rendering(format=chosen[0], file=None)]
    if len(chosen) != len(outputs):
        raise UserError(f"{len(chosen)} formats have {len(outputs)} files: give one --output FILE for each --format")
    return [Rendering(format=fit, file=file) for fit, file in zip(chosen, outputs, strict=True)]
