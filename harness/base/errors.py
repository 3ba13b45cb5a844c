"""Errors that a user can mend: one sentence, exit code 2, no traceback."""

import difflib
from collections.abc import Iterable

from harness.base.exit_codes import BAD_INPUT, FAILED, SEPARATE_WORLDS


class UserError(Exception):
    """Bad input. The message is one sentence naming the field, the value and the fix."""

    exit_code = BAD_INPUT
    ag_pass_through = True  # TensorFlow's autograph would set the user's code in front of the sentence

    def __str__(self) -> str:
        """Return the sentence in one line: what a user gave may have several."""
        return "\\n".join(super().__str__().splitlines())


class SeparateWorldsError(UserError):
    """The launcher started several ranks, and each of them is alone in its MPI world."""

    exit_code = SEPARATE_WORLDS


class RunError(Exception):
    """A run that started and could not finish: the message says which rank and why."""

    exit_code = FAILED


class SharedError(Exception):
    """An error that every rank has raised at the same place: rank 0 reports it, the others just end."""

    ag_pass_through = True

    def __init__(self, error: UserError | RunError) -> None:
        super().__init__(str(error))
        self.error = error


_MOST = 12  # choices in one sentence


def unknown(field: str, value: str, choices: Iterable[str]) -> UserError:
    """Return the error for a `value` of `field` that is none of `choices`, naming the nearest ones."""
    names = sorted(choices)
    near = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'? " if near else ""
    if len(names) > _MOST:
        nearest = difflib.get_close_matches(value.lower(), names, n=_MOST, cutoff=0.0)
        return UserError(f"unknown {field} '{value}': {hint}{len(names)} are known, such as {', '.join(nearest)}")
    return UserError(f"unknown {field} '{value}': {hint}known are {', '.join(names)}")
