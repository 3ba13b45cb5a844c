"""Run a sweep: launch what is missing, settle what has ended, keep what is finished whatever happens."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from harness.datasets import locate, prepare
from harness.errors import RunError, UserError
from harness.interrupts import interruptible
from harness.spec.layout import Layout
from harness.spec.point import Point
from harness.spec.study import Skipped
from harness.spec.sweep import Sweep
from harness.sweep import study
from harness.sweep.failure import first_error, read_output, tail
from harness.sweep.jobs import write_job
from harness.sweep.lock import locked
from harness.sweep.plan import divide, format_seconds, launch_order, time_left
from harness.sweep.progress import Display, display, say
from harness.sweep.schedulers import Job, Scheduler, open_scheduler

_POLL_S = 0.2  # seldom enough not to disturb the ranks that are being timed


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a command will do: every runnable point in launch order, those that are missing, what is skipped."""

    folder: Path
    points: tuple[Point, ...]
    missing: tuple[Point, ...]
    skipped: tuple[Skipped, ...]
    known: study.Survey


def write_scripts(sweep: Sweep, *, data_dir: Path | None, results: Path, console: Console | None = None) -> Plan:
    """Write the study and the scripts of what is missing, launch nothing, and return the plan.

    Raises:
        UserError: no layout can run here, or the results folder cannot be written to.
    """
    scheduler = open_scheduler("local", oversubscribe=sweep.oversubscribe)
    layouts = _runnable(sweep, scheduler)
    with locked(results / sweep.name):
        plan = _plan(sweep, layouts, results)
        _tell(plan, console or Console())
        for point in plan.missing:
            write_job(point, scheduler, folder=plan.folder, data_dir=data_dir)
    return plan


def run_sweep(sweep: Sweep, *, data_dir: Path | None, results: Path, console: Console | None = None) -> Path:
    """Launch every point of `sweep` that has no valid record, one at a time, and return the sweep's folder.

    Raises:
        UserError: no layout can run here, the data is wrong, another process runs this sweep, or the results
            folder cannot be written to.
        RunError: some launches failed; all the others were run and are kept.
    """
    console = console or Console()
    scheduler = open_scheduler("local", oversubscribe=sweep.oversubscribe)
    layouts = _runnable(sweep, scheduler)
    folder = results / sweep.name
    with locked(folder), interruptible():
        _end_leftovers(scheduler, folder)
        plan = _plan(sweep, layouts, results)
        _tell(plan, console)
        _prepare(plan.missing or plan.points[:1], data_dir, console)
        if not plan.missing:
            return folder
        with display(len(plan.missing), console) as shown:
            failed = _Launches(scheduler, plan, data_dir, shown).run()
    if failed:
        where = "" if results == Path("results") else f" --results {shlex.quote(str(results))}"
        raise RunError(
            f"{failed} of {len(plan.missing)} launches failed, whatever finished is kept: "
            f"see `harness status {sweep.name}{where}`; the same command again runs only what failed"
        )
    return folder


def _runnable(sweep: Sweep, scheduler: Scheduler) -> tuple[tuple[Layout, ...], tuple[Skipped, ...]]:
    runnable, skipped = divide(sweep.layouts, scheduler.refusal)
    if not runnable:
        raise UserError(
            f"no layout can run: {skipped[0].layout} {skipped[0].reason}; "
            "ask for fewer NODES, RANKS_PER_NODE or THREADS, or set OVERSUBSCRIBE=1 to run for function only"
        )
    return runnable, skipped


def _plan(sweep: Sweep, layouts: tuple[tuple[Layout, ...], tuple[Skipped, ...]], results: Path) -> Plan:
    """Write down what `sweep` asks for and compare it with what `results` holds."""
    runnable, skipped = layouts
    folder = results / sweep.name
    study.write_study(folder, sweep, skipped)
    points = launch_order(sweep, runnable)
    known = study.survey(folder, points)
    return Plan(folder=folder, points=points, missing=known.missing(points), skipped=skipped, known=known)


