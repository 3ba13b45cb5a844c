"""What a bundle says of each sweep: its answer, its command, its limits, and which launches are cheap to repeat."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from harness.analysis.launch_frames import launch_frame
from harness.analysis.read_results import Loaded
from harness.analysis.scaling import scale
from harness.report.sweep_answer import page_sentence
from harness.report.sweep_warnings import banners
from harness.schema.record import RunRecord
from harness.why.known_causes import diagnose_sweep

SMOKE_MINUTES = 30.0
_PAUSE = timedelta(seconds=30)  # between launches: what starts and ends them belongs to them


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledSweep:
    """One sweep of a bundle. `command` gives its launches, `limits` are sentences on what they do not show."""

    name: str
    answer: str
    command: str
    loaded: Loaded
    limits: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The launches that statements rest on: the valid ones, else all."""
        return self.loaded.valid or self.loaded.runs

    @property
    def cheapest(self) -> RunRecord:
        """The launch that takes the least time, one with valid times if there is one."""
        return min(self.runs, key=lambda run: (run.wall_seconds, run.point.folder))


def bundled_sweep(loaded: Loaded, command: str) -> BundledSweep:
    """Return what is to be said of the sweep `loaded`, which `command` gives again."""
    assert loaded.study is not None, f"{loaded.folder} was checked to be a sweep"
    launches = launch_frame(loaded.runs, loaded.epochs)
    limits = [
        *(banner.text for banner in banners(loaded.valid or loaded.runs, launches)),
        *(f"{diagnosis.cause.capitalize()}: {diagnosis.evidence}" for diagnosis in diagnose_sweep(loaded)),
        *(f"{skipped.layout} was not run: {skipped.reason}." for skipped in loaded.study.skipped),
        *(f"A launch of {failure.point.layout} failed: {failure.reason}." for failure in loaded.failures),
    ]
    invalid = [f"{run.point.layout}, launch {run.point.repeat + 1}" for run in loaded.runs if run.invalid]
    if invalid:
        share = f"{len(invalid)} of {len(loaded.runs)} launches"
        limits.append(f"{share} have no valid times and are in no statistic: {'; '.join(invalid)}.")
    return BundledSweep(
        name=loaded.folder.name,
        answer=page_sentence(loaded, scale(launches)).replace("\u00a0", " "),
        command=command,
        loaded=loaded,
        limits=tuple(limits),
    )


def smoke(sweeps: Sequence[BundledSweep]) -> tuple[BundledSweep, ...]:
    """Return the sweeps whose cheapest launches fit into `SMOKE_MINUTES` together, the cheapest first."""
    minutes = 0.0
    chosen = []
    for sweep in sorted(sweeps, key=lambda sweep: sweep.cheapest.wall_seconds):
        launch_minutes = sweep.cheapest.wall_seconds / 60
        if minutes + launch_minutes <= SMOKE_MINUTES:
            minutes += launch_minutes
            chosen.append(sweep)
    return tuple(chosen)


def execution_seconds(runs: Sequence[RunRecord]) -> float:
    """Return the seconds in which launches were under way, those at the same time counted once, short pauses too."""
    total = timedelta()
    counted_until = None
    for begin, end in sorted((run.ended - timedelta(seconds=run.wall_seconds), run.ended) for run in runs):
        if counted_until is None or begin - counted_until > _PAUSE:
            counted_until = begin
        total += max(timedelta(), end - counted_until)
        counted_until = max(counted_until, end)
    return total.total_seconds()
