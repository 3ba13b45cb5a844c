"""``harness make``, the other end of the Makefile: ``NAME=value`` becomes an option or an argument of a command.

The Makefile passes the text of MAKEOVERRIDES, which GNU make writes: everything that was assigned on its command
line and nothing else, so that no variable of the environment is taken for a setting.
"""

import difflib
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping

import click

from harness.base.errors import UserError, unknown
from harness.base.setting_names import settings_of_make
from harness.cli import COMMANDS, main
from harness.cli.common_options import split_words
from harness.cli.launch_options import batch_options
from harness.cli.terminal import echo
from harness.cli.training_options import layout_options, workload_options

OF_MAKE = ("PYTHON", "SHELL")  # read by the Makefile itself
ACTIONS = {
    "baseline": "save",
    "bundle": "write",
    "data": "list",
    "site": "check",
    "study": "init",
}  # what ACTION= is by default
TARGETS = {"test": ("TESTS",), "soak": ("MINUTES", "SEED")}  # those that call no command of the harness

Settings = dict[str, click.Parameter]
_PARTS = {"workload": workload_options, "layouts": layout_options, "jobs": batch_options}
_SWEEP = "SWEEP"


def read_overrides(text: str) -> dict[str, str]:
    """Return the settings in `text`, MAKEOVERRIDES with newlines written ``\\n``.

    GNU make writes a backslash before a blank or a backslash in a value, and a dollar twice (`quote_for_env` in its
    main.c), and ``:=`` after a name that was given so.
    """
    overrides = {}
    for word in re.findall(r"(?:\\.|[^\\ \t])+", text):
        name, _, value = re.sub(r"\\(.)|\$\$", _unquoted, word).partition("=")
        overrides[name.removesuffix(":")] = value
    return overrides


def _unquoted(quoted: re.Match[str]) -> str:
    """Return what ``\\n``, a backslash with another character, or ``$$`` stands for."""
    if quoted[1] is None:
        return "$"
    return "\n" if quoted[1] == "n" else quoted[1]


def settings_of(command: click.Command) -> Settings:
    """Return the parameters of `command` by the names of their settings: ``--batch-per-rank`` is BATCH_PER_RANK."""
    settings: Settings = {}
    for parameter in command.params:
        names = [parameter.name or ""]
        if isinstance(parameter, click.Option):
            longs = (*parameter.opts, *parameter.secondary_opts)
            names = [name.removeprefix("--") for name in longs if name.startswith("--")]
        settings |= {name.replace("-", "_").upper(): parameter for name in names}
    return settings


def command_line(target: str, overrides: Mapping[str, str]) -> list[str]:
    """Return the words of the command line that ``make TARGET NAME=value ...`` stands for.

    Raises:
        UserError: a setting is none of the command's, or the command needs one that is not given.
    """
    values = {name: value for name, value in overrides.items() if name not in OF_MAKE}
    words = [target]
    command = _command(main, target)
    if isinstance(command, click.Group):
        words.append(values.pop("ACTION", "") or ACTIONS[target])
        command = _command(command, words[1])
    settings = settings_of(command)
    for name in values:
        if name not in settings:
            names = [name for name, parameter in settings.items() if not getattr(parameter, "hidden", False)]
            raise unknown_setting(target, name, [*names, *(["ACTION"] if target in ACTIONS else [])])
    arguments: list[str] = []
    for name, parameter in settings.items():
        value = values.get(name, "")
        if isinstance(parameter, click.Option):
            words += _option(name, parameter, value)
        elif parameter.required and not value:
            raise UserError(f"`make {target}` needs {name}=: see `harness {' '.join(words[:2])} --help`")
        elif value:
            arguments += _several(name, value) if parameter.nargs == -1 else [value]
    return [*words, "--", *arguments] if arguments else words


def _several(name: str, value: str) -> list[str]:
    """Return the words of `value`; names of sweeps may also have commas between them."""
    words = split_words(name, value)
    if name != _SWEEP:
        return words
    return [part for word in words for part in word.split(",") if part]


