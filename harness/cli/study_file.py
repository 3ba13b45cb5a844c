"""A study in a file: options of ``harness sweep`` in TOML, ``[train]`` ``epochs = 2`` for ``--epochs 2``.

The tables are the headings of the command's help and the keys are its options, both read from their declarations; the
table ``[check]`` has options of ``harness check``. What the command line gives comes first.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from harness.base.current_user import UserPath
from harness.base.errors import UserError, unknown
from harness.base.files import read_bytes
from harness.cli import main
from harness.cli.common_options import GroupedOption
from harness.schema.option import Option
from harness.schema.study_text import CHECK, COUNTS, TABLES

_OF_CHECK = ("against", "threshold", "until-sure", "other-machine")  # the keys of [check]
_NAMES = (*TABLES, CHECK)


def read_study_options(context: click.Context, argument: click.Parameter, path: Path | None) -> Path | None:
    """Make what the study in `path` says the defaults of the running command: the callback of its parameter.

    All of the file is checked, and what the command has no option for is left to the others.

    Raises:
        UserError: the file cannot be read, or a table, key or value in it is none that there is.
    """
    if path is not None:
        own_names = {parameter.name for parameter in context.command.params}
        defaults = study_defaults(_read_tables(path), f"study '{path}'")
        own_defaults = {name: value for name, value in defaults.items() if name in own_names}
        context.default_map = {**(context.default_map or {}), **own_defaults}
    return path


def study_option() -> Callable[[Any], Any]:
    """Return the decorator of the option ``--study`` of commands that measure a study again."""
    return click.option(
        "--study",
        type=UserPath(),
        is_eager=True,
        expose_value=False,
        callback=read_study_options,
        help="A study's file: its [check] has the limits, its [where] the site.",
    )


def study_defaults(tables: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the values of the study with these `tables` by the parameters of the commands; `place` names the study.

    Raises:
        UserError: a table, key or value is none that there is.
    """
    defaults: dict[str, Any] = {}
    for table, values in tables.items():
        if table not in _NAMES:
            raise unknown(f"table of {place}", table, _NAMES)
        if not isinstance(values, dict):
            raise UserError(f"'{table}' of {place} is not a table: write [{table}] and its settings below")
        settings = study_settings(table)
        for key, value in values.items():
            if key not in settings:
                raise _unknown_key(place, table, key)
            option = settings[key]
            defaults[option.name or key] = _converted(option, value, f"{key} in [{table}] of {place}")
    return defaults


def study_settings(table: str) -> dict[str, click.Option]:
    """Return the options that are the keys of `table`, by these."""
    settings: dict[str, click.Option] = {}
    command = main.get_command(click.Context(main), "check" if table == CHECK else "sweep")
    assert command is not None
    for option in command.params:
        key = option.opts[-1].removeprefix("--")  # the long name is the last: -y, --yes
        if table == CHECK:
            belongs = key in _OF_CHECK
        else:
            belongs = isinstance(option, GroupedOption) and option.group == TABLES[table] and not option.hidden
        if belongs:
            assert isinstance(option, click.Option)
            settings[key] = option
    return settings


def _read_tables(path: Path) -> dict[str, Any]:
    content = read_bytes(path, "study", "name a .toml file of settings")
    try:
        tables: dict[str, Any] = msgspec.toml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"study '{path}' is not TOML ({error}): mend it there") from error
    return tables


def _unknown_key(place: str, table: str, key: str) -> UserError:
    """Return the error for a `key` that `table` does not have: its own table, or the nearest key."""
    for right_table in _NAMES:
        if key in study_settings(right_table):
            return UserError(f"{key} of {place} stands in [{table}]: write it in [{right_table}]")
    return unknown(f"key in [{table}] of {place}", key, study_settings(table))


def _converted(option: click.Option, value: object, place: str) -> object:
    """Return `value` as `option` takes it; `place` says where it is written.

    Raises:
        UserError: the option does not take it.
    """
    if isinstance(option.type, click.types.BoolParamType):
        if not isinstance(value, bool):
            raise UserError(f"{place} is {value!r}: write true or false")
        return value
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (str, int, float)):
            raise UserError(f"{place} is {part!r}: write a number or a text")
    words = [str(part) for part in parts]
    for word in words if option.multiple else [",".join(words)]:
        try:
            option.type.convert(word, option, None)
        except click.BadParameter as error:
            raise UserError(f"{place} is wrong: {error.message}") from error
    return words if option.multiple else ",".join(words)


# What a study's file may have, as a JSON schema: editors complete and check it.

_DRAFT = "http://json-schema.org/draft-07/schema#"
_REGISTERED = ("dataset", "preset", "mode", "scaling", "scheduler")  # help has every value of these, with | between
_NUMBERS_TOO = ("label", "drop", "script-batch", "checkpoint")  # texts that may be numbers
_NUMBERS = {"integer": click.types.IntParamType, "number": click.types.FloatParamType}


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a study's file."""
    tables = {}
    for table in _NAMES:
        keys = {key: _schema_of(key, option) for key, option in study_settings(table).items()}
        tables[table] = {"type": "object", "properties": keys, "additionalProperties": False}
    return {
        "$schema": _DRAFT,
        "title": "Study of mpi-tf-harness",
        "type": "object",
        "properties": tables,
        "additionalProperties": False,
    }


def _schema_of(key: str, option: click.Option) -> dict[str, Any]:
    """Return the schema of a value of `option`, which is called `key`."""
    description = {"description": option.help} if option.help else {}
    if isinstance(option.type, click.types.BoolParamType):
        return {**description, "type": "boolean"}
    if option.multiple:
        return {**description, "type": "array", "items": {"type": "string"}}
    if key in COUNTS:
        counts = {"type": "array", "items": {"type": "integer", "minimum": 1}}
        return {**description, "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}, counts]}
    if isinstance(option.type, click.Choice):
        return {**description, "enum": list(option.type.choices)}
    declared = option.declared if isinstance(option, GroupedOption) else None
    for name, kind in _NUMBERS.items():
        if isinstance(option.type, kind):
            return {**description, "type": name, **_limits(option, declared)}
    if declared is not None and declared.choices and not declared.own_code:
        return {**description, "enum": list(declared.choices)}
    if key in _REGISTERED:
        return {**description, "enum": (option.metavar or "").split("|")}
    return {**description, "type": ["string", "number"] if key in _NUMBERS_TOO else "string"}


def _limits(option: click.Option, declared: Option | None) -> dict[str, float]:
    """Return the range of the numbers that `option` takes."""
    limits: dict[str, float | None] = {}
    if isinstance(option.type, (click.IntRange, click.FloatRange)):
        limits = {"minimum": option.type.min, "maximum": option.type.max}
    elif declared is not None:
        limits = {"minimum": declared.least, "exclusiveMinimum": declared.above, "maximum": declared.most}
    return {name: limit for name, limit in limits.items() if limit is not None and abs(limit) != float("inf")}
