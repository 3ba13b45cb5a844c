"""What a sweep's folder holds of each point: a record that counts, a failure, or neither."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from harness.base.errors import UserError
from harness.base.removal import move
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import Failure, RunRecord, decode_file, read_run
from harness.schema.sweep_folder import RUN_FILE, SweepFolder

# What a sweep's folder holds of each point: a record that counts, a failure, or neither.


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedLaunch:
    """What a sweep keeps in mind of a launch's record, whose epochs would fill the memory where launches are many.

    `epoch_s` and `wall_seconds` are those of `RunRecord`, `rank_bytes` is the most memory that one of its ranks had.
    `is_timed`: the time of an epoch counts.
    """

    point: Point
    invalid: tuple[str, ...]
    block: str
    is_timed: bool
    epoch_s: float
    wall_seconds: float
    rank_bytes: int


def finished_launch(record: RunRecord) -> FinishedLaunch:
    """Return what is kept in mind of `record`."""
    return FinishedLaunch(
        point=record.point,
        invalid=record.invalid,
        block=record.block,
        is_timed=bool(record.timed_epochs),
        epoch_s=record.epoch_s,
        wall_seconds=record.wall_seconds,
        rank_bytes=max(rank.peak_memory_bytes for rank in record.ranks),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What is known of each point, by its folder's name. `damaged` says why a record does not count."""

    records: dict[str, FinishedLaunch]
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
        never_valid = point.oversubscribe or not record.is_timed
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
            result.records[point.folder] = finished_launch(record)
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
    if record.block and not files.block_turns(record.block).exists():
        return f"'{files.path / point.folder}' trained in a block that was ended before its turns were written"
    return record


def other_code(files: SweepFolder, surveyed: Survey, code: str) -> int:
    """Return how many records of `files` are of launches that ran a different version of the code than `code`.

    Those that were `surveyed` ran `code`, as their points have it, and are not read again.
    """
    count = 0
    for path in files.path.glob(f"n*/{RUN_FILE}"):
        if path.parent.name in surveyed.records:
            continue
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
