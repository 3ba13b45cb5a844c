"""How messages name a setting: as its user writes it, after ``make``, after ``harness``, or in a call of a script.

Pages and records are read by others than the user who made them: they write ``--name value``.
"""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

from harness.base.record_words import make_word, shell_line

MAKE_SETTINGS = "HARNESS_MAKE"
"""The variable that is 1 in all that a make target has started, ranks too."""

_in_a_call: ContextVar[bool] = ContextVar("in_a_call", default=False)


@contextlib.contextmanager
def arguments_of_a_call() -> Iterator[None]:
    """Have messages write ``name=value``, as a Python script does, while it is entered."""
    token = _in_a_call.set(True)
    try:
        yield
    finally:
        _in_a_call.reset(token)


@contextlib.contextmanager
def settings_of_make() -> Iterator[None]:
    """Have messages write ``NAME=value`` while it is entered."""
    before = os.environ.get(MAKE_SETTINGS)
    os.environ[MAKE_SETTINGS] = "1"
    try:
        yield
    finally:
        del os.environ[MAKE_SETTINGS]
        if before is not None:
            os.environ[MAKE_SETTINGS] = before


def setting(name: str, value: object = None) -> str:
    """Return a setting as the user writes it: ``--batch-per-rank 64``, after make ``BATCH_PER_RANK=64``.

    In a call of a script it is ``batch_per_rank=64``.

    `name` is that of the option without its dashes at the front. A `value` of True is a switch; without one only the
    name is returned.
    """
    if _in_a_call.get():
        argument = name.replace("-", "_").lower()
        return f"{argument}=" if value is None else f"{argument}={value!r}"
    if os.environ.get(MAKE_SETTINGS) == "1":
        name = name.replace("-", "_").upper()
        if value is None:
            return f"{name}="
        return make_word(name, int(value) if isinstance(value, bool) else value)
    option = f"--{name.replace('_', '-').lower()}"
    return option if value is None or value is True else shell_line((option, value))
