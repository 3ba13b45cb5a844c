"""What became of a launch: only a whole record makes it a success, whatever the scheduler says. And how far a sweep is.

That is read from its folder and from its scheduler by any process, with the command that goes on.
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.record import RunRecord, encode, read_accounts
from harness.schema.sweep import ACCOUNTS_FILE, AGAIN, LOGS, Account, Failure, Point, Skipped, has_checkpoint
from harness.sweep.job_script import JOBS, exit_file
from harness.sweep.job_state import State
from harness.sweep.plan import launch_order, time_left
from harness.sweep.schedulers import Scheduler
from harness.sweep.submitting import identify
from harness.sweep.sweep_folder import (
    Running,
    Survey,
    check_record,
    file_failure,
    is_locked,
    next_command,
    other_code,
    read_running,
    read_study,
    read_submission,
    survey,
    write_failure,
)

_TAIL_LINES = 30
_READ_BYTES = 1_000_000
_OURS = re.compile(r"harness: (?P<reason>.+)")
_EXCEPTION = re.compile(r"(?P<reason>(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)")
_LIBRARY_LOG = re.compile(r"[IWE]\d{4,} |WARNING: ")  # TensorFlow's own remarks, which a good run makes as well
_SIGNAL = re.compile(r"\[[^\]]+\] Signal: (?P<reason>.+)")  # Open MPI's own handler, above a stack
# PBS writes it into the job's output; without job history nothing else tells it.
_TIME_LIMIT = re.compile(r"walltime (?P<used>\d+) exceeded limit (?P<limit>\d+)")
_CALL = re.compile(r"\(P(?P<call>MPI_\w+)\+")
_OTHER = re.compile(r"(?P<reason>.*\b(?:error|fail\w*|killed|cannot|unable|no such|not found)\b.*)", re.IGNORECASE)


def read_output(log: Path) -> str:
    """Return the last megabyte of a log; launchers write NUL bytes and cut characters into it."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _READ_BYTES))
            content = file.read()
    except OSError:
        return ""
    return content.replace(b"\0", b"").decode(errors="replace")


def first_error(output: str) -> str | None:
    """Return the first error line: the harness's own sentence, else an exception's, else what looks like one.

    Of a crash inside of MPI it names the call too.
    """
    lines = [line.strip() for line in output.splitlines() if not _LIBRARY_LOG.match(line)]
    for pattern in (_OURS, _EXCEPTION, _SIGNAL, _OTHER):
        for line in lines:
            match = pattern.match(line)
            if match:
                call = _CALL.search(output) if pattern is _SIGNAL else None
                return match["reason"] + (f" in {call['call']}" if call else "")
    return None


_GRACE_S = 30.0  # NFS may show a record half a minute after the job that wrote it has ended (acdirmin)
_MISSING_S = 60.0  # how long a job that no answer lists may still be there: without job history none says its end


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOutcome:
    """The end of a launch: its record, or None and why in `text`; with a record, `text` has its doubts.

    `again` says that it was stopped with a checkpoint: submitted again it goes on from there.
    """

    record: RunRecord | None
    text: str
    again: bool = False


def settle(
    folder: Path, running: Running, state: State, scheduler: Scheduler, since: dict[str, float]
) -> LaunchOutcome | None:
    """Return what became of a launch, None while that is open, and keep its failure beside the sweep.

    A launch that left a record has succeeded though its job goes on with others; one that left none has
    failed when its job has ended, or is not listed and left its exit code or stays away. `since` remembers between
    calls when a job was first seen to have ended or to be missing.
    """
    point = running.point
    exited = exit_file(folder, point).exists()
    over = state.phase == "ended" or (state.phase == "unknown" and (exited or not _may_live(running, scheduler, since)))
    if state.phase != "unknown":
        since.pop(f"missing {running.job}", None)
    if not over and not exited:
        return None
    found = check_record(folder, point)
    if isinstance(found, RunRecord):
        file_failure(folder, point)
        doubt = ", beside other work" if found.met else ""
        return LaunchOutcome(
            record=found, text=f", times not valid: {'; '.join(found.invalid)}" if found.invalid else doubt
        )
    if not over:
        return None
    if scheduler.request.requeue and not exited and has_checkpoint(folder / point.folder):
        # Between its end and its place in the queue Slurm calls a job that requeues itself cancelled.
        if time.monotonic() - since.setdefault(f"requeued {running.job}", time.monotonic()) < _GRACE_S:
            return None
    code = _exit_code(folder, point, state)
    if scheduler.survives_client and code == 0:
        if time.monotonic() - since.setdefault(point.folder, time.monotonic()) < _GRACE_S:
            return None
    reason = _keep_failure(folder, running, state, scheduler)
    if code == AGAIN and not state.forced and has_checkpoint(folder / point.folder):
        return LaunchOutcome(record=None, text=reason, again=True)
    return LaunchOutcome(record=None, text=f"FAILED: {reason}")


