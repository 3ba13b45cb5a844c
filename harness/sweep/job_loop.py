"""The loop of a sweep: submit what is missing, watch what runs, settle what has ended.

It shows itself by a bar with the time left on a terminal, by plain lines elsewhere.
"""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.base.errors import UserError
from harness.schema.record import RunRecord
from harness.schema.sweep import Layout, Point
from harness.sweep.job_script import Group, queue_name, write_group
from harness.sweep.plan import format_seconds, time_left
from harness.sweep.schedulers import Job, Scheduler, State
from harness.sweep.status import LaunchOutcome, note_ended, settle
from harness.sweep.sweep_folder import Running, Submission, set_aside, write_running


class Pace:
    """The launches of one command, of which `points` are all; `records` are of those that earlier commands made."""

    def __init__(self, points: Sequence[Point], records: Iterable[RunRecord] = ()) -> None:
        self._repeats = 1 + max(point.repeat for point in points)
        self._base = min(
            (point.layout for point in points), key=lambda layout: (layout.ranks, layout.nodes, layout.threads)
        )
        self._epochs: dict[Layout, list[float]] = {}
        self._seconds: dict[Layout, list[float]] = {}
        for record in records:
            self.take(record, record.wall_seconds)

    def take(self, record: RunRecord, wall_s: float) -> None:
        """Remember a launch, and the seconds from its start to its end."""
        layout = record.point.layout
        self._seconds.setdefault(layout, []).append(wall_s)
        if not record.invalid:
            self._epochs.setdefault(layout, []).append(record.epoch_s)

    def left(self, points: Iterable[Point]) -> float | None:
        """Return the seconds that `points` will take one after the other, None before any launch has ended."""
        return time_left(points, self._seconds)

    def name(self, point: Point, *others: Point) -> str:
        """Return a launch as people count: ``2 ranks, launch 3 of 6``; with `others`, of the block they are in."""
        number = point.repeat + 1
        if others:
            ranks = ", ".join(
                str(one.layout.ranks) for one in sorted((point, *others), key=lambda one: one.layout.ranks)
            )
            return f"{ranks} ranks in turns, block {number} of {self._repeats}"
        return f"{point.layout}, launch {number} of {max(number, self._repeats)}"

    def speed(self, record: RunRecord) -> str:
        """Return how fast a launch was: ``216 ms an epoch, 1.70x`` the median of the layout with the fewest ranks."""
        point, seconds = record.point, record.epoch_s
        text = f"{_short(seconds)} an epoch"
        base = self._epochs.get(self._base)
        if record.invalid or not base or point.layout == self._base:
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
        self._total, self._console, self._ended = total, console, 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(
            *columns, TextColumn("{task.fields[left]}"), console=console, refresh_per_second=1,
            disable=not console.is_terminal,
        )  # fmt: skip
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

    def say(self, text: str) -> None:
        """Something the user should know of."""
        say(text, self._console)


@contextlib.contextmanager
def display(total: int, console: Console | None = None) -> Iterator[Display]:
    """Yield the display that suits `console`, standard output by itself, for `total` launches."""
    shown = Display(total, console or Console())
    with contextlib.ExitStack() as stack:
        if not shown.bar.disable:
            stack.enter_context(shown.bar)
        yield shown


def say(text: str, console: Console | None = None) -> None:
    """Print one plain line, whatever its width and brackets."""
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def _left(seconds: float | None, before: str) -> str:
    return f"{before}about {format_seconds(seconds)} left" if seconds else ""


_NOTE_S = 0.5  # how often the list of what runs is written: 1,000 submissions are not 1,000 files of 1,000 lines
_PATIENCE_S = 600.0  # how long a scheduler may refuse to answer before the wait is given up
_SLOWEST_POLL_S = 30.0
_SPOILT = 2  # launches in a row whose times are not valid, before a busy machine is waited for again
_USUAL = {"", "None", "Resources", "Priority", "BeginTime", "Dependency", "Prolog"}


