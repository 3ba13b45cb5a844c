"""Options and arguments that several commands have, each declared once."""

import functools
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from harness.base.command_context import Context
from harness.base.current_user import UserPath
from harness.base.errors import UserError
from harness.base.removal import check_place
from harness.base.setting_names import setting
from harness.cli.terminal import echo
from harness.comm.harness_variables import MPI_CHOICES
from harness.regression.change_threshold import DEFAULT_THRESHOLD, LARGEST_THRESHOLD
from harness.schema.option import GROUPS, SPREAD, WHAT, WHERE, WRITTEN, options
from harness.schema.option import Option as DeclaredOption
from harness.schema.sweep_folder import holds_reports, holds_results

Command = TypeVar("Command", bound=Callable[..., Any])
Group = TypeVar("Group")
Option = Callable[[Any], Any]


class GroupedOption(click.Option):
    """An option that help shows below the heading `group`, the `common` ones first; `declared` is that of its field."""

    def __init__(
        self,
        *names: Any,
        group: str = "",
        common: bool = False,
        declared: DeclaredOption | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*names, **settings)
        self.group = group
        self.common = common
        self.declared = declared


_ALL = "harness.help_all"  # in the context's `meta` where --help-all asked for the help


def _show_all(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Print the help with every option, and end."""
    if value and not context.resilient_parsing:
        context.meta[_ALL] = True
        echo(context.get_help())
        context.exit()


class GroupedCommand(click.Command):
    """A command of many options: its help has a section for each group of them.

    ``--help`` shows the options called `brief` and the `examples`, command lines of it; ``--help-all`` shows every
    option.
    """

    def __init__(self, *names: Any, brief: tuple[str, ...], examples: tuple[str, ...], **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.brief = brief
        self.examples = examples

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, ``--help-all`` after click's own ``--help``."""
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options.",
        )
        return [*super().get_params(ctx), help_all]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those without a group at the end."""
        listed = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        if _ALL not in ctx.meta:
            brief = (*self.brief, *ctx.help_option_names, "--help-all")
            listed = [option for option in listed if set(option.opts) & set(brief)]
        for group in (*GROUPS, ""):
            options = [option for option in listed if getattr(option, "group", "") == group]
            options.sort(key=lambda option: not getattr(option, "common", False))
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(group or "Options"):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on a line of its own, and where the other options are."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
        if _ALL not in ctx.meta:
            formatter.write("\nmore: --help-all\n")


def grouped_option(*names: str, group: str, **settings: Any) -> Option:
    """Return the decorator of a click option below the heading `group`."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


# An option below the heading of what is trained, how it is spread, where it runs, what is written.
what = partial(grouped_option, group=WHAT)
spread = partial(grouped_option, group=SPREAD)
where = partial(grouped_option, group=WHERE)
written = partial(grouped_option, group=WRITTEN)


def _folder(name: str, default: str | None, text: str, group: str, **settings: Any) -> Option:
    path = Path(default) if default else None
    return grouped_option(
        name, group=group, type=UserPath(), default=path, show_default=bool(default), help=text, **settings
    )


