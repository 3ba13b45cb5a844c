"""Options and arguments that several commands have, each declared once."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from harness.base.errors import UserError
from harness.schema.option import options

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]


def _folder(name: str, default: str | None, text: str, **settings: Any) -> Option:
    path = Path(default) if default else None
    kind = click.Path(path_type=Path)
    return click.option(name, type=kind, default=path, show_default=bool(default), help=text, **settings)


results_option = _folder("--results", "results", "Folder of records.")
reports_option = _folder("--reports", "reports", "Folder of reports.")
baselines_option = _folder("--baselines", "results/baselines", "Folder of baselines.")
data_dir_option = _folder("--data-dir", None, "Folder with the original files.", envvar="HARNESS_DATA_DIR")
network_option = click.option(
    "--network", help="ALPHA,BETA or a probe.json, for predictions [default: this machine's newest probe]."
)
style_option = click.option(
    "--style",
    type=click.Choice(("screen", "paper")),
    default="screen",
    show_default=True,
    help="paper: also PDF figures of one column and of two.",
)
budget_option = click.option(
    "--budget", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Minutes to measure."
)
sweep_argument = click.argument("sweep", required=False)


def given_command() -> str:
    """Return the running command with the options that were given on its command line."""
    context = click.get_current_context()
    words = ["harness", context.info_name or ""]
    for option in context.command.params:
        name = option.name or ""
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and name in context.params:
            words.append(option.opts[0])
            words.extend([] if context.params[name] is True else [str(context.params[name])])
    return shlex.join(words)


def with_options(options: Sequence[Option]) -> Callable[[Command], Command]:
    """Return a decorator that adds `options` to a click command, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def field_options(kind: type, values: Mapping[str, str] | None = None) -> list[Option]:
    """Return a click option for each field of the dataclass `kind` that users set; one that is not given is None.

    `values` has what may be written for fields whose choices the dataclass does not know.
    """
    found = []
    for field, asked in options(kind):
        flag = f"--{asked.name or field.name.replace('_', '-')}"
        (typed,) = set(get_args(field.type) or (field.type,)) - {type(None)}
        metavar = (values or {}).get(field.name) or asked.metavar or None
        if typed is bool:
            found.append(click.option(f"{flag}/--no-{flag[2:]}", field.name, default=None, help=asked.help))
        else:
            found.append(click.option(flag, field.name, type=typed, metavar=metavar, help=asked.help))
    return found


def split_words(name: str, text: str) -> list[str]:
    """Return the words of `text`, quoted as in a shell; `name` is the setting's.

    Raises:
        UserError: a quotation is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}={text} cannot be split into words ({error}): quote it as in a shell") from error


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
