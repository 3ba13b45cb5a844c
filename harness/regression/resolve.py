"""From what a user names (a baseline, a sweep, a launch, a commit of a sweep) to its measurements."""

from dataclasses import replace
from pathlib import Path

from harness.analysis.load import Loaded, load_sweep
from harness.base.errors import UserError, unknown
from harness.regression.states import measurements
from harness.regression.store import find_baseline, read_baselines, read_noises, same_study
from harness.schema.measurement import Measurement
from harness.schema.record import RUN_FILE
from harness.schema.sweep import sweep_folders


def resolve(name: str, *, results: Path, baselines: Path | None) -> Measurement:
    """Return the measurement called `name`.

    `name` is a baseline's name, or a sweep (its folder, its name in `results` or the name's beginning), or a
    single launch's folder; ``SWEEP@COMMIT`` chooses a state of the code by its first digits, else the newest is taken.
    Without `baselines` it is no baseline.

    Raises:
        UserError: there is no such thing, it is not unique, or it holds no valid launch.
    """
    if baselines is not None and (baselines / f"{name}.json").exists():
        return find_baseline(name, baselines).measurement
    place, at, commit = name.partition("@")
    folder = _folder(place, results, baselines)
    found = _measured(folder, name)
    if not at:
        return found[0]
    names = [(one.state, one.software.commit, one.software.code) for one in found] if commit else []
    chosen = [one for one, own in zip(found, names, strict=False) if any(name.startswith(commit) for name in own)]
    if not chosen:
        have = ", ".join(dict.fromkeys(one.state for one in found))
        raise UserError(f"'{name}': no valid launch of commit '{commit}' in '{folder}', there are of {have}")
    return chosen[0]


def _folder(place: str, results: Path, baselines: Path | None) -> Path:
    for folder in (Path(place), results / place):
        if place and folder.is_dir():
            return folder
    known = [folder.name for folder in sweep_folders(results)]
    begins = [name for name in known if place and name.startswith(place)]
    if len(begins) == 1:
        return results / begins[0]
    if begins:
        raise UserError(f"'{place}' is the beginning of {len(begins)} sweeps: {', '.join(sorted(begins))}; write more")
    kept = [path.stem for path in baselines.glob("*.json")] if baselines is not None else []
    if not known and not kept:
        raise UserError(f"'{place}' is no folder, and '{results}' holds no sweep: run `harness sweep` first")
    raise unknown("sweep" if baselines is None else "baseline or sweep", place, [*known, *kept])


def _measured(folder: Path, label: str) -> tuple[Measurement, ...]:
    loaded = _single(folder) if (folder / RUN_FILE).exists() else load_sweep(folder, every_code=True)
    found = measurements(loaded, label)
    if not found:
        lost = f"{len(loaded.runs)} invalid, {len(loaded.damaged)} damaged, {len(loaded.failures)} failed"
        raise UserError(f"'{folder}' holds no valid launch ({lost}): run `harness sweep` first")
    return found


def _single(folder: Path) -> Loaded:
    """Return the sweep of the launch in `folder`, with that launch alone."""
    loaded = load_sweep(folder.resolve().parent, every_code=True)
    runs = tuple(run for run in loaded.runs if run.point.folder == folder.resolve().name)
    return replace(loaded, runs=runs, failures=())


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
    measured = [
        one
        for folder in sweep_folders(results)
        for one in measurements(load_sweep(folder, every_code=True), folder.name)
    ]
    return tuple(
        one
        for one in (*measured, *kept)
        if same_study(one, study) and one.machine.fingerprint == study.machine.fingerprint
    )
