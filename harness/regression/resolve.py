"""From the folder of a sweep or a launch to its measurements, and to all of a study."""

from dataclasses import replace
from pathlib import Path

from harness.analysis.load import load_sweep
from harness.base.errors import UserError
from harness.regression.decide import CHECKS
from harness.regression.states import measurements, state_names
from harness.regression.store import read_baselines, read_noises, same_study
from harness.schema.measurement import Measurement
from harness.schema.record import RUN_FILE
from harness.schema.sweep import sweep_folders


def measure(folder: Path, label: str, commit: str | None) -> Measurement:
    """Return what the sweep, or the single launch, in `folder` measured: of the newest state of its code.

    `commit` chooses another state by its first digits; `label` is how a reader names the measurement.

    Raises:
        UserError: there is no valid launch, or none of that commit.
    """
    single = (folder / RUN_FILE).exists()
    loaded = load_sweep(folder.resolve().parent if single else folder, every_code=True)
    if single:
        runs = tuple(run for run in loaded.runs if run.point.folder == folder.resolve().name)
        loaded = replace(loaded, runs=runs, failures=())
    found = measurements(loaded, label)
    if not found:
        lost = f"{len(loaded.runs)} invalid, {len(loaded.damaged)} damaged, {len(loaded.failures)} failed"
        raise UserError(f"'{folder}' holds no valid launch ({lost}): run `harness sweep` first")
    if commit is None:
        return found[0]
    for one in found:
        if commit and any(name.startswith(commit) for name in (one.state, one.software.commit, one.software.code)):
            return one
    have = ", ".join(dict.fromkeys(state_names(found)))
    raise UserError(f"'{label}': no valid launch of commit '{commit}' in '{folder}', there are of {have}")


def all_of(study: Measurement, *, results: Path, baselines: Path) -> tuple[Measurement, ...]:
    """Return every measurement of the study's workload on its machine, from sweeps, checks and baselines."""
    kept = [one.measurement for one in (*read_baselines(baselines), *read_noises(baselines))]
    measured = [
        one
        for folder in (*sweep_folders(results), *sweep_folders(results / CHECKS))
        for one in measurements(load_sweep(folder, every_code=True), folder.name)
    ]
    return tuple(
        one
        for one in (*measured, *kept)
        if same_study(one, study) and one.machine.fingerprint == study.machine.fingerprint
    )
