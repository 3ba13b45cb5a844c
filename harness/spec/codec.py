"""Records to JSON and back, validated on the way in."""

from pathlib import Path
from typing import TypeVar

import msgspec

from harness.errors import UserError
from harness.spec.point import Point
from harness.spec.record import SCHEMA, RunRecord

RUN_FILE = "run.json"
STEPS_FILE = "steps.parquet"

T = TypeVar("T")


def encode(value: object) -> bytes:
    """Return `value` (any of the spec's dataclasses) as indented UTF-8 JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def decode(content: bytes, kind: type[T], source: Path) -> T:
    """Return the `kind` that `content` holds; `source` is named when it does not.

    Raises:
        UserError: the content is not JSON of that kind (cut in half, a field missing or of another type).
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise UserError(f"'{source}' is not a valid {kind.__name__}: {error}; delete it and run again") from error
    except msgspec.DecodeError as error:
        raise UserError(f"'{source}' is cut or damaged ({error}): delete it and run again") from error
    except UserError as error:
        raise UserError(f"'{source}' is not a valid {kind.__name__}: {error}") from error


def read_point(path: Path) -> Point:
    """Read a point file.

    Raises:
        UserError: the file is missing or damaged.
    """
    return decode(_content(path), Point, path)


def read_run(folder: Path) -> RunRecord:
    """Read and validate the record of the launch in `folder`.

    Raises:
        UserError: the record is missing, damaged or of another schema version.
    """
    path = folder / RUN_FILE
    record = decode(_content(path), RunRecord, path)
    if record.schema != SCHEMA:
        raise UserError(f"'{path}' has schema {record.schema}, this harness reads {SCHEMA}: run the point again")
    return record


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from error