def _data_dir(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    """Say that DATA_DIR of the environment, which many programs have, is not taken."""
    ignored = os.environ.get("DATA_DIR")
    if value is None and ignored:
        text = f"harness: DATA_DIR of the environment ('{ignored}') is not used"
        echo(f"{text}: give {setting('data_dir', 'FOLDER')}, or export HARNESS_DATA_DIR", err=True)
    return value


_FOLDER_OPTIONS = {
    "results": _folder("--results", "results", "Folder of records.", WRITTEN, common=True),
    "reports": _folder("--reports", "reports", "Folder of reports.", WRITTEN, common=True),
    "baselines": _folder("--baselines", "results/baselines", "Folder of baselines.", WRITTEN),
    "data_dir": _folder(
        "--data-dir", None, "Folder with the original files.", WHAT, envvar="HARNESS_DATA_DIR", callback=_data_dir
    ),
}


def context_options(*names: str, measures: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of the folders called `names`, which arrive in a parameter `context`.

    `names` are fields of `Context`; the others have their defaults. A folder of reports, and one of results where the
    command `measures`, is refused before any work where it has something else in it.
    """

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(*arguments: Any, **options: Any) -> Any:
            folders = {name: options.pop(name) for name in names}
            if "reports" in names and not holds_reports(folders["reports"]):
                check_place(folders["reports"], "--reports")
            if measures and not holds_results(folders["results"]):
                check_place(folders["results"], "--results")
            return function(*arguments, context=Context(say=echo, **folders), **options)

        return with_options(*(_FOLDER_OPTIONS[name] for name in names))(command)  # type: ignore[return-value]

    return decorate


network_option = click.option(
    "--network",
    metavar="ALPHA,BETA|FILE",
    help="Between nodes, for predictions of counts that cannot run here; FILE: a probe.json.",
)
# An option whose help names its default.
defaulted = partial(click.option, show_default=True)
_STYLES = ("screen", "paper")
style_option = defaulted(
    "--style",
    type=click.Choice(_STYLES),
    metavar="|".join(_STYLES),
    default="screen",
    help="paper: also PDF figures of one column and of two.",
)
base_option = click.option(
    "--base", type=click.IntRange(min=1), help="Rank count that ratios are over [default: the smallest]."
)


class NumberRange(click.FloatRange):
    """A range of numbers. Click's own takes nan for a number of any range, as no comparison with it is true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; raise click's error for what is none or out of the range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def threshold_option(smallest: float, help_line: str) -> Callable[[Any], Any]:
    """Return the decorator of ``--threshold``, in per cent from `smallest` on."""
    return defaulted(
        "--threshold",
        type=NumberRange(smallest, round(100 * LARGEST_THRESHOLD)),
        default=100 * DEFAULT_THRESHOLD,
        help=help_line,
    )


budget_option = defaulted(
    "--budget", type=NumberRange(min=0), metavar="MINUTES", default=30.0, help="Minutes to measure."
)
sweep_argument = click.argument("sweep", required=False)


def mpi_option(command: Command) -> Command:
    """Add ``--mpi`` to a command that starts ranks: all that it starts finds the choice in HARNESS_MPI."""

    @functools.wraps(command)
    def with_mpi(*arguments: Any, mpi: str | None, **options: Any) -> Any:
        if mpi is not None:
            os.environ["HARNESS_MPI"] = mpi
        return command(*arguments, **options)

    return where(  # type: ignore[no-any-return]
        "--mpi",
        type=click.Choice(MPI_CHOICES),
        metavar="|".join(MPI_CHOICES),
        help="MPI library: of the Python environment, or the site's, which is first on PATH [default: wheel].",
    )(with_mpi)


_OF_THE_ANSWER = ("as_json", "quiet", "formats", "outputs")  # parameters that decide how an answer is shown


def refuse_bad_mpi() -> None:
    """Refuse, before anything starts, a site's MPI library that mpi4py cannot load, or say that it may not load.

    Raises:
        UserError: no launch can work, or there is no launcher.
    """
    from harness.comm.mpi_library import find_bad_library

    bad = find_bad_library()
    if bad is not None and bad.certain:
        raise UserError(str(bad))
    if bad is not None:
        echo(f"harness: {bad}", err=True)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def given_command() -> str:
    """Return the running command with the options that were given on its command line and decide what it does."""
    context = click.get_current_context()
    words = ["harness", context.info_name or ""]
    arguments: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value = None if name in _OF_THE_ANSWER else context.params.get(name)
        if value is None or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Argument):
            arguments += map(str, values)
        elif isinstance(value, bool):
            words.append(parameter.opts[-1] if value else parameter.secondary_opts[0])
        else:
            words += [word for part in values for word in (parameter.opts[-1], str(part))]
    return shlex.join([*words, *arguments])


def with_options(*options: Option) -> Callable[[Command], Command]:
    """Return a decorator that adds `options` to a click command, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def take(kind: type[Group], values: dict[str, Any]) -> Group:
    """Take the fields of the dataclass `kind` out of the `values` of a command's parameters, and return them as one."""
    return kind(**{field.name: values.pop(field.name) for field in fields(kind)})  # type: ignore[arg-type]


def option_group(
    parameter: str, take_group: Callable[[dict[str, Any]], object], *options: Option
) -> Callable[[Command], Command]:
    """Return a decorator that adds `options` to a click command, whose values arrive as one object in `parameter`.

    `take_group` takes them out of the values of all parameters and makes the object. Groups of decorators above are
    among these.
    """

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(*arguments: Any, **values: Any) -> Any:
            group = take_group(values)
            return function(*arguments, **values, **{parameter: group})

        return with_options(*options)(command)  # type: ignore[return-value]

    return decorate


def field_options(kind: type, group: str, values: Mapping[str, str] | None = None) -> list[Option]:
    """Return a click option for each field of the dataclass `kind` that users set; one that is not given is None.

    They are below the heading `group` where a field has none of its own. `values` has what may be written for fields
    whose choices the dataclass does not know.
    """
    click_options = []
    for field, asked in options(kind):
        flag = f"--{asked.name or field.name.replace('_', '-')}"
        facts: dict[str, Any] = {"group": asked.group or group, "common": asked.common, "help": asked.help}
        facts["declared"] = asked
        typed, *more = [part for part in get_args(field.type) or (field.type,) if part is not type(None)]
        if typed is bool:
            off = asked.opposite or f"no-{flag[2:]}"
            click_options.append(grouped_option(f"{flag}/--{off}", field.name, default=None, **facts))
        else:
            metavar = (values or {}).get(field.name) or asked.metavar or None
            click_options.append(
                grouped_option(flag, field.name, type=typed, metavar=metavar, multiple=bool(more), **facts)
            )
    return click_options


def refuse_given(reason: str, *names: str) -> None:
    """Refuse options of the running command that were given on its command line and would do nothing.

    `reason` is the first half of the sentence, `names` are those of their parameters.

    Raises:
        UserError: naming the option.
    """
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError(f"{reason}: leave out {option.opts[-1]}")


# Values of options as users write them: lists of counts (``1..8``), words quoted as in a shell, and no secrets.

_FORMS = "write 1..8 (every count), 1..64*2 (doublings) or 1,2,4 (a list)"
_LIMIT = 1_000_000
MOST_COUNTS = 1_000
"""Counts in one list: many more than anyone plots, and few enough that every combination can be tried."""


def parse_counts(field: str, text: str) -> tuple[int, ...]:
    """Parse `text` into ascending counts without repeats.

    ``1..8`` is 1 2 3 4 5 6 7 8; ``1..64*2`` is 1 2 4 8 16 32 64; parts may be joined by commas.

    Raises:
        UserError: the text is not such a list, a count is below 1, or a range runs backwards.
    """
    counts: set[int] = set()
    for part in text.split(","):
        counts.update(_parse_part(field, text, part.strip()))
    return tuple(sorted(counts))


def _parse_part(field: str, text: str, part: str) -> list[int]:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+)(?:\*(\d+))?)?", part, flags=re.ASCII)
    if not match:
        raise UserError(f"{setting(field, text)} is not a list of counts: {_FORMS}")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    factor = int(match[3]) if match[3] else None
    if first < 1:
        raise UserError(f"{setting(field, text)} has a count below 1: start at 1")
    if last > _LIMIT:
        raise UserError(f"{setting(field, text)} has a count above {_LIMIT:,}: write a smaller one")
    if last < first:
        raise UserError(f"{setting(field, text)} runs backwards: write {last}..{first}")
    if factor is None:
        if last - first >= MOST_COUNTS:
            raise UserError(
                f"{setting(field, text)} is {last - first + 1:,} counts: {first}..{last}*2 is the doublings"
            )
        return list(range(first, last + 1))
    if factor < 2:
        raise UserError(f"{setting(field, text)} never grows: the factor after * must be at least 2")
    counts = [first]
    while counts[-1] * factor <= last:
        counts.append(counts[-1] * factor)
    return counts


# Words of a setting's value, quoted as in a shell.


def split_words(name: str, text: str) -> list[str]:
    """Return the words of `text`, quoted as in a shell; `name` is the setting's.

    Raises:
        UserError: a quotation is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"{setting(name, text)} cannot be split into words ({error}): quote it as in a shell"
        ) from error
