"""What a figure was made of, inside the figure's own file: its launches, and the commands that give them and it again.

SVG, PDF and PNG have it among their metadata as ``Keywords``. A CSV file has no place for it that every reader
passes over, so the folder's ``csv-metadata.json`` has it, where "CSV on the Web" (W3C, 2015, section 5) looks.
"""

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from harness.analysis.read_results import Loaded
from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.regression.baselines import Measurement
from harness.schema.presets import sweep_command
from harness.schema.record import RUN_FILE, RunRecord

TABLES = "csv-metadata.json"
_FIELD = "dc:provenance"
_MARK = re.compile(rb'\{"harness":.*?"end":1\}', re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureSource:
    """A sweep that a figure shows: the `command` that gives its launches, and these, as `launch_mark` calls them."""

    sweep: str
    command: str
    launches: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a figure shows, and the `command` that draws it from the records. `harness` is the version that drew it."""

    command: str
    sources: tuple[FigureSource, ...] = ()
    harness: str = __version__


def launch_mark(name: str, started: datetime) -> str:
    """Return what tells a launch from every other, and from one that replaced it: its hash or layout, and its start."""
    return f"{name}@{started.isoformat()}"


def run_mark(run: RunRecord) -> str:
    """Return the `launch_mark` of a record: twelve digits of its point, and its start."""
    return launch_mark(run.point.key, run.started)


def sweeps_origin(command: str, sweeps: Iterable[Loaded]) -> Origin:
    """Return the origin of a figure that `command` draws of all launches in `sweeps`."""
    return Origin(
        command=command,
        sources=tuple(
            FigureSource(
                sweep=one.folder.resolve().name,
                command=sweep_command(one.study.sweep) if one.study else "",
                launches=tuple(map(run_mark, one.runs)),
            )
            for one in sweeps
        ),
    )


def measured_origin(command: str, measurements: Iterable[Measurement]) -> Origin:
    """Return the origin of a figure that `command` draws of `measurements`, whose launches are called by layout."""
    return Origin(
        command=command,
        sources=tuple(
            FigureSource(
                sweep=one.label,
                command="",
                launches=tuple(launch_mark(f"{it.layout}-r{it.repeat}", it.started) for it in one.launches),
            )
            for one in measurements
        ),
    )


def origin_text(origin: Origin) -> str:
    """Return `origin` as one line of ASCII without brackets or angles: it means the same in SVG, PDF and PNG."""
    told = {"harness": origin.harness, "command": origin.command, "sources": origin.sources, "end": 1}
    text = json.dumps(msgspec.to_builtins(told), separators=(",", ":"))
    return re.sub(r"[()<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def describe_tables(folder: Path, origin: Origin) -> None:
    """Say of every CSV file in `folder` where it comes from."""
    tables = [{"url": path.name} for path in sorted(folder.glob("*.csv"))]
    if tables:
        described = {"@context": "http://www.w3.org/ns/csvw", "tables": tables, _FIELD: origin_text(origin)}
        write_atomic(folder / TABLES, json.dumps(described, indent=1) + "\n")


def read_origin(path: Path) -> Origin | None:
    """Return what the figure or table `path` was made of, None where it does not tell.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from error
    if path.suffix == ".csv":
        content = _of_table(path)
    if content.startswith(b"%PDF"):
        content = content.replace(rb"\\", b"\\")  # PDF writes a backslash twice
    found = _MARK.search(content)
    try:
        return msgspec.json.decode(found[0], type=Origin) if found else None
    except msgspec.DecodeError:
        return None


def _of_table(path: Path) -> bytes:
    beside = path.parent / TABLES
    try:
        described = json.loads(beside.read_bytes()) if beside.exists() else {}
        listed = any(table["url"] == path.name for table in described.get("tables", ()))
        return str(described[_FIELD]).encode() if listed else b""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"'{beside}' is cut or damaged: draw the report again") from error


def find_origin(file: Path, reports: Path) -> Origin | None:
    """Return the `read_origin` of `file`; of a table that was moved, that of its equal in `reports`."""
    found = read_origin(file)
    if found is None and file.suffix == ".csv":
        content = file.read_bytes()
        others = (path for path in sorted(reports.rglob("*.csv")) if path.stat().st_size == len(content))
        found = next(
            (origin for path in others if path.read_bytes() == content and (origin := read_origin(path))), None
        )
    return found


def launches_of(origin: Origin) -> list[tuple[FigureSource, str, str]]:
    """Return every launch that a figure shows: its source, its name, and when it started in ISO 8601."""
    parts = [(source, mark.rpartition("@")) for source in origin.sources for mark in source.launches]
    return [(source, name, started) for source, (name, _, started) in parts]


def launches_in(results: Path) -> dict[str, str]:
    """Return the folders of all records under `results`, those of replaced launches too, by when they started."""
    found = {}
    for path in sorted(results.rglob(RUN_FILE)):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            started = msgspec.json.decode(path.read_bytes(), type=_Started).started
            found[started.isoformat()] = path.parent.relative_to(results).as_posix()
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Started:
    """What of a record tells when its launch began."""

    started: datetime
