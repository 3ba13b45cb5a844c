"""``harness make``, the other end of the Makefile: ``NAME=value`` becomes an option or an argument of a command.

The Makefile passes the text of MAKEOVERRIDES, which GNU make writes: everything that was assigned on its command
line and nothing else, so that no variable of the environment is taken for a setting.
"""

import difflib
import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping

import click

from harness.base.errors import UserError, unknown
from harness.cli import COMMANDS, MAKE, main

OF_MAKE = ("PYTHON", "SHELL", "MPI")  # read by the Makefile itself, or by every command
ACTIONS = {"baseline": "save", "bundle": "write", "data": "list", "site": "check"}  # what ACTION= is by default
TARGETS = {"test": ("TESTS",), "soak": ("MINUTES", "SEED")}  # those that call no command of the harness

Settings = dict[str, click.Parameter]
_SWEEP = "SWEEP"


def read_overrides(text: str) -> dict[str, str]:
    """Return the settings in `text`, MAKEOVERRIDES with newlines written ``\\n``.

    GNU make writes a blank or a backslash in a value behind a backslash and a dollar twice (`quote_for_env` in its
    main.c), and ``:=`` behind a name that was given so.
    """
    words = re.findall(r"(?:\\.|[^\\ \t])+", text)
    plain = (re.sub(r"\\(.)|\$\$", lambda found: {"n": "\n", None: "$"}.get(found[1], found[1]), w) for w in words)
    pairs = (word.partition("=") for word in plain)
    return {name.removesuffix(":"): value for name, _, value in pairs}


def settings_of(command: click.Command) -> Settings:
    """Return the parameters of `command` by the names of their settings: ``--batch-per-rank`` is BATCH_PER_RANK."""
    found: Settings = {}
    for parameter in command.params:
        names = [parameter.name or ""]
        if isinstance(parameter, click.Option):
            longs = (*parameter.opts, *parameter.secondary_opts)
            names = [name.removeprefix("--") for name in longs if name.startswith("--")]
        found |= {name.replace("-", "_").upper(): parameter for name in names}
    return found


def command_line(target: str, given: Mapping[str, str]) -> list[str]:
    """Return the words of the command line that ``make TARGET NAME=value ...`` stands for.

    Raises:
        UserError: a setting is none of the command's, or the command needs one that is not given.
    """
    left = {name: value for name, value in given.items() if name not in OF_MAKE}
    words, command = [target], _command(main, target)
    if isinstance(command, click.Group):
        words.append(left.pop("ACTION", "") or ACTIONS[target])
        command = _command(command, words[1])
    known = settings_of(command)
    for name in left:
        if name not in known:
            raise stranger(target, name, [*known, *(["ACTION"] if target in ACTIONS else [])])
    arguments: list[str] = []
    for name, parameter in known.items():
        value = left.get(name, "")
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
    return [one for word in words for one in word.split(",") if one] if name == _SWEEP else words


