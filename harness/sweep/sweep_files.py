"""What commands leave in a sweep's folder: what was asked last, launches under way, and why launches failed."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.record_words import check_text
from harness.base.removal import move, remove_file
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import SCHEMA, Failure, RunRecord, decode_file, encode, read_run
from harness.schema.sweep import Skipped, Study, Sweep
from harness.schema.sweep_folder import RUN_FILE, SweepFolder
from harness.sweep.schedulers import check_identifier


def write_failure(files: SweepFolder, failure: Failure) -> None:
    """Keep why a point failed, beside its earlier failures."""
    file_failure(files, failure.point)
    write_atomic(files.failure(failure.point.folder), encode(failure))


def file_failure(files: SweepFolder, point: Point) -> None:
    """Keep the failure of `point`, if it has one, as an attempt: it was tried again."""
    path = files.failure(point.folder)
    with contextlib.suppress(FileNotFoundError):
        number = 1 + sum(1 for _ in path.parent.glob(f"{point.folder}-attempt*.json"))
        move(path, path.with_name(f"{point.folder}-attempt{number}.json"))


# The launches that are submitted and not settled, as a sweep's folder lists them.


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A launch that was submitted and has not been settled. `job` is the scheduler's identifier.

    `name` is the job's name in the queue and `task` its place in an array, -1 in a plain job. `job` is empty
    between the decision to submit and the scheduler's answer: then the name finds it. `together` launches of its job
    train in turns on the same cores. One that is `extra` is made only while the speedups are not known well enough.
    """

    point: Point
    job: str
    started: datetime
    scheduler: str = "local"
    name: str = ""
    task: int = -1
    together: int = 1
    extra: bool = False

    def __post_init__(self) -> None:
        check_text("job's name", self.name, optional=True)
        if self.job:
            check_identifier(self.scheduler, self.job)


def count_asked(launches: Iterable[Running]) -> int:
    """Return how many of `launches` were asked for: not those that are made only while it is worth it."""
    return sum(not running.extra for running in launches)


def write_running(files: SweepFolder, running: tuple[Running, ...]) -> None:
    """Say which launches are under way; `harness status` reads it."""
    if running:
        write_atomic(files.running, encode(running))
    else:
        remove_file(files.running)


def read_running(files: SweepFolder) -> tuple[Running, ...]:
    """Return the launches that were under way when the sweep last wrote."""
    return decode_file(files.running, tuple[Running, ...]) or ()


# What the last command asked of a sweep, in the sweep's folder.


def write_study(files: SweepFolder, sweep: Sweep, skipped: tuple[Skipped, ...]) -> None:
    """Write what this command asks of the sweep; raise a UserError if the results folder cannot be written to."""
    write_atomic(files.study, encode(Study(schema=SCHEMA, sweep=sweep, skipped=skipped)))


def read_study(files: SweepFolder) -> Study:
    """Read what the last command asked of the sweep of `files`.

    Raises:
        UserError: there is no study, or it is damaged or of another schema version.
    """
    path = files.study
    study = decode_file(path, Study)
    if study is None:
        raise UserError(f"'{files.path}' holds no sweep: run 'harness sweep' first")
    if study.schema != SCHEMA:
        raise UserError(f"'{path}' has schema {study.schema}, this harness reads {SCHEMA}: run the sweep again")
    return study


# What a sweep's folder holds of each point: a record that counts, a failure, or neither.


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What is known of each point, by its folder's name. `damaged` says why a record does not count."""

    records: dict[str, RunRecord]
    failures: dict[str, Failure]
    damaged: dict[str, str]

    def missing(self, points: Iterable[Point], *, invalid_too: bool = True) -> tuple[Point, ...]:
        """Return the points without a record, or with `invalid_too` without one whose times are valid, in order.

        A point that was asked to oversubscribe is never valid for timing, and not missing for that; nor is one that
        was taken up from a checkpoint too late to be timed, as it would be again.
        """
        return tuple(point for point in points if self._is_missing(point, invalid_too=invalid_too))

    def _is_missing(self, point: Point, *, invalid_too: bool) -> bool:
        record = self.records.get(point.folder)
        if record is None:
            return True
        never_valid = point.oversubscribe or not record.timed_epochs
        return invalid_too and bool(record.invalid) and not never_valid

    def durations(self) -> dict[Layout, list[float]]:
        """Return the seconds that finished launches took, with the start of TensorFlow, by layout."""
        seconds: dict[Layout, list[float]] = {}
        for record in self.records.values():
            seconds.setdefault(record.point.layout, []).append(record.wall_seconds)
        return seconds


def survey(files: SweepFolder, points: Iterable[Point]) -> Survey:
    """Read what `files` hold about `points`."""
    result = Survey(records={}, failures={}, damaged={})
    for point in points:
        record = check_record(files, point)
        if isinstance(record, RunRecord):
            result.records[point.folder] = record
            continue
        if (files.path / point.folder).exists():
            result.damaged[point.folder] = record
        failure = decode_file(files.failure(point.folder), Failure)
        if failure is not None:
            result.failures[point.folder] = failure
    return result


def check_record(files: SweepFolder, point: Point) -> RunRecord | str:
    """Return the record of `point`, or one sentence that says why there is none that counts."""
    try:
        record = read_run(files.path / point.folder)
    except UserError as error:
        return str(error)
    if record.point.key != point.key:
        return f"'{files.path / point.folder}' holds the record of another point: delete it and run again"
    return record


def other_code(files: SweepFolder, code: str) -> int:
    """Return how many records of `files` are of launches that ran a different version of the code than `code`."""
    count = 0
    for path in files.path.glob(f"n*/{RUN_FILE}"):
        with contextlib.suppress(OSError, KeyError, msgspec.DecodeError):
            record = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
            count += msgspec.json.decode(record["point"], type=dict[str, Any])["code"] != code
    return count


def set_aside(files: SweepFolder, name: str) -> None:
    """Move a record of the launch called `name` that does not count out of the way of the one that replaces it."""
    launch = files.launch(name)
    if launch.is_recorded:
        moved = files.replaced / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        moved.parent.mkdir(exist_ok=True)
        move(launch.path, moved)
