"""What became of one launch: only a whole record makes it a success, whatever the scheduler says."""

import time
from dataclasses import dataclass
from pathlib import Path

from harness.spec.point import Point
from harness.spec.record import RunRecord
from harness.spec.study import LOGS
from harness.sweep import study
from harness.sweep.failure import first_error, read_output, tail
from harness.sweep.jobs import exit_file
from harness.sweep.schedulers import Scheduler, State

_GRACE_S = 5.0  # a shared file system may show a record some seconds after the job that wrote it has ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The end of a launch: its record, or None and why in `text`; with a record, `text` has its doubts."""

    record: RunRecord | None
    text: str


def settle(
    folder: Path, running: study.Running, state: State, scheduler: Scheduler, since: dict[str, float]
) -> Outcome | None:
    """Return what became of a launch, None while that is open, and keep its failure beside the sweep.

    A launch that left a record has succeeded though its job goes on with others; one that left none has
    failed when its job has ended. `since` remembers between calls when a job was first seen to have ended.
    """
    point = running.point
    over = state.phase in ("ended", "unknown")
    if not over and not exit_file(folder, point).exists():
        return None
    found = study.check_record(folder, point)
    if isinstance(found, RunRecord):
        study.forget_failure(folder, point)
        return Outcome(record=found, text=f", times not valid: {'; '.join(found.invalid)}" if found.invalid else "")
    if not over:
        return None
    if scheduler.durable and state.exit_code == 0:
        if time.monotonic() - since.setdefault(point.folder, time.monotonic()) < _GRACE_S:
            return None
    return Outcome(record=None, text=f"FAILED: {_keep_failure(folder, running, state, scheduler)}")


def _keep_failure(folder: Path, running: study.Running, state: State, scheduler: Scheduler) -> str:
    """Write why the launch failed and return the reason."""
    point = running.point
    log = read_output(folder / LOGS / f"{point.folder}.log")
    job = read_output(scheduler.output(folder / LOGS, running.job))
    code = _exit_code(folder, point, state)
    said = first_error(log) or first_error(job)
    known = scheduler.explain(state)
    if state.forced or state.phase == "unknown":
        started = "" if log or state.nodes or not scheduler.durable else "it had not started; "
        reason = f"{started}{known}" + (f"; its output says: {said}" if said else "")
    else:
        reason = said or f"exit code {code} without a valid record, {known}"
    study.write_failure(folder, point, exit_code=code, reason=reason, tail=tail(f"{log}\n{job}".strip("\n")))
    return reason


def _exit_code(folder: Path, point: Point, state: State) -> int:
    try:
        return int(exit_file(folder, point).read_text())
    except (OSError, ValueError):
        return state.exit_code if state.exit_code is not None else -1
