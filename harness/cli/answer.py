"""How a command ends: a table, one sentence with its interval, the page's path; or the same as one JSON document."""

import contextlib
import functools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.errors import RunError
from harness.cli.common import with_options

if TYPE_CHECKING:
    from harness.regression.verdict import Check


WIDTH = 80  # columns of a terminal that nobody has widened
_LIST_WIDTH = 140  # of a list of everything there is, where the output is no terminal
_NUMBER = re.compile(r"$|–|\W?[\d.,]+(?!\w)")  # with or without a unit, an interval; or that there is none
_COLOURS = {"regression": "bold red", "improvement": "bold green", "pass": "green", "inconclusive": "yellow"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command has found out.

    `sentence` says it, with its interval; it is empty where the command has said all there is. `headings` and `rows`
    are a table for people, `data` what JSON has in its place: numbers and any of the schema's dataclasses. `problem` is
    what went wrong beside: exit code 1.
    """

    sentence: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    data: Mapping[str, object] = field(default_factory=dict)
    page: Path | None = None
    code: int = 0
    problem: str = ""


def answering(function: Callable[..., Answer]) -> Callable[..., int]:
    """Let the function of a click command end with the answer that it returns; add ``--json`` and ``--quiet``.

    With ``--json`` standard output has one document and nothing else: all that is said meanwhile goes to standard
    error. With ``--quiet`` it is not said.
    """

    @functools.wraps(function)
    def command(*arguments: Any, as_json: bool, quiet: bool, **options: Any) -> int:
        with _aside(as_json, quiet):
            answer = function(*arguments, **options)
        if as_json:
            click.echo(_document(answer))
        elif quiet:
            click.echo(plain(answer.sentence))
        else:
            _tell(answer)
        if answer.problem:
            raise RunError(answer.problem)
        return answer.code

    flags = (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, all else on standard error."),
        click.option("--quiet", is_flag=True, help="Print nothing but the answer's sentence."),
    )
    return with_options(flags)(command)


@contextlib.contextmanager
def _aside(as_json: bool, quiet: bool) -> Iterator[None]:
    """Keep standard output free for the answer."""
    with contextlib.ExitStack() as stack:
        if as_json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        elif quiet:
            nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        yield


def _document(answer: Answer) -> str:
    told: dict[str, object] = {"answer": plain(answer.sentence), **answer.data}
    if answer.page:
        told["page"] = str(answer.page)
    if answer.problem:
        told["problem"] = answer.problem
    # NumPy's numbers are no JSON, nor are paths.
    content = msgspec.json.encode(told, enc_hook=lambda one: one.item() if hasattr(one, "item") else str(one))
    return msgspec.json.format(content, indent=1).decode()


def _tell(answer: Answer) -> None:
    to = Console(highlight=False)
    to.width = to.width if to.is_terminal else WIDTH
    if answer.rows:
        print_table(answer.headings, answer.rows, to=to)
    if answer.sentence:
        sentence = textwrap.fill(answer.sentence, min(WIDTH, to.width), break_long_words=False, break_on_hyphens=False)
        to.print(plain(sentence), markup=False, style="bold", soft_wrap=True)
    if answer.page:
        click.echo(answer.page)


def plain(text: str) -> str:
    """Return `text` with ordinary blanks: people search for them."""
    return text.replace("\u00a0", " ")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, to: Console | None = None) -> None:
    """Print a table: columns of numbers to the right, verdicts in colour."""
    if to is None:
        to = Console(highlight=False)
        to.width = to.width if to.is_terminal else _LIST_WIDTH
    table = Table(box=SIMPLE_HEAD if to.is_terminal else None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        numeric = all(_NUMBER.match(row[number]) for row in rows)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell), style=_COLOURS.get(cell.strip("()"), "")) for cell in row))
    to.print(table)


_CODES = {"pass": 0, "improvement": 0, "regression": 1, "inconclusive": 3}


def check_answer(result: "Check", notes: Sequence[str]) -> Answer:
    """Say the `notes` and return what a check has found; its exit code tells a CI job the verdict."""
    from harness.regression.check_wording import HEADINGS, cells, headline

    for note in notes:
        click.echo(note)
    shown = [number for number, heading in enumerate(HEADINGS) if heading not in ("Noise floor", "Launches")]
    return Answer(
        sentence=headline(result),
        headings=[HEADINGS[number] for number in shown],
        rows=[[cells(row)[number] for number in shown] for row in result.rows],
        data={"verdict": result.verdict, "against": result.reference.label, "rows": result.rows, "notes": notes},
        code=_CODES[result.verdict],
    )
