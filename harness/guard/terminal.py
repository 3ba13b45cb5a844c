"""Tables for a terminal, wide enough for a log file too."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_LOG_WIDTH = 140  # where the output is no terminal
_COLOURS = {"regression": "bold red", "improvement": "bold green", "pass": "green", "inconclusive": "yellow"}


def console() -> Console:
    """Return where tables go."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_LOG_WIDTH)


def print_table(to: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print a table; the first `left` columns and the last one are text, the others numbers. Verdicts in colour."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        text = number < left or number == len(headings) - 1
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell.strip("()"), "")) for cell in row))
    to.print(table)
