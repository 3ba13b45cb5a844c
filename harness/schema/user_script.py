"""A user's script as what is trained: its path, its arguments, and what the batch size in it is of."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.base.record_words import LINE, check_text

SCRIPT = "script"
"""Data set, preset and kind of data of a workload that is a user's script."""
PER_RANK = "per-rank"
OF_ALL_RANKS = "global"


@dataclass(frozen=True, kw_only=True, slots=True)
class UserScript:
    """The script at `path` with its `arguments`; its batch size is of each rank (`PER_RANK`) or of all."""

    path: Path
    arguments: tuple[str, ...]
    batch: str

    @property
    def command(self) -> str:
        """Path and arguments as one line for a shell."""
        return shlex.join([str(self.path), *self.arguments])


def parse_script(command: str, batch: str) -> UserScript:
    """Return the script that `UserScript.command` gave the line of.

    Raises:
        UserError: it is no such line.
    """
    try:
        path, *arguments = shlex.split(command)
    except ValueError as error:
        raise UserError(f"SCRIPT={command} is not a script and its arguments ({error}): quote them") from error
    check_text("script", path, LINE)
    return UserScript(path=Path(path), arguments=tuple(arguments), batch=batch)


def check_own_rate(pattern: str) -> None:
    """Check the expression that finds a script's own rate in what it prints.

    Raises:
        UserError: it is no regular expression, or has not one group.
    """
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise UserError(f"OWN_RATE={pattern} is no regular expression ({error}): write one") from error
    if groups != 1:
        raise UserError(f"OWN_RATE={pattern} has {groups} groups: put parentheses around the number, as in ([0-9.]+)")
