"""Everything that was ever measured of one study on one machine."""

from pathlib import Path

from harness.analysis.load import load_sweep
from harness.analysis.measurement import measurements
from harness.errors import UserError
from harness.guard.sides import resolve
from harness.guard.store import read_baselines, read_noises, same_study
from harness.spec.measurement import Measurement
from harness.spec.study import sweep_folders


def chosen_study(sweep: str | None, *, results: Path, baselines: Path) -> Measurement:
    """Return a measurement of the study that `sweep` names, else of the newest sweep, else of the newest baseline.

    Raises:
        UserError: there is none.
    """
    if sweep is not None:
        return resolve(sweep, results=results, baselines=baselines)
    folders = sweep_folders(results)
    if folders:
        return resolve(str(folders[0]), results=results, baselines=baselines)
    kept = read_baselines(baselines)
    if not kept:
        raise UserError(f"neither '{results}' nor '{baselines}' holds a launch: run `harness sweep` first")
    return kept[0].measurement


def all_of(study: Measurement, *, results: Path, baselines: Path) -> tuple[Measurement, ...]:
    """Return every measurement of the study's workload on its machine, from sweeps and baselines."""
    kept = [one.measurement for one in (*read_baselines(baselines), *read_noises(baselines))]
    measured = [one for folder in sweep_folders(results) for one in measurements(load_sweep(folder), folder.name)]
    return tuple(
        one
        for one in (*measured, *kept)
        if same_study(one, study) and one.machine.fingerprint == study.machine.fingerprint
    )
