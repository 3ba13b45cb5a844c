"""Paths as users write them: ``~`` is their home also where no shell has seen it, as after ``DATA=`` of make."""

import os
from pathlib import Path
from typing import Any

import click


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return `path` with the home that ``~`` or ``~name`` at its beginning stands for.

    What is there under the name as it is written stays, as does the home of a user whom nobody knows.
    """
    written = Path(path)
    if written.exists():
        return written
    try:
        return written.expanduser()
    except RuntimeError:
        return written


class UserPath(click.Path):
    """The type of options and arguments that are paths."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = super().convert(value, param, ctx)
        return expanded(path) if isinstance(path, Path) else path
