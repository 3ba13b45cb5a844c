"""How a command ends: a table, one sentence with its interval, the page's path; or the same as one JSON document."""

import contextlib
import functools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from harness.base.errors import RunError
from harness.base.files import write_atomic
from harness.cli import MAKE
from harness.cli.common import with_options
from harness.report.answer import Answer, Cell, markdown, plain

WIDTH = 80  # columns of a terminal that nobody has widened
_LIST_WIDTH = 140  # of a list of everything there is, where the output is no terminal
_NUMBER = re.compile(r"$|–|\W?[\d.,]+(?!\w)")  # with or without a unit, an interval; or that there is none
_COLOURS = {"regression": "bold red", "improvement": "bold green", "pass": "green", "inconclusive": "yellow"}


def answering(function: Callable[..., Answer]) -> Callable[..., int]:
    """Let the function of a click command end with the answer that it returns; add ``--json`` and ``--quiet``.

    An answer that has a place among the reports and no page yet is written there, and as Markdown for ``--markdown``.
    With ``--json`` standard output has one document and nothing else: all that is said meanwhile goes to standard
    error. With ``--quiet`` it is not said; warnings go to standard error, the sentence alone to standard output.
    """

    @functools.wraps(function)
    def command(*arguments: Any, as_json: bool, quiet: bool, summary: Path | None = None, **options: Any) -> int:
        with contextlib.ExitStack() as stack:  # standard output stays free for the answer
            if as_json:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            elif quiet:
                nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            answer = function(*arguments, **options)
            if summary:
                write_atomic(summary, markdown(answer))
            if answer.place and not answer.page:
                from harness.report.publish import SCREEN, write_page

                answer = write_page(answer, options["reports"], style=options.get("style", SCREEN))
        if as_json:
            click.echo(_document(answer))
        elif quiet:
            for banner in answer.banners:
                click.echo(plain(told(f"{banner.kind}: {banner.text}")), err=True)
            click.echo(plain(told(answer.sentence)))
        else:
            _print_answer(answer)
        if answer.problem:
            raise RunError(answer.problem)
        return answer.code

    return with_options(
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, all else on standard error."),
        click.option(
            "--quiet", is_flag=True, help="Print the answer's sentence only, and its warnings on standard error."
        ),
    )(command)


def told(text: str) -> str:
    """Return `text` with the command lines in it as those of make for who has called make."""
    if click.get_current_context().obj != MAKE:
        return text
    from harness.cli.make import lines_as_make

    return lines_as_make(text)


def _document(answer: Answer) -> str:
    screen = {
        "question": answer.question,
        "answer": plain(answer.sentence),
        "warnings": [plain(banner.text) for banner in answer.banners],
        "numbers": {tile.name: f"{plain(tile.value)} ({plain(tile.detail)})" for tile in answer.tiles},
        "facts": {fact.name: plain(fact.value) for fact in answer.facts},
        "notes": answer.notes,
        "command": answer.command,
        "page": str(answer.page or ""),
        "problem": answer.problem,
    }
    said = {name: value for name, value in screen.items() if value or name == "answer"} | dict(answer.data)
    # NumPy's numbers and paths are not JSON.
    content = msgspec.json.encode(said, enc_hook=lambda one: one.item() if hasattr(one, "item") else str(one))
    return msgspec.json.format(content, indent=1).decode()


def _print_answer(answer: Answer) -> None:
    to = Console(highlight=False)
    to.width = to.width if to.is_terminal else WIDTH
    for note in answer.notes:
        click.echo(told(note))
    if answer.table and answer.table.rows:
        shown = [number for number in range(len(answer.table.headings)) if number not in answer.table.wide]
        rows = [[row[number] for number in shown] for row in answer.table.rows]
        print_table([answer.table.headings[number] for number in shown], rows, to=to)
    width = min(WIDTH, to.width)
    said = [(f"{banner.kind}: {banner.text}", "yellow") for banner in answer.banners]
    for text, style in (*said, *([(answer.sentence, "bold")] if answer.sentence else [])):
        text = textwrap.fill(told(text), width, break_long_words=False, break_on_hyphens=False)
        to.print(plain(text), markup=False, style=style, soft_wrap=True)
    if answer.page:
        click.echo(answer.page)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, to: Console | None = None) -> None:
    """Print a table: columns of numbers to the right, verdicts in colour."""
    if to is None:
        to = Console(highlight=False)
        to.width = to.width if to.is_terminal else _LIST_WIDTH
    table = RichTable(box=SIMPLE_HEAD if to.is_terminal else None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        numeric = all(_NUMBER.match(str(row[number])) for row in rows)
        table.add_column(heading.replace("\n", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(str(cell)), style=_COLOURS.get(str(cell).strip("()"), "")) for cell in row))
    to.print(table)
