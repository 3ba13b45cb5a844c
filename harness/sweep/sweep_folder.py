"""What lies in a sweep's folder, and the lock under which one command at a time works on it.

Also how its launches are started, and which of them are in a queue or running.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.option import options
from harness.schema.presets import Words, harness_command
from harness.schema.record import RUN_FILE, SCHEMA, RunRecord, decode_file, encode, read_run
from harness.schema.sweep import (
    CHECKPOINTS,
    FAILURES,
    LOGS,
    REPLACED,
    STUDY_FILE,
    SUBMISSION_FILE,
    Failure,
    Layout,
    Point,
    Skipped,
    Study,
    Sweep,
    forget_checkpoints,
)
from harness.sweep.job_script import JOBS
from harness.sweep.schedulers import Scheduler, open_scheduler
from harness.sweep.site import JobRequest, Site

LOCK_FILE = ".lock"
SUBMITTING_FILE = ".submitting"  # open, and locked, in every process that submits a job
# `is_locked` of another terminal holds the lock for a moment: that must not look like a second sweep.
_PATIENCE_S = 0.3
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # a file system without locks


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the sweep in `folder` for this process; raise a UserError if another has it, or it cannot be written to."""
    new = not folder.exists()
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, handle)
            _take(handle, folder)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        except OSError as error:
            if new:
                shutil.rmtree(folder, ignore_errors=True)  # it holds an empty lock, if that
            reason = os.strerror(error.errno or 0).lower()
            raise UserError(f"RESULTS '{folder.parent}' cannot be used: {reason}; choose another folder") from error
        try:
            yield
        except UserError:
            if new and [path.name for path in folder.iterdir()] == [LOCK_FILE]:  # what was refused leaves nothing
                shutil.rmtree(folder)
            raise


def is_locked(folder: Path) -> bool:
    """Tell whether a process works on the sweep in `folder` now."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # else there is no lock, or a file system without: nor can a command hold one there
        return isinstance(error, BlockingIOError)
    return False


def _take(handle: int, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(handle, 200, 0).decode(errors="replace")
                raise UserError(
                    f"sweep '{folder.name}' is already being run by {holder}: wait for it or end it"
                ) from None
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise UserError(f"RESULTS '{folder}' is on a file system without locks: choose another folder") from error


RUNNING_FILE = "running.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A launch that was submitted and has not been settled. `job` is the scheduler's identifier.

    `name` is the job's name in the queue and `task` its place in an array, -1 in a plain job. `job` is empty
    between the decision to submit and the scheduler's answer: then the name finds it. `together` launches of its job
    train in turns on the same cores.
    """

    point: Point
    job: str
    started: datetime
    scheduler: str = "local"
    name: str = ""
    task: int = -1
    together: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What is known of each point, by its folder's name. `damaged` says why a record does not count."""

    records: dict[str, RunRecord]
    failures: dict[str, Failure]
    damaged: dict[str, str]

    def missing(self, points: Iterable[Point], *, invalid_too: bool = True) -> tuple[Point, ...]:
        """Return the points without a record, or with `invalid_too` without one whose times are valid, in order.

        A point that was asked to oversubscribe is never valid for timing, and not missing for that; nor is one that
        was taken up from a checkpoint, which was too long to begin again.
        """
        return tuple(
            point
            for point in points
            if not (record := self.records.get(point.folder))
            or (invalid_too and record.invalid and not (record.segments or point.oversubscribe))
        )

    def durations(self) -> dict[Layout, list[float]]:
        """Return the seconds that finished launches took, with the start of TensorFlow, by layout."""
        found: dict[Layout, list[float]] = {}
        for record in self.records.values():
            found.setdefault(record.point.layout, []).append(record.wall_seconds)
        return found


def survey(folder: Path, points: Iterable[Point]) -> Survey:
    """Read what `folder` holds about `points`."""
    known = Survey(records={}, failures={}, damaged={})
    for point in points:
        found = check_record(folder, point)
        if isinstance(found, RunRecord):
            known.records[point.folder] = found
            continue
        if (folder / point.folder).exists():
            known.damaged[point.folder] = found
        failure = decode_file(_failure_path(folder, point), Failure)
        if failure is not None:
            known.failures[point.folder] = failure
    return known


def check_record(folder: Path, point: Point) -> RunRecord | str:
    """Return the record of `point`, or one sentence that says why there is none that counts."""
    try:
        record = read_run(folder / point.folder)
    except UserError as error:
        return str(error)
    if record.point.key != point.key:
        return f"'{folder / point.folder}' holds the record of another point: delete it and run again"
    return record


def other_code(folder: Path, code: str) -> int:
    """Return how many records under `folder` are of launches that ran a different version of the code than `code`."""
    found = 0
    for path in folder.glob(f"n*/{RUN_FILE}"):
        with contextlib.suppress(OSError, KeyError, msgspec.DecodeError):
            record = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
            found += msgspec.json.decode(record["point"], type=dict[str, Any])["code"] != code
    return found


def set_aside(folder: Path, point: Point) -> None:
    """Move a record of `point` that does not count out of the way of the launch that replaces it."""
    old = folder / point.folder
    if (old / RUN_FILE).exists():
        moved = folder / REPLACED / f"{point.folder}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        moved.parent.mkdir(exist_ok=True)
        old.rename(moved)


