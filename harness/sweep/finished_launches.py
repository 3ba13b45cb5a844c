"""What a sweep's folder holds of each point: a record that counts, a failure, or neither."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from harness.base.errors import UserError
from harness.base.parallel_work import read_each
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

    records: dict[str, FinishedLaunch] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

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
    result = Survey()
    present = {entry.name for entry in os.scandir(files.path)} if files.path.exists() else set()
    every = {point.folder: point for point in points}
    launched = [point for name, point in every.items() if name in present]
    read = partial(_read_finished, files)
    for point, record in zip(launched, read_each(read, launched, doing="reading launches"), strict=True):
        if isinstance(record, str):
            result.damaged[point.folder] = record
        else:
            result.records[point.folder] = record
    for name in every:
        failure = None if name in result.records else decode_file(files.failure(name), Failure)
        if failure is not None:
            result.failures[name] = failure
    return result


def _read_finished(files: SweepFolder, point: Point) -> FinishedLaunch | str:
    """Return what is kept in mind of the record of `point`, or one sentence that says why none counts."""
    record = check_record(files, point)
    return finished_launch(record) if isinstance(record, RunRecord) else record


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