@dataclass(kw_only=True)
class Launches:
    """The launches of one command: the jobs of `groups`, and what is `carried` over from the queue.

    With `resubmits` a launch that was stopped with a checkpoint is submitted again, as often as it goes on, and one
    that failed as often as the request says. With `timed` cores of this machine that other processes keep busy are
    waited for, before the first launch and after two in a row without valid times; `busy` says what kept them so for
    too long.
    """

    scheduler: Scheduler
    submission: Submission
    folder: Path
    pace: Pace
    shown: Display
    groups: Sequence[Group] = ()
    carried: Iterable[Running] = ()
    resubmits: bool = False
    timed: bool = False

    def __post_init__(self) -> None:
        self.failed = self.dropped = 0
        self.busy = ""
        self._waiting = list(self.groups)
        self._running = {running.point.folder: running for running in self.carried}
        self._states: dict[str, State] = {running.job: State(phase="queued") for running in self._running.values()}
        self._last_reasons: dict[Layout, str] = {}
        self._since: dict[str, float] = {}
        self._said: set[str] = set()
        self._noted = 0.0
        self._over: list[Running] = []
        self._tried: Counter[str] = Counter()
        self._begun: dict[str, float] = {}
        self._spoilt = _SPOILT

    def run(self) -> int:
        """Launch all, in order, and return how many failed. An interruption ends jobs only if they are children."""
        pause = self.scheduler.poll_s
        slowest = _SLOWEST_POLL_S if self.scheduler.survives_client else pause
        try:
            while self._waiting or self._running:
                self._submit()
                time.sleep(pause)
                changed = self._poll()
                # A queue that does not move is asked ever more seldom.
                pause = self.scheduler.poll_s if changed else min(pause * 1.2, slowest)
        finally:
            if not self.scheduler.survives_client:
                self.scheduler.cancel([running.job or running.name for running in self._running.values()])
                self._running.clear()
            self._note(now=True)
            if self.scheduler.commands.calls:
                called = ", ".join(f"{name} {times}" for name, times in sorted(self.scheduler.commands.calls.items()))
                self.shown.say(f"scheduler commands: {called}")
        return self.failed

    def take_in(self) -> None:
        """Settle what has ended; submit nothing. What the scheduler does not list is asked for until that is sure."""
        self._poll()
        while any(state.phase == "unknown" for state in self._states.values()) and self._running:
            time.sleep(self.scheduler.poll_s)
            self._poll()
        self._note(now=True)

    @property
    def going(self) -> tuple[Running, ...]:
        """The launches that are submitted and not settled."""
        return tuple(self._running.values())

    def _submit(self) -> None:
        """Submit as many jobs as may be in the queue; what is intended is on disk before the first one is."""
        jobs = len({running.job for running in self._running.values()})
        batch: list[Group] = []
        for group in self._waiting:
            if jobs >= self.scheduler.max_jobs:
                break
            batch.append(group)
            jobs += len(group.points) if group.shape == "array" else 1
        waits = self.scheduler.turn() if batch else None
        if waits is not None:
            self._say(waits)
        if not batch or waits is not None or self._disturbed():
            return
        others = bool(self._running)
        prepared = [self._prepare(group) for group in batch]
        self._note(now=True)
        try:
            for group, job in zip(batch, prepared, strict=True):
                if not self._submit_one(group, job, others=others):
                    return
                others = True
                self._waiting.remove(group)
                self._note(now=False)
        finally:
            if isinstance(sys.exception(), UserError | None):  # an interruption leaves names that find the jobs
                self._running = {folder: running for folder, running in self._running.items() if running.job}
            self._note(now=True)

    def _disturbed(self) -> bool:
        """Wait for cores that others keep busy, where that is due; return whether nothing more is tried, as they are.

        Launches in turns are made all the same: other work does not make them invalid.
        """
        if self._spoilt < _SPOILT or not self.timed:
            return False
        self._spoilt = 0
        try:
            self.scheduler.wait_for_cores(max(group.layout.cores for group in self._waiting), self.shown.say)
        except UserError as error:
            if any(group.shape == "block" for group in self._waiting):
                self.shown.say("not waiting any longer: turns that other processes disturb are left out of the ratios")
                return False
            self.busy, self._waiting, left = str(error), [], sum(len(group.points) for group in self._waiting)
            self.dropped += left
            self.shown.dropped(left)
            return True
        return False

    def _prepare(self, group: Group) -> Job:
        """Write the files of a job, and that it is about to be submitted: if this process dies, its name finds it."""
        for index, point in enumerate(group.points):
            set_aside(self.folder, point)
            self._begun[point.folder] = time.monotonic()
            self._running[point.folder] = Running(
                point=point,
                job="",
                started=datetime.now(UTC),
                scheduler=self.scheduler.name,
                name=queue_name(self.folder, group),
                task=index if group.shape == "array" else -1,
                together=len(group.points) if group.shape == "block" else 1,
            )
        data_dir = None if self.submission.data_dir is None else Path(self.submission.data_dir)
        template = self.submission.template
        return write_group(group, self.scheduler, folder=self.folder, data_dir=data_dir, template=template)

    def _submit_one(self, group: Group, job: Job, *, others: bool) -> bool:
        """Submit one job; return False when the queue takes no more for now."""
        if not self.scheduler.survives_client:
            self.shown.started(self.pace.name(*group.points))
        try:
            identifiers = self.scheduler.submit(job)
        except UserError as error:
            if others and "limit" in str(error).lower():
                self._say(f"the queue takes no more for now: {error}")
                return False
            raise
        for index, point in enumerate(group.points):
            name = identifiers[index if job.tasks else 0]
            self._running[point.folder] = replace(self._running[point.folder], job=name)
            self._states[name] = State(phase="queued" if self.scheduler.survives_client else "running")
        return True

    def _poll(self) -> bool:
        """Ask for the states of all jobs, settle what has ended and return whether anything changed."""
        jobs = {running.job for running in self._running.values()}
        try:
            states = dict(self.scheduler.poll(sorted(jobs)))
        except UserError as error:
            began = self._since.setdefault("silence", time.monotonic())
            if time.monotonic() - began > _PATIENCE_S:
                raise
            self._say(f"no answer, asking again: {error}")
            return False
        self._since.pop("silence", None)
        changed = any(self._states.get(job) != state for job, state in states.items())
        before, self._states = self._states, dict(states)
        for running in tuple(self._running.values()):
            state = states[running.job]
            old = before.get(running.job)
            self._tell(running, old, state)
            outcome = settle(self.folder, running, state, self.scheduler, self._since)
            if outcome is not None:
                self._settled(running, outcome)
                changed = True
        if changed:
            self._note(now=False)
        return changed

    def _tell(self, running: Running, old: State | None, state: State) -> None:
        if not self.scheduler.survives_client:
            return
        if state.phase == "running" and (old is None or old.phase != "running"):
            self.shown.started(self.pace.name(running.point))
        if state.phase != "ended" and state.reason not in _USUAL:
            self._say(f"job {running.job} {'waits' if state.phase == 'queued' else 'runs'}: {state.reason}")

    def _settled(self, running: Running, outcome: LaunchOutcome) -> None:
        del self._running[running.point.folder]
        if self.scheduler.survives_client:
            self._over.append(running)
        if not any(other.job == running.job for other in self._running.values()):
            self._states.pop(running.job, None)
        point, local = running.point, not self.scheduler.survives_client
        text = outcome.text
        if outcome.record is None and self._goes_on(point, outcome):
            text = f"{text.removeprefix('FAILED: ')}; submitted again"
        elif outcome.record is None:
            self.failed += 1
            self._give_up(point.layout, outcome)
        else:
            self._last_reasons.pop(point.layout, None)
            self._spoilt = self._spoilt + 1 if outcome.record.invalid else 0
            begun = self._begun.get(point.folder)  # by the monotonic clock: the other one may be set meanwhile
            wall_s = outcome.record.wall_seconds if begun is None or not local else time.monotonic() - begun
            self.pace.take(outcome.record, wall_s / running.together)
            text = f"{self.pace.speed(outcome.record)}{text}; took {format_seconds(wall_s)}"
        waiting = [other for group in self._waiting for other in group.points]
        left = self.pace.left([*waiting, *(other.point for other in self._running.values())])
        self.shown.ended(self.pace.name(point), text, left if local else None)

    def _goes_on(self, point: Point, outcome: LaunchOutcome) -> bool:
        """Put a launch that is to be submitted again behind what waits; return whether it is."""
        if not self.resubmits:
            return False
        if not outcome.again:
            if self._tried[point.folder] >= self.scheduler.request.retries:
                return False
            self._tried[point.folder] += 1
        self._waiting.append(Group(shape="jobs", points=(point,)))
        return True

    def _give_up(self, layout: Layout, outcome: LaunchOutcome) -> None:
        """Drop what waits of a layout whose last two launches failed in the same way: the others would fail so too."""
        if self._last_reasons.get(layout) != outcome.text:
            self._last_reasons[layout] = outcome.text
            return
        waiting, launches = list[Group](), 0
        for group in self._waiting:
            kept = tuple(point for point in group.points if point.layout != layout)
            if group.shape == "block" and kept:
                launches += len(group.points) - len(kept)
                group = Group(shape="block" if len(kept) > 1 else "jobs", points=kept)
            elif not kept:
                launches += len(group.points)
                continue
            waiting.append(group)
        if launches:
            self._waiting = waiting
            self.dropped += launches
            self.shown.dropped(launches)
            self._say(f"{layout}: failed twice in the same way, so {launches} more are not tried")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.shown.say(text)

    def _note(self, *, now: bool) -> None:
        if now or time.monotonic() - self._noted > _NOTE_S:
            note_ended(self.folder, self._over)
            self._over.clear()
            write_running(self.folder, tuple(self._running.values()))
            self._noted = time.monotonic()