def split_words(name: str, text: str) -> list[str]:
    """Return the words of `text`, quoted as in a shell; `name` is the setting's.

    Raises:
        UserError: a quotation is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name}={text} cannot be split into words ({error}): quote it as in a shell") from error


_LINE = re.compile(r"`harness ([a-z]+)([^`]*)`")
_SHELL_WORD = re.compile(r"(?:'[^']*'|\S)+")
_WORD = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)([= ][A-Z0-9][^\s;:,)`]*(?:,[A-Z0-9]+)*)?")


def as_make(text: str, target: str) -> str:
    """Return a message of the command of `target` in make words: `harness report --base 2` is `make report BASE=2`."""

    def word(found: re.Match[str]) -> str:
        value = found[2] or ""
        return f"{_as_setting(found[1])}={f'1{value}' if _is_flag(own, found[1]) else value[1:]}"

    own = _known_settings(target, ACTIONS.get(target, ""))
    return _WORD.sub(word, lines_as_make(text))


def lines_as_make(text: str) -> str:
    """Return `text` with the command lines in it, between backticks, as those of make."""

    def line(found: re.Match[str]) -> str:
        usual, words = ACTIONS.get(found[1], ""), _SHELL_WORD.findall(found[2])
        action = words.pop(0) if usual and words and not words[0].startswith("-") else usual
        settings = _known_settings(found[1], action)
        places = iter(name for name, one in settings.items() if isinstance(one, click.Argument))
        given = ["make", found[1], *([f"ACTION={action}"] if action != usual else [])]
        while words:
            name, equals, value = words.pop(0).partition("=")
            if not name.startswith("--"):
                name, value = next(places, "ARGUMENTS"), name
            elif not equals:
                value = "1" if _is_flag(settings, name) else words.pop(0) if words else ""
            given.append(f"{_as_setting(name)}={value.replace('$', '$$')}")
        return f"`{' '.join(given)}`"

    return _LINE.sub(line, text)


def _as_setting(option: str) -> str:
    return option.removeprefix("--").replace("-", "_").upper()


def _is_flag(settings: Settings, option: str) -> bool:
    found = settings.get(_as_setting(option))
    return isinstance(found, click.Option) and found.is_flag


def _known_settings(target: str, action: str) -> Settings:
    """Return the settings of `make TARGET ACTION=`, none of what there is not."""
    command = main.get_command(click.Context(main), target) if target in COMMANDS else None
    if isinstance(command, click.Group):
        command = command.get_command(click.Context(command), action)
    return settings_of(command) if command else {}


def stranger(target: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a setting that `target` does not have."""
    names = sorted(known)
    near = difflib.get_close_matches(name.upper(), names, n=1)
    hint = f"did you mean {near[0]}=?" if near else f"it has {', '.join(names) or 'none'}"
    return UserError(f"{name}= is not a setting of `make {target}`: {hint}")


def _command(group: click.Command, name: str) -> click.Command:
    assert isinstance(group, click.Group)
    context = click.Context(group)
    found = group.get_command(context, name)
    if found is None:
        known = group.list_commands(context)
        raise (
            unknown("target", name, known)
            if group is main
            else UserError(f"ACTION={name} is unknown: use {', '.join(known)}")
        )
    return found


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
def make(target: str, overrides: str) -> object:
    """Run the command that is called like the make TARGET, with make's OVERRIDES as its settings."""
    given = read_overrides(overrides)
    if target == "help":
        for line in help_lines():
            click.echo(line)
        return 0
    if target in TARGETS:
        for name in given:
            if name not in (*OF_MAKE, *TARGETS[target]):
                raise stranger(target, name, TARGETS[target])
        return 0
    if given.get("MPI"):
        os.environ["HARNESS_MPI"] = given["MPI"]
    return main.main(args=command_line(target, given), prog_name="harness", standalone_mode=False, obj=MAKE)


def help_lines() -> Iterator[str]:
    """Yield the settings of every target, those of `make sweep` once for all that share them."""
    swept = settings_of(_command(main, "sweep"))
    yield from _paragraph("make sweep", swept)
    for name in COMMANDS:
        found = _command(main, name)
        if name == "sweep":
            continue
        parts = (
            {f" ACTION={part}": _command(found, part) for part in found.list_commands(click.Context(found))}
            if isinstance(found, click.Group)
            else {"": found}
        )
        for action, part in parts.items():
            own = settings_of(part)
            shared = [setting for setting in own if setting in swept]
            first = ""
            if len(shared) > 10:  # the same training: not listed twice
                own = {setting: parameter for setting, parameter in own.items() if setting not in swept}
                first = "the training of make sweep,"
            yield from _paragraph(f"make {name}{action}", own, first)


def _paragraph(title: str, settings: Settings, first: str = "") -> list[str]:
    shown = {id(parameter): name for name, parameter in reversed(settings.items())}  # --exclusive, not --share-nodes
    words = [first, *(_hint(name, settings[name]) for name in settings if shown[id(settings[name])] == name)]
    text = " ".join(filter(None, words)) or "no settings"
    return textwrap.wrap(
        f"{title}: {text}", width=110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _hint(name: str, parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return f"{name}=1"
    values = parameter.metavar or ""
    return f"{name}={values.replace(' ', '_')}" if "|" in values else f"{name}="