class _Launches:
    """The loop over the missing points of one plan."""

    def __init__(self, scheduler: Scheduler, plan: Plan, data_dir: Path | None, shown: Display) -> None:
        self._scheduler = scheduler
        self._folder = plan.folder
        self._data_dir = data_dir
        self._shown = shown
        self._waiting = list(plan.missing)
        self._running: dict[str, tuple[study.Running, Job]] = {}
        self._seconds = plan.known.durations()
        self._failed = 0

    def run(self) -> int:
        """Launch all, in order, and return how many failed. What runs is ended when this is interrupted."""
        try:
            while self._waiting or self._running:
                self._submit()
                time.sleep(_POLL_S)
                for name, code in self._scheduler.poll(tuple(self._running)).items():
                    self._settle(name, code)
        finally:
            for name in self._running:
                self._scheduler.cancel(name)
            self._running.clear()
            self._note_running()
        return self._failed

    def _submit(self) -> None:
        while self._waiting and len(self._running) < self._scheduler.at_once:
            point = self._waiting.pop(0)
            study.set_aside(self._folder, point)
            job = write_job(point, self._scheduler, folder=self._folder, data_dir=self._data_dir)
            self._shown.started(point)
            name = self._scheduler.submit(job)
            self._running[name] = (study.Running(point=point, job=name, started=datetime.now(UTC)), job)
            self._note_running()

    def _settle(self, name: str, code: int) -> None:
        """Take an ended launch off the list: a success only with a valid record, whatever its exit code."""
        running, job = self._running.pop(name)
        self._note_running()
        point = running.point
        seconds = (datetime.now(UTC) - running.started).total_seconds()
        found = study.check_record(self._folder, point)
        if isinstance(found, str):
            self._failed += 1
            outcome = f"FAILED: {self._keep_failure(point, job, code)}"
        else:
            study.forget_failure(self._folder, point)
            self._seconds.setdefault(point.layout, []).append(seconds)
            outcome = f"done in {format_seconds(seconds)}"
            if found.invalid:
                outcome += f", times not valid: {'; '.join(found.invalid)}"
        left = time_left((*self._waiting, *(other.point for other, _ in self._running.values())), self._seconds)
        self._shown.ended(point, outcome, left)

    def _keep_failure(self, point: Point, job: Job, code: int) -> str:
        """Write why the launch failed and return the reason."""
        output = read_output(job.log)
        reason = first_error(output)
        if reason is None:
            reason = f"exit code {code} without a valid record, {self._scheduler.explain(code)}"
        study.write_failure(self._folder, point, exit_code=code, reason=reason, tail=tail(output))
        return reason

    def _note_running(self) -> None:
        study.write_running(self._folder, tuple(running for running, _ in self._running.values()))


def _tell(plan: Plan, console: Console) -> None:
    done = len(plan.points) - len(plan.missing)
    say(console, f"sweep {plan.folder.name}: {len(plan.points)} launches, {done} done, {len(plan.missing)} to run")
    for skipped in plan.skipped:
        say(console, f"not run: {skipped.layout}: {skipped.reason}")
    for point in plan.missing:
        if point.folder in plan.known.damaged:
            say(console, f"runs again: {plan.known.damaged[point.folder]}")
        elif point.folder in plan.known.records:
            say(console, f"runs again: {point.folder}: {plan.known.records[point.folder].invalid[0]}")


def _prepare(points: Sequence[Point], data_dir: Path | None, console: Console) -> None:
    """Say which data it is, and bring it into the cache before the first launch, not inside it."""
    said: set[str] = set()
    for workload in dict.fromkeys(point.workload for point in points):
        source = locate(workload, data_dir)
        line = f"data: {source.name}, {source.kind}" + (f": {source.note}" if source.note else "")
        if line not in said:
            say(console, line)
            said.add(line)
        prepare(source)


def _end_leftovers(scheduler: Scheduler, folder: Path) -> None:
    """End what a sweep that was killed left running: it would share the cores with what is timed next."""
    for running in study.read_running(folder):
        scheduler.cancel(running.job)
    study.write_running(folder, ())
