"""A study in a file: options of ``harness sweep`` in TOML, ``[train]`` ``epochs = 2`` for ``--epochs 2``.

The tables are the headings of the command's help and the keys are its options, both read from their declarations. What
the command line gives comes first.
"""

from pathlib import Path
from typing import Any

import click
import msgspec

from harness.base.errors import UserError, unknown
from harness.base.files import read_bytes
from harness.cli.common_options import GroupedOption
from harness.schema.option import HOW, SPREAD, WHAT, WHERE, WRITTEN

TABLES = {"data": WHAT, "train": HOW, "ranks": SPREAD, "where": WHERE, "output": WRITTEN}
"""The tables of a study, each with the heading that its options have in help."""


def read_study_options(context: click.Context, argument: click.Parameter, path: Path | None) -> Path | None:
    """Make what the study in `path` says the defaults of the running command: the callback of its argument.

    Raises:
        UserError: the file cannot be read, or a table, key or value in it is none of the command's.
    """
    if path is not None:
        context.default_map = {**(context.default_map or {}), **study_defaults(path, context)}
    return path


def study_defaults(path: Path, context: click.Context) -> dict[str, Any]:
    """Return the values of the study in `path` by the parameters of the command of `context`.

    Raises:
        UserError: as `read_study_options`.
    """
    defaults: dict[str, Any] = {}
    for table, values in _read_tables(path).items():
        if table not in TABLES:
            raise unknown(f"table of study '{path}'", table, TABLES)
        if not isinstance(values, dict):
            raise UserError(f"'{table}' of study '{path}' is not a table: write [{table}] and its settings below")
        settings = _settings_below(TABLES[table], context)
        for key, value in values.items():
            if key not in settings:
                raise _unknown_key(path, table, key, context)
            option = settings[key]
            place = f"{key} in [{table}] of study '{path}'"
            defaults[option.name or key] = _converted(option, value, place, context)
    return defaults


def _read_tables(path: Path) -> dict[str, Any]:
    content = read_bytes(path, "study", "name a .toml file of settings")
    try:
        tables: dict[str, Any] = msgspec.toml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"study '{path}' is not TOML ({error}): mend it there") from error
    return tables


def _settings_below(heading: str, context: click.Context) -> dict[str, GroupedOption]:
    """Return the options that help shows below `heading`, by their names without dashes."""
    settings = {}
    for option in context.command.get_params(context):
        if isinstance(option, GroupedOption) and option.group == heading and not option.hidden:
            settings[option.opts[0].removeprefix("--")] = option
    return settings


def _unknown_key(path: Path, table: str, key: str, context: click.Context) -> UserError:
    """Return the error for a `key` that `table` does not have: its own table, or the nearest key."""
    for right_table, heading in TABLES.items():
        if key in _settings_below(heading, context):
            return UserError(f"{key} of study '{path}' stands in [{table}]: write it in [{right_table}]")
    return unknown(f"key in [{table}] of study '{path}'", key, _settings_below(TABLES[table], context))


def _converted(option: GroupedOption, value: object, place: str, context: click.Context) -> object:
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
            option.type.convert(word, option, context)
        except click.BadParameter as error:
            raise UserError(f"{place} is wrong: {error.message}") from error
    return words if option.multiple else ",".join(words)
