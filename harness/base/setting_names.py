"""How messages name a setting: as the user of this process writes it, after ``make`` or after ``harness``.

Pages and records are read by others than the user who made them: they write ``--name value``.
"""

import contextlib
import os
from collections.abc import Iterator

from harness.base.record_words import make_word, shell_line

MAKE_SETTINGS = "HARNESS_MAKE"
"""The variable that is 1 in all that a make target has started, ranks too."""


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

    `name` is that of the option without its dashes at the front. A `value` of True is a switch; without one only the
    name is returned.
    """
    if os.environ.get(MAKE_SETTINGS) == "1":
        name = name.replace("-", "_").upper()
        if value is None:
            return f"{name}="
        return make_word(name, int(value) if isinstance(value, bool) else value)
    option = f"--{name.replace('_', '-').lower()}"
    return option if value is None or value is True else shell_line((option, value))
