"""How far a sweep is, read from its folder by any process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.schema.sweep import Point, Skipped
from harness.sweep import store
from harness.sweep.plan import launch_order, time_left
from harness.sweep.store import is_locked
from harness.sweep.submission import SubmittedLaunch, look


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

    `other_code` counts the launches in its folder that ran other code than its last command asked for.
    """

    name: str
    active: bool
    entries: tuple[LaunchStatus, ...]
    skipped: tuple[Skipped, ...]
    left: float | None
    other_code: int = 0

    def count(self, state: str) -> int:
        """Return the number of launches in `state`."""
        return sum(entry.state == state for entry in self.entries)


def read_status(folder: Path) -> Status:
    """Read the state of the sweep in `folder`.

    Raises:
        UserError: the study file is missing or damaged.
    """
    asked = store.read_study(folder)
    active = is_locked(folder)
    skipped = {skipped.layout for skipped in asked.skipped}
    points = launch_order(asked.sweep, [layout for layout in asked.sweep.layouts if layout not in skipped])
    known = store.survey(folder, points)
    submitted = store.read_running(folder)
    running = {entry.point.folder: entry for entry in submitted if active and entry.scheduler == "local"}
    seen = {name: SubmittedLaunch(state="running", detail="") for name in running}
    seen |= look(folder, [entry for entry in submitted if entry.scheduler != "local"])
    entries = tuple(_entry(point, known, seen) for point in points)
    return Status(
        name=folder.name,
        active=active,
        entries=entries,
        skipped=asked.skipped,
        left=_left(entries, known, running) if active and running else None,
        other_code=store.other_code(folder, asked.sweep.code),
    )


def _entry(point: Point, known: store.Survey, seen: Mapping[str, SubmittedLaunch]) -> LaunchStatus:
    record = known.records.get(point.folder)
    if record is not None:
        return LaunchStatus(
            point=point, state="invalid" if record.invalid else "done", detail="; ".join(record.invalid)
        )
    if point.folder in seen:
        return LaunchStatus(point=point, state=seen[point.folder].state, detail=seen[point.folder].detail)
    if point.folder in known.failures:
        failure = known.failures[point.folder]
        return LaunchStatus(point=point, state="failed", detail=failure.reason, tail=failure.tail)
    return LaunchStatus(point=point, state="missing", detail=known.damaged.get(point.folder, ""))


def _left(entries: Sequence[LaunchStatus], known: store.Survey, running: dict[str, store.Running]) -> float | None:
    """Return the seconds until an active sweep ends: what waits, and the rest of what runs."""
    to_do = [entry.point for entry in entries if entry.state in ("running", "missing", "failed")]
    left = time_left(to_do, known.durations())
    if left is None:
        return None
    spent = sum((datetime.now(UTC) - entry.started).total_seconds() for entry in running.values())
    return max(0.0, left - spent)
