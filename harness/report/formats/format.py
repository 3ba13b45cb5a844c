"""What a format is: a name, the commands whose answers it fits, and the function that writes an answer in it."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.report.answer import Answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format of other tools. `commands` are those whose answers have what it needs; `render` returns the text."""

    name: str
    commands: frozenset[str]
    render: Callable[[Answer], str]
