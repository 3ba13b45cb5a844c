"""How a command ends: with a table, one sentence with its interval, the page's path; or with one JSON document."""

import contextlib
import functools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from harness.base.current_user import UserPath
from harness.base.errors import RunError, UserError
from harness.base.files import write_atomic
from harness.base.record_words import printable
from harness.base.removal import check_output
from harness.base.setting_names import setting
from harness.cli.common_options import with_options
from harness.cli.terminal import echo
from harness.report.answer import Answer, Cell, plain

if TYPE_CHECKING:
    from rich.console import Console

    from harness.report.formats import Format

# ``--format NAME --output FILE``: answers in the formats of other tools, where a command has what they need.

format_options: Callable[[Any], Any] = with_options(
    click.option(
        "--format",
        "formats",
        multiple=True,
        metavar="junit|markdown",
        help="Write the answer for another tool too, as far as it fits; repeatable.",
    ),
    click.option(
        "-o",
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
        raise UserError(f"{setting('output', outputs[0])} needs a format: add {setting('format', 'NAME')}")
    if not formats:
        return []
    for file in outputs:
        check_output(file, "--output")
    from harness.report.formats import format_of

    command = click.get_current_context().command.name or ""
    chosen = [format_of(name, command) for name in formats]
    if len(chosen) == 1 and not outputs:
        if as_json:
            raise UserError(
                f"{setting('json', True)} and {setting('format')} both write to standard output: give "
                f"{setting('output', 'FILE')} for the format"
            )
        return [Rendering(format=chosen[0], file=None)]
    if len(chosen) != len(outputs):
        raise UserError(
            f"{len(chosen)} formats have {len(outputs)} files: give one {setting('output', 'FILE')} for each "
            f"{setting('format')}"
        )
    return [Rendering(format=fit, file=file) for fit, file in zip(chosen, outputs, strict=True)]


WIDTH = 80  # columns of a terminal that nobody has widened
_SHORT_WORD = 12  # letters: a column of single words whose heading has no more keeps its width
_LIST_WIDTH = 140  # of a list of everything there is, where the output is no terminal
_NUMBER = re.compile(r"$|–|\W?[\d.,]+(?!\w)")  # with or without a unit, an interval; or that there is none
_COLOURS = {"regression": "bold red", "improvement": "bold green", "pass": "green", "cannot tell": "yellow"}


def answering(function: Callable[..., Answer]) -> Callable[..., int]:
    """Let the function of a click command end with the answer that it returns; add ``--json`` and ``--quiet``.

    An answer that has a place among the reports and no page yet is written there, and in the formats that were asked
    for. With ``--json``, or a format without a file, standard output has one document and nothing else: all that is
    said meanwhile goes to standard error. With ``--quiet`` it is not said; warnings go to standard error, the sentence
    alone to standard output.
    """

    @functools.wraps(function)
    def command(
        *arguments: Any,
        as_json: bool,
        quiet: bool,
        formats: Sequence[str] = (),
        outputs: Sequence[Path] = (),
        **options: Any,
    ) -> int:
        renderings = asked_renderings(formats, outputs, as_json=as_json)
        is_document = as_json or any(rendering.file is None for rendering in renderings)
        with contextlib.ExitStack() as stack:  # standard output stays free for the answer
            if is_document:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            elif quiet:
                nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            answer = function(*arguments, **options)
            if answer.place and not answer.page:
                from harness.report.html_pages import SCREEN, write_page

                answer = write_page(answer, options["context"].reports, style=options.get("style", SCREEN))
        for rendering in renderings:
            rendering.write(answer)
        if as_json:
            echo(json_document(answer))
        elif is_document:
            _print_warnings(answer)
        else:
            print_answer(answer, quiet=quiet)
        if answer.problem:
            raise RunError(answer.problem)
        return answer.code

    return with_options(
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, all else on standard error."),
        click.option(
            "-q", "--quiet", is_flag=True, help="Print the answer's sentence only, and its warnings on standard error."
        ),
    )(command)


def _print_warnings(answer: Answer) -> None:
    for banner in answer.banners:
        echo(plain(f"{banner.kind}: {banner.text}"), err=True)


def json_document(answer: Answer) -> str:
    """Return the answer as the JSON document of ``--json``."""
    screen = {
        "question": answer.question,
        "answer": plain(answer.sentence),
        "details": [plain(line) for line in answer.details],
        "warnings": [plain(banner.text) for banner in answer.banners],
        "numbers": {tile.name: f"{plain(tile.value)} ({plain(tile.detail)})" for tile in answer.tiles},
        "facts": {fact.name: plain(fact.value) for fact in answer.facts},
        "notes": answer.notes,
        "command": answer.command,
        "page": str(answer.page or ""),
        "problem": answer.problem,
    }
    members = {name: value for name, value in screen.items() if value or name == "answer"} | dict(answer.data)
    content = msgspec.json.encode(members, enc_hook=_json_value)
    return msgspec.json.format(content, indent=1).decode()


def _json_value(value: Any) -> Any:
    """Return what is not JSON as JSON: a number of NumPy's as a number, a path as text."""
    return value.item() if hasattr(value, "item") else str(value)


def print_answer(answer: Answer, *, quiet: bool) -> None:
    """Print what a terminal shows of `answer`; with `quiet` its warnings and its sentence."""
    if quiet:
        _print_warnings(answer)
        echo(plain(answer.sentence))
        return
    console = _console(WIDTH)
    for note in answer.notes:
        echo(note)
    if answer.table and answer.table.rows:
        narrow = [number for number in range(len(answer.table.headings)) if number not in answer.table.wide]
        rows = []
        for row in answer.table.rows:
            rows.append([row[number] for number in narrow])
        print_table([answer.table.headings[number] for number in narrow], rows, console=console)
    for banner in answer.banners:
        _print_paragraph(console, f"{banner.kind}: {banner.text}", "yellow")
    if answer.sentence:
        _print_paragraph(console, answer.sentence, "bold")
    for line in answer.details:
        _print_paragraph(console, line, "")
    if answer.page:
        echo(answer.page)


def _console(width: int) -> "Console":
    """Return standard output for rich text, with `width` columns where it is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = width
    return console


def _print_paragraph(console: "Console", text: str, style: str) -> None:
    width = min(WIDTH, console.width)
    filled = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    console.print(plain(filled), markup=False, style=style, soft_wrap=True)


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, console: "Console | None" = None
) -> None:
    """Print a table: columns of numbers to the right, verdicts in colour, short words in one line."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if console is None:
        console = _console(_LIST_WIDTH)
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        numeric = all(_NUMBER.match(str(row[number])) for row in rows)
        heading = plain(heading).replace("\n", " ")
        texts = [heading, *(str(row[number]) for row in rows)]
        is_short = len(heading) <= _SHORT_WORD and not any(" " in text for text in texts)
        table.add_column(Text(heading), justify="right" if numeric else "left", overflow="fold", no_wrap=is_short)
    for row in rows:
        table.add_row(*(Text(plain(str(cell)), style=_COLOURS.get(str(cell).strip("()"), "")) for cell in row))
    console.print(table)
