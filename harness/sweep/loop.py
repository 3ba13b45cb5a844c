"""The loop of a sweep: submit what is missing, watch what runs, settle what has ended."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.schema.layout import Layout
from harness.sweep import store
from harness.sweep.job_groups import Group
from harness.sweep.jobs import queue_name, write_group
from harness.sweep.outcome import Outcome, settle
from harness.sweep.plan import format_seconds, time_left
from harness.sweep.progress import Display
from harness.sweep.schedulers import Scheduler, State
from harness.sweep.submission import Launching

_NOTE_S = 0.5  # how often the list of what runs is written: 1,000 submissions are not 1,000 files of 1,000 lines
_PATIENCE_S = 600.0  # how long a scheduler may refuse to answer before the wait is given up
_SLOWEST_POLL_S = 30.0
_USUAL = {"", "None", "Resources", "Priority", "BeginTime", "Dependency", "Prolog"}


class Launches:
    """The launches of one command. `running` holds, by point folder, what is submitted and not settled."""

    def __init__(
        self,
        scheduler: Scheduler,
        launching: Launching,
        *,
        folder: Path,
        groups: Sequence[Group],
        carried: Iterable[store.Running],
        seconds: dict[Layout, list[float]],
        shown: Display,
    ) -> None:
        self._scheduler = scheduler
        self._launching = launching
        self._folder = folder
        self._waiting = list(groups)
        self._running = {running.point.folder: running for running in carried}
        self._states: dict[str, State] = {running.job: State(phase="queued") for running in self._running.values()}
        self._seconds = seconds
        self._shown = shown
        self._since: dict[str, float] = {}
        self._said: set[str] = set()
        self._noted = 0.0
        self.failed = 0

    def run(self) -> int:
        """Launch all, in order, and return how many failed. An interruption ends jobs only if they are children."""
        pause = self._scheduler.poll_s
        try:
            while self._waiting or self._running:
                self._submit()
                time.sleep(pause)
                changed = self._poll()
                # A queue that does not move is asked ever more seldom.
                pause = self._scheduler.poll_s if changed else min(pause * 1.2, self._slowest())
        finally:
            if not self._scheduler.durable:
                self._scheduler.cancel([running.job for running in self._running.values()])
                self._running.clear()
            self._note(at_once=True)
            if self._scheduler.calls:
                called = ", ".join(f"{name} {times}" for name, times in sorted(self._scheduler.calls.items()))
                self._shown.say(f"calls of the scheduler: {called}")
        return self.failed

    def collect(self) -> int:
        """Settle what has ended, submit nothing, and return how many failed."""
        self._poll()
        self._note(at_once=True)
        return self.failed

    @property
    def left(self) -> int:
        """How many launches are submitted and not settled."""
        return len(self._running)

    def _slowest(self) -> float:
        return _SLOWEST_POLL_S if self._scheduler.durable else self._scheduler.poll_s

    def _submit(self) -> None:
        jobs = len({running.job for running in self._running.values()})
        while self._waiting and jobs < self._scheduler.at_once:
            some = self._waiting[0]
            if not self._submit_one(some, others=jobs):
                return
            self._waiting.pop(0)
            jobs += max(1, len(some.points) if some.shape == "array" else 1)

    def _submit_one(self, some: Group, *, others: int) -> bool:
        """Submit one job; return False when the queue takes no more for now."""
        for point in some.points:
            store.set_aside(self._folder, point)
        job = write_group(
            some,
            self._scheduler,
            folder=self._folder,
            data_dir=self._launching.data_path,
            request=self._launching.request,
            site=self._launching.site,
            template=self._launching.template,
        )
        self._intend(some)
        if not self._scheduler.durable:
            self._shown.started(some.points[0])
        try:
            identifiers = self._scheduler.submit(job)
        except UserError as error:
            for point in some.points:
                del self._running[point.folder]
            self._note(at_once=True)
            if others and "limit" in str(error).lower():
                self._say(f"the queue takes no more for now: {error}")
                return False
            raise
        for index, point in enumerate(some.points):
            name = identifiers[index if job.tasks else 0]
            self._running[point.folder] = replace(self._running[point.folder], job=name)
            self._states[name] = State(phase="queued" if self._scheduler.durable else "running")
        self._note(at_once=not self._scheduler.durable)
        return True

    def _intend(self, some: Group) -> None:
        """Write down what is about to be submitted: if this process dies meanwhile, the name will find the job."""
        name = queue_name(self._folder, some)
        for index, point in enumerate(some.points):
            self._running[point.folder] = store.Running(
                point=point,
                job="",
                started=datetime.now(UTC),
                scheduler=self._scheduler.name,
                name=name,
                task=index if some.shape == "array" else -1,
            )
        self._note(at_once=False)

    def _poll(self) -> bool:
        """Ask for the states of all jobs, settle what has ended and tell whether anything changed."""
        jobs = {running.job for running in self._running.values()}
        try:
            states = dict(self._scheduler.poll(sorted(jobs)))
        except UserError as error:
            began = self._since.setdefault("silence", time.monotonic())
            if time.monotonic() - began > _PATIENCE_S:
                raise
            self._say(f"no answer, asking again: {error}")
            return False
        self._since.pop("silence", None)
        changed = any(self._states.get(job) != state for job, state in states.items())
        before, self._states = self._states, states
        for running in tuple(self._running.values()):
            state = states[running.job]
            old = before.get(running.job)
            self._tell(running, old, state)
            outcome = settle(self._folder, running, state, self._scheduler, self._since)
            if outcome is not None:
                self._settled(running, outcome)
                changed = True
        if changed:
            self._note(at_once=False)
        return changed

    def _tell(self, running: store.Running, old: State | None, state: State) -> None:
        if not self._scheduler.durable:
            return
        if state.phase == "running" and (old is None or old.phase != "running"):
            self._shown.started(running.point)
        if state.phase != "ended" and state.reason not in _USUAL:
            self._say(f"job {running.job} {'waits' if state.phase == 'queued' else 'runs'}: {state.reason}")

    def _settled(self, running: store.Running, outcome: Outcome) -> None:
        del self._running[running.point.folder]
        point = running.point
        text = outcome.text
        if outcome.record is None:
            self.failed += 1
        else:
            seconds = (outcome.record.ended - outcome.record.started).total_seconds()
            if not self._scheduler.durable:
                seconds = (datetime.now(UTC) - running.started).total_seconds()
            self._seconds.setdefault(point.layout, []).append(seconds)
            text = f"done in {format_seconds(seconds)}{text}"
        waiting = [other for some in self._waiting for other in some.points]
        left = time_left([*waiting, *(other.point for other in self._running.values())], self._seconds)
        self._shown.ended(point, text, None if self._scheduler.durable else left)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._shown.say(text)

    def _note(self, *, at_once: bool) -> None:
        if at_once or time.monotonic() - self._noted > _NOTE_S:
            store.write_running(self._folder, tuple(self._running.values()))
            self._noted = time.monotonic()
