"""Options and arguments that several commands have, each declared once."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from harness.base.errors import UserError
from harness.schema.option import GROUPS, SPREAD, WHAT, WHERE, WRITTEN, options

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]


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
    path, kind = Path(default) if default else None, click.Path(path_type=Path)
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
