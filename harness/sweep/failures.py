"""Why launches failed, in a sweep's folder: the last failure of each, and those of earlier attempts beside it."""

import contextlib

from harness.base.files import write_atomic
from harness.base.removal import move
from harness.schema.launch_failure import Failure
from harness.schema.point import Point
from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder


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
