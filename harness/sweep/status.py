"""How far a sweep is, read from its folder and from its scheduler by any process, and the command that goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.schema.sweep import LOGS, Point, Skipped
from harness.sweep.job_script import JOBS, exit_file
from harness.sweep.plan import launch_order, time_left
from harness.sweep.schedulers import Scheduler, State
from harness.sweep.sweep_folder import (
    Running,
    Survey,
    identify,
    is_locked,
    next_command,
    other_code,
    read_running,
    read_study,
    read_submission,
    survey,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchStatus:
    """One launch. `state` is ``done``, ``invalid``, ``queued``, ``running``, ``ended``, ``unknown``, ``failed`` or
    ``missing``.

    ``ended`` is over and not collected yet. `detail` says why; `tail` has the last lines of a failed launch.
    """

    point: Point
    state: str
    detail: str = ""
    tail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """One sweep. `active` tells whether a process works on it now; `left` is in seconds, None when unknown.

    `other_code` counts the launches in its folder that ran a different version of the code than its last command asked
    for, `to_launch` those without a record that counts. `command` goes on with the sweep, one ``harness sweep`` line or
    several; empty where that is not known.
    """

    name: str
    active: bool
    entries: tuple[LaunchStatus, ...]
    skipped: tuple[Skipped, ...]
    left: float | None
    other_code: int = 0
    to_launch: int = 0
    command: str = ""

    def count(self, *states: str) -> int:
        """Return the number of launches in any of `states`."""
        return sum(entry.state in states for entry in self.entries)


def read_status(folder: Path) -> Status:
    """Read the state of the sweep in `folder`.

    Raises:
        UserError: the study file is missing or damaged.
    """
    study = read_study(folder)
    active = is_locked(folder)
    skipped = {skipped.layout for skipped in study.skipped}
    points = launch_order(study.sweep, [layout for layout in study.sweep.layouts if layout not in skipped])
    known = survey(folder, points)
    submitted = read_running(folder)
    running = [entry for entry in submitted if active and entry.scheduler == "local"]
    seen = {entry.point.folder: LaunchStatus(point=entry.point, state="running") for entry in running}
    seen |= _ask_scheduler(folder, [entry for entry in submitted if entry.scheduler != "local"])
    entries = tuple(_entry(point, known, seen) for point in points)
    waits = [one.point for one in entries if one.state in ("running", "missing", "failed")]
    left = time_left(waits, known.durations()) if running else None
    if left is not None:  # what waits, and the rest of what runs
        left = max(0.0, left - sum((datetime.now(UTC) - one.started).total_seconds() for one in running))
    return Status(
        name=folder.name,
        active=active,
        entries=entries,
        skipped=study.skipped,
        left=left,
        other_code=other_code(folder, study.sweep.code),
        to_launch=len(known.missing(points)),
        command=next_command(folder, study.sweep),
    )


def _entry(point: Point, known: Survey, seen: Mapping[str, LaunchStatus]) -> LaunchStatus:
    record = known.records.get(point.folder)
    if record is not None:
        return LaunchStatus(
            point=point, state="invalid" if record.invalid else "done", detail="; ".join(record.invalid)
        )
    if point.folder in seen:
        return seen[point.folder]
    if point.folder in known.failures:
        failure = known.failures[point.folder]
        return LaunchStatus(point=point, state="failed", detail=failure.reason, tail=failure.tail)
    return LaunchStatus(point=point, state="missing", detail=known.damaged.get(point.folder, ""))


def _ask_scheduler(folder: Path, submitted: Sequence[Running]) -> dict[str, LaunchStatus]:
    """Return what is known of submitted launches, by their points' folders; one poll for all of them.

    A scheduler that does not answer is not an error here: the launches are ``unknown``, with its sentence.
    """
    if not submitted:
        return {}
    try:
        scheduler = read_submission(folder).open(oversubscribe=True)
        known = {running.point.folder: running for running in identify(scheduler, tuple(submitted))}
        states = scheduler.poll(sorted({running.job for running in known.values()}))
    except UserError as error:
        return {
            one.point.folder: LaunchStatus(point=one.point, state="unknown", detail=str(error)) for one in submitted
        }
    found = {}
    for one in submitted:
        state, detail = "unknown", "it never reached the queue: the same sweep command submits it"
        if one.point.folder in known:
            running = known[one.point.folder]
            state, detail = _in_queue(folder, running, states[running.job], scheduler)
        found[one.point.folder] = LaunchStatus(point=one.point, state=state, detail=detail)
    return found


def _in_queue(folder: Path, running: Running, state: State, scheduler: Scheduler) -> tuple[str, str]:
    """Return the state and the detail of a launch by the `state` of its job."""
    job, exited = f"job {running.job}", exit_file(folder, running.point).exists()
    if state.phase == "unknown" and not exited:
        gone = "was deleted, or has ended just now"
        return "unknown", f"{job} {gone}: {scheduler.name} does not list it; the same sweep command collects it"
    if state.phase == "queued":
        return "queued", f"{job}: {state.reason or state.word}"
    if state.phase == "running" and exited:
        return "ended", f"in {job}, not collected yet"
    if state.phase == "running":
        # In a shared job those that wait have empty logs or none.
        point, shared = (
            running.point.folder,
            running.task < 0 and not (folder / JOBS / f"{running.point.folder}.sh").exists(),
        )
        log = folder / LOGS / f"{point}.log"
        if shared and not (log.exists() and log.stat().st_size):
            return "queued", f"waits for its turn in {job}"
        where = f"{job} on {state.nodes}" if state.nodes else job
        return "running", f"{where}: {state.reason}" if state.reason else where
    return "ended", f"{job}: {scheduler.explain(state)}; not collected yet"
