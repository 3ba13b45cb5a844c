"""Options and arguments that several commands have, each declared once; and how a command ends.

With a table, one sentence with its interval, the page's path; or with the same as one JSON document.
"""

import contextlib
import functools
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
import msgspec
from click.core import ParameterSource

from harness.base.errors import RunError, UserError
from harness.base.files import write_atomic
from harness.base.user_path import UserPath
from harness.cli import MAKE
from harness.report.answer import Answer, Cell, markdown, plain
from harness.schema.option import GROUPS, SPREAD, WHAT, WHERE, WRITTEN, options

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]

if TYPE_CHECKING:
    from rich.console import Console


class GroupedOption(click.Option):
    """An option that help shows below the heading `group`, the `common` ones first."""

    def __init__(self, *names: Any, group: str = "", common: bool = False, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group, self.common = group, common


class GroupedCommand(click.Command):
    """A command of many options: its help has a section for each group of them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those without a group at the end."""
        for group in (*GROUPS, ""):
            own = [one for one in self.get_params(ctx) if getattr(one, "group", "") == group]
            own.sort(key=lambda one: not getattr(one, "common", False))
            if shown := [record for one in own if (record := one.get_help_record(ctx)) is not None]:
                with formatter.section(group or "Options"):
                    formatter.write_dl(shown)


def setting(*names: str, group: str, **settings: Any) -> Option:
    """Return the decorator of a click option below the heading `group`."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


# An option below the heading of what is trained, how it is spread, where it runs, what is written.
what, spread, where, written = (partial(setting, group=group) for group in (WHAT, SPREAD, WHERE, WRITTEN))


def _folder(name: str, default: str | None, text: str, group: str, **settings: Any) -> Option:
    path, kind = Path(default) if default else None, UserPath()
    return setting(name, group=group, type=kind, default=path, show_default=bool(default), help=text, **settings)


results_option = _folder("--results", "results", "Folder of records.", WRITTEN, common=True)
reports_option = _folder("--reports", "reports", "Folder of reports.", WRITTEN, common=True)
baselines_option = _folder("--baselines", "results/baselines", "Folder of baselines.", WRITTEN)


def _data_dir(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    """Say that DATA_DIR of the environment, which many programs have, is not taken."""
    other = os.environ.get("DATA_DIR")
    if value is None and other:
        text = f"harness: DATA_DIR={other} of the environment is not used"
        click.echo(f"{text}: write DATA_DIR=folder behind make's target, or export HARNESS_DATA_DIR", err=True)
    return value


data_dir_option = _folder(
    "--data-dir", None, "Folder with the original files.", WHAT, envvar="HARNESS_DATA_DIR", callback=_data_dir
)
network_option = click.option(
    "--network", help="ALPHA,BETA or a probe.json, for predictions [default: this machine's newest probe]."
)
# An option whose help names its default.
defaulted = partial(click.option, show_default=True)
style_option = defaulted(
    "--style",
    type=click.Choice(("screen", "paper")),
    default="screen",
    help="paper: also PDF figures of one column and of two.",
)
budget_option = defaulted("--budget", type=click.FloatRange(min=0), default=30.0, help="Minutes to measure.")
sweep_argument = click.argument("sweep", required=False)


def check_mpi() -> None:
    """Refuse a site's MPI library that mpi4py cannot load before anything starts, or say that it may be so.

    Raises:
        UserError: no launch can work, or there is no launcher.
    """
    from harness.comm.mpi_library import find_bad_library

    bad = find_bad_library()
    if bad is not None and bad.certain:
        raise UserError(str(bad))
    if bad is not None:
        click.echo(f"harness: {bad}", err=True)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def given_command() -> str:
    """Return the running command with the options that were given on its command line."""
    context = click.get_current_context()
    words = ["harness", context.info_name or ""]
    for option in context.command.params:
        name = option.name or ""
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and name in context.params:
            value = context.params[name]
            for one in value if isinstance(value, tuple) else (value,):
                words += [option.opts[0], *([] if one is True else [str(one)])]
    return shlex.join(words)


def with_options(*options: Option) -> Callable[[Command], Command]:
    """Return a decorator that adds `options` to a click command, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


folder_options = with_options(results_option, reports_option)
all_folder_options = with_options(results_option, baselines_option, reports_option)


def field_options(kind: type, group: str, values: Mapping[str, str] | None = None) -> list[Option]:
    """Return a click option for each field of the dataclass `kind` that users set; one that is not given is None.

    They are below the heading `group` where a field has none of its own. `values` has what may be written for fields
    whose choices the dataclass does not know.
    """
    found = []
    for field, asked in options(kind):
        flag = f"--{asked.name or field.name.replace('_', '-')}"
        facts: dict[str, Any] = {"group": asked.group or group, "common": asked.common, "help": asked.help}
        typed, *more = [part for part in get_args(field.type) or (field.type,) if part is not type(None)]
        if typed is bool:
            off = asked.opposite or f"no-{flag[2:]}"
            found.append(setting(f"{flag}/--{off}", field.name, default=None, **facts))
        else:
            metavar = (values or {}).get(field.name) or asked.metavar or None
            found.append(setting(flag, field.name, type=typed, metavar=metavar, multiple=bool(more), **facts))
    return found


# Not tokens of language models: --max-tokens, --pad-token, --tokenizer.
_NAME = re.compile(
    r"--?(?:[a-z0-9]+[-_])*(?:password|passwd|secret|credentials?|api[-_]?key|private[-_]?key)"
    r"|--?(?:(?:auth|access|api|bearer|hf|github|gitlab|wandb|login|user)[-_])?token",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@", re.IGNORECASE)  # user:password@host


def check_secrets(arguments: Iterable[str]) -> None:
    """Refuse arguments that look like secrets; the sentence does not hold them.

    Raises:
        UserError: naming the option.
    """
    for argument in arguments:
        name = argument.partition("=")[0]
        if _NAME.fullmatch(name) or _ADDRESS.search(argument):
            what = f"'{name}'" if _NAME.fullmatch(name) else "that is an address with a password"
            raise UserError(
                f"a script argument {what} looks like a secret, and arguments stand in records and reports: let the "
                "script read it from the environment or from a file"
            )


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
    from rich.console import Console

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


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, to: "Console | None" = None) -> None:
    """Print a table: columns of numbers to the right, verdicts in colour."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if to is None:
        to = Console(highlight=False)
        to.width = to.width if to.is_terminal else _LIST_WIDTH
    table = Table(box=SIMPLE_HEAD if to.is_terminal else None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        numeric = all(_NUMBER.match(str(row[number])) for row in rows)
        table.add_column(heading.replace("\n", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(str(cell)), style=_COLOURS.get(str(cell).strip("()"), "")) for cell in row))
    to.print(table)
