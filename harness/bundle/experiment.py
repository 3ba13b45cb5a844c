"""What a bundle says of one sweep: answer, command, figures, the minutes that it takes, and its cheapest launch."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from harness.analysis.frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import scale
from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.diagnosis.study import diagnose_sweep
from harness.report.sweep_facts import banners
from harness.report.sweep_page import headline
from harness.schema.presets import study_name
from harness.schema.record import RunRecord, decode, encode
from harness.sweep.eta import layout_words

SMOKE_MINUTES = 30.0
ANALYSIS_FILE = "analysis.json"  # results/<sweep>/analysis.json
_PAUSE = timedelta(seconds=30)  # between launches: what starts and ends them belongs to them
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Minutes:
    """What one experiment takes, in minutes. `starting` is the part of `execution` before any training."""

    execution: float
    starting: float
    analysis: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureFile:
    """A figure of a page: its files' name without the ending, below the bundle, and its title."""

    name: str
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledSweep:
    """One sweep of a bundle. `command` gives its launches, `limits` are sentences on what they do not show."""

    name: str
    title: str
    answer: str
    command: str
    loaded: Loaded
    minutes: Minutes
    figures: tuple[FigureFile, ...]
    limits: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The launches that statements rest on: the valid ones, else all."""
        return self.loaded.valid or self.loaded.runs

    @property
    def cheapest(self) -> RunRecord:
        """The launch that takes the least time, one with valid times if there is one."""
        return min(self.runs, key=lambda run: (run.wall_seconds, run.point.folder))


def experiment(loaded: Loaded, command: str, minutes: Minutes, page: Path, root: Path) -> BundledSweep:
    """Return what is to be said of the sweep `loaded`, whose drawn `page` (a folder) lies below `root`."""
    assert loaded.study is not None, f"{loaded.folder} was checked to be a sweep"
    launches = launch_frame(loaded.runs, loaded.epochs)
    used = loaded.valid or loaded.runs
    return BundledSweep(
        name=loaded.folder.name,
        title=study_name(loaded.study.sweep),
        answer=headline(loaded, scale(launches)).replace("\u00a0", " "),
        command=command,
        loaded=loaded,
        minutes=minutes,
        figures=figures_of(page, root),
        limits=(
            *(one.text for one in banners(used, launches)),
            *(f"{one.cause.capitalize()}: {one.evidence}" for one in diagnose_sweep(loaded)),
            *(f"{layout_words(one.layout)} was not run: {one.reason}." for one in loaded.study.skipped),
            *(f"A launch of {layout_words(one.point.layout)} failed: {one.reason}." for one in loaded.failures),
            *_invalid(loaded.runs),
        ),
    )


def _invalid(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    bad = [f"{layout_words(run.point.layout)}, launch {run.point.repeat + 1}" for run in runs if run.invalid]
    said = f"{len(bad)} of {len(runs)} launches have no valid times and are in no statistic: {'; '.join(bad)}."
    return (said,) if bad else ()


def figures_of(page: Path, root: Path) -> tuple[FigureFile, ...]:
    """Return the figures in the folder `page`."""
    return tuple(
        FigureFile(name=path.with_suffix("").relative_to(root).as_posix(), title=_title(path))
        for path in sorted(page.glob("*.svg"))
    )


def _title(figure: Path) -> str:
    found = re.search(r"<dc:title>(.*?)</dc:title>", figure.read_text(encoding="utf-8"), re.DOTALL)
    return found[1] if found else figure.stem


def smoke(experiments: Sequence[BundledSweep]) -> tuple[tuple[BundledSweep, ...], float]:
    """Return the experiments whose cheapest launch fits into `SMOKE_MINUTES` beside all reports, and their minutes.

    The cheapest come first; what takes too long is left out.
    """
    total, chosen = sum(one.minutes.analysis for one in experiments), []
    for one in sorted(experiments, key=lambda one: one.cheapest.wall_seconds):
        if total + one.cheapest.wall_seconds / 60 <= SMOKE_MINUTES:
            total += one.cheapest.wall_seconds / 60
            chosen.append(one)
    return tuple(chosen), total


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """What drawing a report took when it was measured, in seconds."""

    seconds: float


def measured_minutes(runs: Sequence[RunRecord], analysis_s: float) -> Minutes:
    """Return the minutes of an experiment with these `runs`, of which there is at least one."""
    starting = sum(max(r.import_s + r.load_s + r.distribute_s + r.compile_s for r in run.ranks) for run in runs)
    return Minutes(
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
