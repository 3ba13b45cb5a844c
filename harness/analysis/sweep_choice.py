"""The one rule by which a sweep is chosen where several answer a question."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.units import plural
from harness.schema.presets import PRESETS, resolve
from harness.schema.record import decode
from harness.schema.sweep import Study
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.schema.workload import Workload

RULE = "settings as its preset has them, then most valid launches, then newest"
_FREE = ("samples", "epochs", "seed", "data", "data_file", "distribution", "input")


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepChoice:
    """The sweep that was taken, of how many that have valid launches."""

    loaded: Loaded
    candidates: int

    def sentence(self, what: str) -> str:
        """Return which sweep was taken for `what`, and why."""
        taken = f"{what}: {self.loaded.folder.name}, {plural(len(self.loaded.valid), 'valid launch')}"
        return f"{taken}, of {self.candidates} sweeps ({RULE})" if self.candidates > 1 else f"{taken}, the only sweep"


def choose_sweep(results: Path, wanted: Callable[[Study], bool], *, every_code: bool = False) -> SweepChoice | None:
    """Return the sweep of `results` that answers among those `wanted`, which is what can be compared; None of none.

    Only sweeps with a valid launch count, so that one that was planned and never launched does not; unless for
    `every_code`, a launch of the code that the sweep's last command asked for. Of these, one that trains as its preset
    has it comes before one with settings of its own (SYNC=none, say), then the one with more valid launches, then the
    one whose last launch is the newest.

    Raises:
        UserError: a study file is damaged.
    """
    candidates = []
    for folder in sweep_folders(results):
        study_file = SweepFolder(folder).study
        study = decode(study_file.read_bytes(), Study, study_file)
        if wanted(study):
            loaded = load_sweep(folder, every_code=every_code)
            candidates += [loaded] if loaded.valid else []
    return SweepChoice(loaded=max(candidates, key=standing), candidates=len(candidates)) if candidates else None


def standing(loaded: Loaded) -> tuple[bool, int, float]:
    """Return what the rule goes by, the largest first: the sweep's settings, its valid launches, its newest one."""
    workload = loaded.study.sweep.workload if loaded.study else loaded.valid[0].point.workload
    newest = max((run.started.timestamp() for run in loaded.valid), default=0.0)
    return as_preset(workload), len(loaded.valid), newest


def as_preset(workload: Workload) -> bool:
    """Return whether `workload` trains with the settings of its preset; how many rows and epochs is left open."""
    if workload.preset not in PRESETS:
        return True
    usual = resolve(dataset=workload.dataset, model=workload.model, preset=workload.preset)
    return replace(workload, **{name: getattr(usual, name) for name in _FREE}) == usual