def unknown_setting(target: str, name: str, settings: Iterable[str]) -> UserError:
    """Return the error for a setting that `target` does not have."""
    names = sorted(settings)
    near = difflib.get_close_matches(name.upper(), names, n=1)
    hint = f"did you mean {near[0]}=?" if near else f"it has {', '.join(names) or 'none'}"
    return UserError(f"{name}= is not a setting of `make {target}`: {hint}")


def _command(group: click.Command, name: str) -> click.Command:
    assert isinstance(group, click.Group)
    context = click.Context(group)
    command = group.get_command(context, name)
    if command is None:
        names = group.list_commands(context)
        if group is main:
            raise unknown("target", name, names)
        raise UserError(f"ACTION={name} is unknown: use {', '.join(names)}")
    return command


def _option(name: str, option: click.Option, value: str) -> list[str]:
    """Return the words that give `option` the `value` of the setting `name`, none for an empty one."""
    word = f"--{name.lower().replace('_', '-')}"
    if not value:
        return []
    if not option.is_flag:
        return [f"{word}={value}"]
    if value not in ("0", "1"):
        raise UserError(f"{name}={value} is neither 1 nor 0: write {name}=1 to switch it on")
    opposite = option.opts if word in option.secondary_opts else option.secondary_opts
    return [word] if value == "1" else opposite[:1]


@click.command(name="make", hidden=True)
@click.argument("target")
@click.argument("overrides", default="")
def make_command(target: str, overrides: str) -> object:
    """Run the command that is called like the make TARGET, with make's OVERRIDES as its settings."""
    settings = read_overrides(overrides)
    if target == "help":
        for line in help_lines():
            echo(line)
        return 0
    if target in TARGETS:
        for name in settings:
            if name not in (*OF_MAKE, *TARGETS[target]):
                raise unknown_setting(target, name, TARGETS[target])
        return 0
    with settings_of_make():
        return main.main(args=command_line(target, settings), prog_name="harness", standalone_mode=False)


def help_lines() -> Iterator[str]:
    """Yield the settings of every target; those of a sweep's workload, layouts and jobs once for all that take them."""
    parts = {part: _settings_by(options) for part, options in _PARTS.items()}
    for part, settings in parts.items():
        yield from _paragraph(f"make sweep, {part}", settings)
    for name in COMMANDS:
        for title, command in _commands_of(name):
            settings = settings_of(command)
            taken = [part for part in parts if parts[part].keys() <= settings.keys()]
            for part in taken:
                settings = {setting: settings[setting] for setting in settings if setting not in parts[part]}
            first = f"settings of make sweep for {', '.join(taken)};" if taken else ""
            yield from _paragraph(title, settings, first)


def _settings_by(options: Callable[[Callable[..., None]], Callable[..., None]]) -> Settings:
    """Return the settings that the decorator `options` adds to a command."""

    def command(**_: object) -> None: ...

    return settings_of(click.command(name="part")(options(command)))


def _commands_of(target: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the command of `target` with what make calls it; of a group each of its commands."""
    command = _command(main, target)
    if isinstance(command, click.Group):
        for action in command.list_commands(click.Context(command)):
            yield f"make {target} ACTION={action}", _command(command, action)
    else:
        yield f"make {target}", command


def _paragraph(title: str, settings: Settings, first: str = "") -> list[str]:
    # Of a parameter with two names the first is told: --exclusive, not --share-nodes.
    settings = {name: parameter for name, parameter in settings.items() if not getattr(parameter, "hidden", False)}
    first_names = {id(parameter): name for name, parameter in reversed(settings.items())}
    words = [first, *(_hint(name, settings[name]) for name in settings if first_names[id(settings[name])] == name)]
    text = " ".join(filter(None, words)) or "no settings"
    return textwrap.wrap(
        f"{title}: {text}", width=110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _hint(name: str, parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return f"{name}=1"
    values = parameter.metavar or ""
    return f"{name}={values.replace(' ', '_')}" if "|" in values else f"{name}="