def write_study(folder: Path, sweep: Sweep, skipped: tuple[Skipped, ...]) -> None:
    """Write what this command asks of the sweep; raise a UserError if the results folder cannot be written to."""
    write_atomic(folder / STUDY_FILE, encode(Study(schema=SCHEMA, sweep=sweep, skipped=skipped)))


def read_study(folder: Path) -> Study:
    """Read what the last command asked of the sweep in `folder`.

    Raises:
        UserError: there is no study, or it is damaged or of another schema version.
    """
    path = folder / STUDY_FILE
    study = decode_file(path, Study)
    if study is None:
        raise UserError(f"'{folder}' holds no sweep: run 'harness sweep' first")
    if study.schema != SCHEMA:
        raise UserError(f"'{path}' has schema {study.schema}, this harness reads {SCHEMA}: run the sweep again")
    return study


def write_failure(folder: Path, failure: Failure) -> None:
    """Keep why a point failed, beside its earlier failures."""
    file_failure(folder, failure.point)
    write_atomic(_failure_path(folder, failure.point), encode(failure))


def file_failure(folder: Path, point: Point) -> None:
    """Keep the failure of `point`, if it has one, as an attempt: it was tried again."""
    path = _failure_path(folder, point)
    with contextlib.suppress(FileNotFoundError):
        number = 1 + sum(1 for _ in path.parent.glob(f"{point.folder}-attempt*.json"))
        path.replace(path.with_name(f"{point.folder}-attempt{number}.json"))


def write_running(folder: Path, running: tuple[Running, ...]) -> None:
    """Say which launches are under way; `harness status` reads it."""
    if running:
        write_atomic(folder / RUNNING_FILE, encode(running))
    else:
        (folder / RUNNING_FILE).unlink(missing_ok=True)


def read_running(folder: Path) -> tuple[Running, ...]:
    """Return the launches that were under way when the sweep last wrote."""
    return decode_file(folder / RUNNING_FILE, tuple[Running, ...]) or ()


def _failure_path(folder: Path, point: Point) -> Path:
    return folder / FAILURES / f"{point.folder}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """Scheduler (never ``auto``), site, request, the user's own template and the folder of the originals.

    `site_file` is the site's name or file where the user named one.
    """

    scheduler: str = "local"
    site: Site = field(default_factory=Site)
    request: JobRequest = field(default_factory=JobRequest)
    template: str | None = None
    data_dir: str | None = None
    site_file: str | None = None

    def open(self, *, oversubscribe: bool) -> Scheduler:
        """Return the scheduler; raise a UserError if it is not usable here, or does not know what is asked for."""
        return open_scheduler(self.scheduler, oversubscribe=oversubscribe, site=self.site, request=self.request)


def write_submission(folder: Path, submission: Submission) -> None:
    """Keep how the sweep in `folder` is launched; raise a UserError if the folder cannot be written to."""
    write_atomic(folder / SUBMISSION_FILE, encode(submission))


def read_submission(folder: Path) -> Submission:
    """Return how the sweep in `folder` was launched last; raise a UserError if the file is missing or damaged."""
    submission = decode_file(folder / SUBMISSION_FILE, Submission)
    if submission is None:
        raise UserError(f"'{folder}' does not say how it was launched: give the sweep command again")
    return submission


def next_command(folder: Path, sweep: Sweep) -> str:
    """Return the ``harness sweep`` lines that go on with `sweep`, launched as it was last; empty if that is not known.

    They take in what has ended, and launch again what failed, is missing or has no valid times.
    """
    try:
        submission = read_submission(folder)
    except UserError:
        return ""
    words: Words = [("SCHEDULER", submission.scheduler)]
    words += [("SITE", submission.site_file)] if submission.site_file else []
    shape = submission.request.shape
    if submission.scheduler == "local":
        words += [("no-turns", True)] if shape == "jobs" and not submission.template else []
    elif shape == "array":
        words.append((shape, True))
    elif shape in ("nested", "block"):
        words += [("nested", True), ("turns" if shape == "block" else "no-turns", True)]
    for one, asked in options(JobRequest):
        value = getattr(submission.request, one.name)
        if value == getattr(submission.site.request, one.name):
            continue
        off = value is False and asked.opposite
        name = asked.opposite if off else asked.name or one.name
        words += [(name, True if off else part) for part in (value if isinstance(value, tuple) else (value,))]
    words += [("TEMPLATE", submission.template)] if submission.template else []
    words += [("DATA_DIR", submission.data_dir)] if submission.data_dir else []
    words += [("RESULTS", folder.parent)] if folder.parent != Path("results") else []
    return harness_command(sweep, words)


def tidy(folder: Path, going: Sequence[Running]) -> None:
    """Remove what commands and launches had half written when they were killed, under names with a leading dot.

    Launches that are `going` on may be writing theirs.
    """
    kept = (LOCK_FILE, SUBMITTING_FILE, *(f".{running.point.folder}." for running in going))
    at_work = {running.point.folder for running in going}
    unfinished = [path for path in (folder / CHECKPOINTS).glob("*") if path.name not in at_work]
    for path in unfinished:
        if (folder / path.name / RUN_FILE).exists():  # it was killed when its record was written
            forget_checkpoints(folder / path.name)
    places = (*(folder / part for part in (".", JOBS, LOGS, FAILURES)), *unfinished)
    for path in (path for place in places for path in place.glob(".*")):
        if path.name.startswith(kept):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
