"""How long an experiment takes: its launches from their records, its report and the set-up as they were measured."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.record import RunRecord, decode, encode

ANALYSIS_FILE = "analysis.json"  # results/<sweep>/analysis.json
_PAUSE = timedelta(seconds=30)  # between launches: what starts and ends them belongs to them
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Minutes:
    """What one experiment takes, in minutes. `starting` is the part of `execution` before any training.

    `setup` is of the environment, once for all experiments; None where it was not set up by `make`.
    """

    setup: float | None
    execution: float
    starting: float
    analysis: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """What drawing a report took when it was measured, in seconds."""

    seconds: float


def measured_minutes(runs: Sequence[RunRecord], analysis_s: float) -> Minutes:
    """Return the minutes of an experiment with these `runs`, of which there is at least one."""
    setup = setup_seconds()
    starting = sum(max(r.import_s + r.load_s + r.distribute_s + r.compile_s for r in run.ranks) for run in runs)
    return Minutes(
        setup=None if setup is None else setup / 60,
        execution=execution_seconds(runs) / 60,
        starting=starting / 60,
        analysis=analysis_s / 60,
    )


def execution_seconds(runs: Sequence[RunRecord]) -> float:
    """Return the seconds in which launches were under way, those at the same time counted once, short pauses too."""
    total, until = timedelta(), None
    for begin, end in sorted((run.ended - timedelta(seconds=run.wall_seconds), run.ended) for run in runs):
        if until is None or begin - until > _PAUSE:
            total += end - begin
        else:
            total += max(timedelta(), end - until)
        until = end if until is None else max(until, end)
    return total.total_seconds()


def setup_seconds() -> float | None:
    """Return what setting up this environment took (the Makefile notes it), None where that was not noted."""
    try:
        return float((Path(sys.prefix) / ".stamp").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def analysis_seconds(sweep: Path, measured: float) -> float:
    """Return what drawing the report of `sweep` took the first time it was measured; `measured` if that is now.

    It is kept beside the records, so that the same records make the same bundle.
    """
    path = sweep / ANALYSIS_FILE
    if path.exists():
        return decode(path.read_bytes(), Analysis, path).seconds
    found = Analysis(seconds=round(measured, 1))
    try:
        write_atomic(path, encode(found))
    except UserError as error:
        _LOG.warning("the next bundle of these records will state another time of analysis: %s", error)
    return found.seconds
