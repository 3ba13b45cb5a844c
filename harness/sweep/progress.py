"""How far the launches of a command are: their pace and the time left, shown by a bar on a terminal, else by lines."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.base.record_words import printable
from harness.schema.layout import Layout, layout_order
from harness.schema.point import Point
from harness.sweep.finished_launches import FinishedLaunch
from harness.sweep.plan import format_seconds, time_left


class Pace:
    """The launches of one command, of which `points` are all; `launches` those that earlier commands made."""

    def __init__(self, points: Sequence[Point], launches: Iterable[FinishedLaunch] = ()) -> None:
        self._repeats = 1 + max(point.repeat for point in points)
        self._base = min((point.layout for point in points), key=layout_order)
        self._epochs: dict[Layout, list[float]] = {}
        self._seconds: dict[Layout, list[float]] = {}
        for launch in launches:
            self.take(launch, launch.wall_seconds)

    def take(self, launch: FinishedLaunch, wall_s: float) -> None:
        """Remember a launch, and the seconds from its start to its end."""
        layout = launch.point.layout
        self._seconds.setdefault(layout, []).append(wall_s)
        if not launch.invalid:
            self._epochs.setdefault(layout, []).append(launch.epoch_s)

    def left(self, points: Iterable[Point]) -> float | None:
        """Return the seconds that `points` will take one after the other, None before any launch has ended."""
        return time_left(points, self._seconds)

    def name(self, point: Point, *others: Point) -> str:
        """Return a launch as people count: ``2 ranks, launch 3 of 6``; with `others`, of the block they are in."""
        number = point.repeat + 1
        if others:
            ranks = ", ".join(map(str, sorted(member.layout.ranks for member in (point, *others))))
            return f"{ranks} ranks interleaved, block {number} of {self._repeats}"
        return f"{point.layout}, launch {number} of {max(number, self._repeats)}"

    def speed(self, launch: FinishedLaunch) -> str:
        """Return how fast a launch was: ``216 ms an epoch, 1.70x`` the median of the layout with the fewest ranks.

        A launch in turns has no ratio before its block's turns are read: its own epochs contain what others took.
        """
        point, seconds = launch.point, launch.epoch_s
        text = f"{_short(seconds)} an epoch"
        base = self._epochs.get(self._base)
        if launch.invalid or launch.block or not base or point.layout == self._base:
            return text
        grown = point.layout.ranks / self._base.ranks if point.scaling == "weak" else 1.0
        return f"{text}, {grown * median(base) / seconds:.2f}x"


def _short(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 99.95 else format_seconds(seconds)


class Display:
    """What the launch loop shows of `total` launches, by their names (`Pace.name`): plain lines, on a terminal a bar.

    It is drawn once a second, for it shares the cores with the ranks that are timed.
    """

    def __init__(self, total: int, console: Console) -> None:
        self._total = total
        self._console = console
        self._ended = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(
            *columns,
            TextColumn("{task.fields[left]}"),
            console=console,
            refresh_per_second=1,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("starting", total=total, left="")

    def started(self, name: str) -> None:
        """A launch begins."""
        self.bar.update(self._task, description=name)
        if self.bar.disable:
            self.say(f"[{self._ended + 1}/{self._total}] {name}: started")

    def ended(self, name: str, outcome: str, left: float | None) -> None:
        """A launch has ended; `left` is the estimate in seconds of all that is left."""
        self._ended += 1
        plain = f"[{self._ended}/{self._total}] {name}: {outcome}{_left(left, '; ')}"
        self.say(plain if self.bar.disable else f"{name}: {outcome}")
        self.bar.update(self._task, advance=1, left=_left(left, ""))

    def dropped(self, launches: int) -> None:
        """So many launches will not be made."""
        self._total -= launches
        self.bar.update(self._task, total=self._total)

    def added(self, launches: int) -> None:
        """So many launches were made beyond those that were planned."""
        self.dropped(-launches)

    def say(self, text: str) -> None:
        """Something the user should know of."""
        say(text, self._console)


@contextlib.contextmanager
def display(total: int, console: Console | None = None) -> Iterator[Display]:
    """Yield the display that suits `console`, standard output by itself, for `total` launches."""
    progress = Display(total, console or Console())
    with contextlib.ExitStack() as stack:
        if not progress.bar.disable:
            stack.enter_context(progress.bar)
        yield progress


def say(text: str, console: Console | None = None) -> None:
    """Print one plain line, whatever its width and brackets."""
    (console or Console()).print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _left(seconds: float | None, before: str) -> str:
    return f"{before}about {format_seconds(seconds)} left" if seconds else ""
