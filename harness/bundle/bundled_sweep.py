"""What a bundle says of one sweep: answer, command, figures, the minutes that it takes, and its cheapest launch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from harness.analysis.frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import scale
from harness.report.sweep_facts import banners
from harness.report.sweep_page import headline
from harness.schema.record import RunRecord
from harness.sweep.progress import layout_words
from harness.why.known_causes import diagnose_sweep

SMOKE_MINUTES = 30.0
_PAUSE = timedelta(seconds=30)  # between launches: what starts and ends them belongs to them


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledSweep:
    """One sweep of a bundle. `command` gives its launches, `limits` are sentences on what they do not show.

    `figures` are the titles of its figures by file without the ending, below the bundle. `analysis_s` is what drawing
    its report takes, in seconds.
    """

    name: str
    answer: str
    command: str
    loaded: Loaded
    analysis_s: float
    figures: dict[str, str]
    limits: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The launches that statements rest on: the valid ones, else all."""
        return self.loaded.valid or self.loaded.runs

    @property
    def cheapest(self) -> RunRecord:
        """The launch that takes the least time, one with valid times if there is one."""
        return min(self.runs, key=lambda run: (run.wall_seconds, run.point.folder))

    @property
    def starting_s(self) -> float:
        """What launches spent before training, in seconds: a part of `execution_seconds`."""
        starts = (
            max(r.import_s + r.load_s + r.distribute_s + r.compile_s for r in run.ranks) for run in self.loaded.runs
        )
        return sum(starts)


def bundled_sweep(loaded: Loaded, command: str, analysis_s: float, page: Path, root: Path) -> BundledSweep:
    """Return what is to be said of the sweep `loaded`, whose drawn `page` (a folder) lies below `root`."""
    assert loaded.study is not None, f"{loaded.folder} was checked to be a sweep"
    launches = launch_frame(loaded.runs, loaded.epochs)
    limits = [
        *(one.text for one in banners(loaded.valid or loaded.runs, launches)),
        *(f"{one.cause.capitalize()}: {one.evidence}" for one in diagnose_sweep(loaded)),
        *(f"{layout_words(one.layout)} was not run: {one.reason}." for one in loaded.study.skipped),
        *(f"A launch of {layout_words(one.point.layout)} failed: {one.reason}." for one in loaded.failures),
    ]
    bad = [f"{layout_words(run.point.layout)}, launch {run.point.repeat + 1}" for run in loaded.runs if run.invalid]
    if bad:
        of = f"{len(bad)} of {len(loaded.runs)} launches"
        limits.append(f"{of} have no valid times and are in no statistic: {'; '.join(bad)}.")
    figures = {}
    for path in sorted(page.glob("*.svg")):
        title = re.search(r"<dc:title>(.*?)</dc:title>", path.read_text(encoding="utf-8"), re.DOTALL)
        figures[path.with_suffix("").relative_to(root).as_posix()] = title[1] if title else path.stem
    return BundledSweep(
        name=loaded.folder.name,
        answer=headline(loaded, scale(launches)).replace("\u00a0", " "),
        command=command,
        loaded=loaded,
        analysis_s=analysis_s,
        figures=figures,
        limits=tuple(limits),
    )


def smoke(sweeps: Sequence[BundledSweep]) -> tuple[tuple[BundledSweep, ...], float]:
    """Return the sweeps whose cheapest launch fits into `SMOKE_MINUTES` beside all reports, and their minutes.

    The cheapest come first; what takes too long is left out.
    """
    total, chosen = sum(one.analysis_s for one in sweeps) / 60, []
    for one in sorted(sweeps, key=lambda one: one.cheapest.wall_seconds):
        if total + one.cheapest.wall_seconds / 60 <= SMOKE_MINUTES:
            total += one.cheapest.wall_seconds / 60
            chosen.append(one)
    return tuple(chosen), total


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
