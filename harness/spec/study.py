"""Study: the files that lie beside a sweep's launches."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.spec.layout import Layout
from harness.spec.point import Point
from harness.spec.sweep import Sweep

STUDY_FILE = "sweep.json"  # results/<sweep>/sweep.json
FAILURES = "failures"  # results/<sweep>/failures/<point folder>.json
LOGS = "logs"  # results/<sweep>/logs/<point folder>.log


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A layout that was asked for and not run, and the reason in one sentence."""

    layout: Layout
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What the last command asked of this sweep, and the layouts it could not run here."""

    schema: int
    sweep: Sweep
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A launch that did not reach its end. `reason` is its first error line, `tail` its last output lines."""

    point: Point
    ended: datetime
    exit_code: int
    reason: str
    tail: str


def sweep_folders(results: Path) -> tuple[Path, ...]:
    """Return the sweeps' folders in `results`, the one that was written to last first.

    Written to: the study was asked for, or its folder gained or lost a launch.
    """

    def written(folder: Path) -> tuple[float, str]:
        return max(folder.stat().st_mtime, (folder / STUDY_FILE).stat().st_mtime), folder.name

    return tuple(sorted((file.parent for file in results.glob(f"*/{STUDY_FILE}")), key=written, reverse=True))