def _may_live(running: Running, scheduler: Scheduler, since: dict[str, float]) -> bool:
    """Tell whether a job that the scheduler does not list may live: missing is not ended, until it stays missing."""
    if not scheduler.survives_client:
        return False
    began = since.setdefault(f"missing {running.job}", time.monotonic())
    return time.monotonic() - began < _MISSING_S


def _keep_failure(folder: Path, running: Running, state: State, scheduler: Scheduler) -> str:
    point = running.point
    log = read_output(folder / LOGS / f"{point.folder}.log")
    job = read_output(scheduler.output(folder / LOGS, running.job))
    code = _exit_code(folder, point, state)
    said = first_error(log) or first_error(job)
    known = scheduler.explain(state)
    if late := _TIME_LIMIT.search(job):
        reason = f"its time limit of {late['limit']} s ended it after {late['used']} s"
    elif state.forced or (state.phase == "unknown" and not exit_file(folder, point).exists()):
        started = "" if log or state.nodes or not scheduler.survives_client else "it had not started; "
        reason = f"{started}{known}" + (f"; its output says: {said}" if said else "")
    else:
        reason = said or f"exit code {code} without a valid record, {known}"
    if "its time limit" in reason:
        reason += "; ask for a longer WALLTIME"
    ended, said = datetime.now(UTC), "\n".join(f"{log}\n{job}".strip("\n").splitlines()[-_TAIL_LINES:])
    held_s = 0.0 if scheduler.survives_client else (ended - running.started).total_seconds() / running.together
    write_failure(folder, Failure(point=point, ended=ended, exit_code=code, reason=reason, tail=said, seconds=held_s))
    return reason


def _exit_code(folder: Path, point: Point, state: State) -> int:
    try:
        return int(exit_file(folder, point).read_text())
    except (OSError, ValueError):
        return state.exit_code if state.exit_code is not None else -1


_PATIENCE_S = 10.0  # a job ends, and is accounted for, a little after its launches
_LOG = logging.getLogger(__name__)


def note_ended(folder: Path, ended: Sequence[Running]) -> None:
    """Keep that the launches `ended` are over and their jobs to be asked for."""
    if ended:
        new = [Account(job=one.job, scheduler=one.scheduler, launch=one.point.folder) for one in ended]
        write_atomic(folder / ACCOUNTS_FILE, encode((*read_accounts(folder), *new)))


def ask_accounts(folder: Path, scheduler: Scheduler) -> None:
    """Ask for every job of the sweep in `folder` that is over and not known; one that is not found is asked for again.

    Accounting is no reason to fail: a scheduler that does not answer is asked by the next command.
    """
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while not _ask(folder, scheduler) and time.monotonic() < deadline:
            time.sleep(scheduler.poll_s)
    except UserError as error:
        _LOG.warning("the next command asks for accounting again: %s", error)


def _ask(folder: Path, scheduler: Scheduler) -> bool:
    """Ask once, and return whether nothing is left to be asked for."""
    accounts = read_accounts(folder)
    wanted = [one for one in accounts if one.usage is None and not one.missing and one.scheduler == scheduler.name]
    if not wanted:
        return True
    found = scheduler.account(sorted({one.job for one in wanted}))
    if isinstance(found, str):
        known = {one: replace(one, missing=found) for one in wanted}
    else:
        known = {one: replace(one, usage=found[one.job]) for one in wanted if one.job in found}
    if known:
        write_atomic(folder / ACCOUNTS_FILE, encode(tuple(known.get(one, one) for one in accounts)))
    return len(known) == len(wanted)


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
    """Read the state of the sweep in `folder`; raise a UserError if the study file is missing or damaged."""
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
        left = max(0.0, left - sum(max(0.0, (datetime.now(UTC) - one.started).total_seconds()) for one in running))
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
        known = {running.point.folder: running for running in identify(scheduler, folder, tuple(submitted))}
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
        name = running.point.folder
        shared = running.task < 0 and not (folder / JOBS / f"{name}.sh").exists()
        log = folder / LOGS / f"{name}.log"
        if shared and not (log.exists() and log.stat().st_size):
            return "queued", f"waits for its turn in {job}"
        where = f"{job} on {state.nodes}" if state.nodes else job
        return "running", f"{where}: {state.reason}" if state.reason else where
    return "ended", f"{job}: {scheduler.explain(state)}; not collected yet"
