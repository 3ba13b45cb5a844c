"""What commands leave in a sweep's folder: what was asked last, launches under way, and why launches failed."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.record_words import check_text
from harness.base.removal import move, remove_file
from harness.schema.point import Point
from harness.schema.record import SCHEMA, Failure, decode_file, encode
from harness.schema.sweep import Skipped, Study, Sweep
from harness.schema.sweep_folder import SweepFolder
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
    train in turns on the same cores, in the job's `block`, counted from 0. One that is `extra` is made only while the
    speedups are not known well enough.
    """

    point: Point
    job: str
    started: datetime
    scheduler: str = "local"
    name: str = ""
    task: int = -1
    together: int = 1
    block: int = 0
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
