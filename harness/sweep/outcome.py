"""What became of a launch: only a whole record makes it a success, whatever the scheduler says."""

import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from harness.base.exit_codes import AGAIN
from harness.schema.point import Point
from harness.schema.record import Failure, RunRecord
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.finished_launches import check_record
from harness.sweep.launch_command import first_error, read_output
from harness.sweep.scheduler_answers import State
from harness.sweep.schedulers import Scheduler
from harness.sweep.sweep_files import Running, file_failure, write_failure

_TAIL_LINES = 30
_GRACE_S = 30.0  # NFS may show a record half a minute after the job that wrote it has ended (acdirmin)
_MISSING_S = 60.0  # how long a job that no answer lists may still be there: without job history none says its end
# PBS writes it into the job's output; without job history nothing else tells it.
_TIME_LIMIT = re.compile(r"walltime (?P<used>\d+) exceeded limit (?P<limit>\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOutcome:
    """The end of a launch: its record with the `doubts` about it, or None and the `reason` why.

    `again` says that it was stopped with a checkpoint: submitted again it goes on from there.
    """

    record: RunRecord | None = None
    doubts: str = ""
    reason: str = ""
    again: bool = False

    @property
    def text(self) -> str:
        """What is said of it."""
        if self.record is not None:
            return self.doubts
        return self.reason if self.again else f"FAILED: {self.reason}"


@dataclass(kw_only=True)
class FirstSeen:
    """When that which may pass was first seen, by the monotonic clock; `settle` remembers it between its calls.

    Jobs that no answer lists (`missing`) and that may be requeued (`requeued`), by identifier; launches that ended
    well and have left no record (`unrecorded`), by folder.
    """

    missing: dict[str, float] = field(default_factory=dict)
    requeued: dict[str, float] = field(default_factory=dict)
    unrecorded: dict[str, float] = field(default_factory=dict)


def settle(
    files: SweepFolder, running: Running, state: State, scheduler: Scheduler, seen: FirstSeen
) -> LaunchOutcome | None:
    """Return what became of a launch, None while that is open, and keep its failure beside the sweep.

    A launch that left a record has succeeded though its job goes on with others; one that left none has
    failed when its job has ended, or is not listed and left its exit code or stays away.
    """
    point = running.point
    launch = files.launch(point.folder)
    exited = files.exit_code(point.folder).exists()
    over = _is_over(running, state, scheduler, seen, exited=exited)
    if not over and not exited:
        return None
    record = check_record(files, point)
    if isinstance(record, RunRecord):
        file_failure(files, point)
        return LaunchOutcome(record=record, doubts=_doubts(record))
    if not over:
        return None
    if scheduler.request.requeue and not exited and launch.has_checkpoint:
        # Between its end and its place in the queue Slurm calls a job that requeues itself cancelled.
        if _lasts_less(_GRACE_S, seen.requeued, running.job):
            return None
    code = _exit_code(files, point, state)
    if scheduler.survives_client and code == 0 and _lasts_less(_GRACE_S, seen.unrecorded, point.folder):
        return None
    reason = _keep_failure(files, running, state, scheduler)
    again = code == AGAIN and not state.forced and launch.has_checkpoint
    return LaunchOutcome(reason=reason, again=again)


def _is_over(running: Running, state: State, scheduler: Scheduler, seen: FirstSeen, *, exited: bool) -> bool:
    """Return whether a job has ended; one that is not listed has when its launch `exited`, or it stays missing."""
    if state.phase != "unknown":
        seen.missing.pop(running.job, None)
        return state.phase == "ended"
    if exited or not scheduler.survives_client:
        return True
    return not _lasts_less(_MISSING_S, seen.missing, running.job)


def _lasts_less(seconds: float, first_seen: dict[str, float], name: str) -> bool:
    """Return whether something was first seen less than a number of seconds ago; by default it is now."""
    return time.monotonic() - first_seen.setdefault(name, time.monotonic()) < seconds


def _doubts(record: RunRecord) -> str:
    if record.invalid:
        return f", times not valid: {'; '.join(record.invalid)}"
    return ", beside other work" if record.met else ""


def _keep_failure(files: SweepFolder, running: Running, state: State, scheduler: Scheduler) -> str:
    """Write down why a launch failed, and return it."""
    point = running.point
    log = read_output(files.log(point.folder))
    job = read_output(scheduler.output(files.logs, running.job))
    code = _exit_code(files, point, state)
    printed = first_error(log) or first_error(job)
    explanation = scheduler.explain(state)
    late = _TIME_LIMIT.search(job)
    if late:
        reason = f"its time limit of {late['limit']} s ended it after {late['used']} s"
    elif state.forced or (state.phase == "unknown" and not files.exit_code(point.folder).exists()):
        started = "" if log or state.nodes or not scheduler.survives_client else "it had not started; "
        reason = f"{started}{explanation}" + (f"; its output says: {printed}" if printed else "")
    else:
        reason = printed or f"exit code {code} without a valid record, {explanation}"
    if late or state.timed_out:
        reason += "; ask for a longer WALLTIME"
    ended = datetime.now(UTC)
    tail = "\n".join(f"{log}\n{job}".strip("\n").splitlines()[-_TAIL_LINES:])
    held_s = 0.0 if scheduler.survives_client else (ended - running.started).total_seconds() / running.together
    write_failure(files, Failure(point=point, ended=ended, exit_code=code, reason=reason, tail=tail, seconds=held_s))
    return reason


def _exit_code(files: SweepFolder, point: Point, state: State) -> int:
    try:
        return int(files.exit_code(point.folder).read_text())
    except (OSError, ValueError):
        return state.exit_code if state.exit_code is not None else -1
