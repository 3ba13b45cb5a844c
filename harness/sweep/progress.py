"""How a running sweep shows itself: a bar with the time left on a terminal, plain lines elsewhere."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from harness.sweep.plan import format_seconds


class Display(Protocol):
    """What the launch loop tells the user of launches, by their names (`Pace.name`)."""

    def started(self, name: str) -> None:
        """A launch begins."""

    def ended(self, name: str, outcome: str, left: float | None) -> None:
        """A launch has ended; `left` is the estimate in seconds of all that is left."""

    def dropped(self, launches: int) -> None:
        """So many launches will not be made."""

    def say(self, text: str) -> None:
        """Something the user should know of."""


@contextlib.contextmanager
def display(total: int, console: Console) -> Iterator[Display]:
    """Yield the display that suits `console` for `total` launches."""
    if not console.is_terminal:
        yield _Lines(total, console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    # Drawn once a second: the bar shares the cores with the ranks that are being timed.
    with Progress(*columns, console=console, refresh_per_second=1) as bar:
        yield _Bar(bar, bar.add_task("starting", total=total, left=""), total)


def say(console: Console, text: str) -> None:
    """Print one plain line, whatever its width and brackets."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Lines:
    def __init__(self, total: int, console: Console) -> None:
        self._total = total
        self._ended = 0
        self._console = console

    def started(self, name: str) -> None:
        say(self._console, f"[{self._ended + 1}/{self._total}] {name}: started")

    def ended(self, name: str, outcome: str, left: float | None) -> None:
        self._ended += 1
        say(self._console, f"[{self._ended}/{self._total}] {name}: {outcome}{_left(left, '; ')}")

    def dropped(self, launches: int) -> None:
        self._total -= launches

    def say(self, text: str) -> None:
        say(self._console, text)


class _Bar:
    def __init__(self, bar: Progress, task: TaskID, total: int) -> None:
        self._bar = bar
        self._task = task
        self._total = total

    def started(self, name: str) -> None:
        self._bar.update(self._task, description=name)

    def ended(self, name: str, outcome: str, left: float | None) -> None:
        say(self._bar.console, f"{name}: {outcome}")
        self._bar.update(self._task, advance=1, left=_left(left, ""))

    def dropped(self, launches: int) -> None:
        self._total -= launches
        self._bar.update(self._task, total=self._total)

    def say(self, text: str) -> None:
        say(self._bar.console, text)


def _left(seconds: float | None, before: str) -> str:
    return f"{before}about {format_seconds(seconds)} left" if seconds else ""
