"""The one way to name a sweep, a launch or a measurement.

A name is a folder, what lies in the results under that name, or the beginning of the name of one sweep there;
``FOLDER/NAME`` looks into FOLDER instead. Where measurements are asked for, a baseline's name comes first, a launch's
folder will do too, and ``SWEEP@COMMIT`` chooses a state of the code by its first digits. Without a name the sweep that
was launched last is meant, not one that was planned since, and a line says which it is. Where launches are to answer a
question, `harness.analysis.read_results` has the rule.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError, unknown
from harness.base.setting_names import setting
from harness.cli.terminal import echo
from harness.schema.sweep_folder import RUN_FILE, STUDY_FILE, LaunchFolder, SweepFolder, sweep_folders

if TYPE_CHECKING:
    from harness.regression.measurement import Measurement


def find_sweeps(name: str | None, results: Path) -> tuple[Path, ...]:
    """Return the folder of the sweep called `name`, else of all whose names begin with it, the newest first.

    Raises:
        UserError: there is none; the nearest name is given.
    """
    if name is None:
        return _all_sweeps(results)
    exact = _exact(name, results, STUDY_FILE)
    return (exact,) if exact else _beginning(name, results, baselines=())


def find_sweep(name: str | None, results: Path) -> Path:
    """Return the folder of the one sweep that `name` means.

    Raises:
        UserError: there is none, or the name is the beginning of several.
    """
    return newest_sweep(results) if name is None else _only(name, find_sweeps(name, results))


def newest_sweep(results: Path) -> Path:
    """Return the sweep that was launched last, else the one that was planned last; say which it is.

    Raises:
        UserError: there is none.
    """
    sweeps = _all_sweeps(results)
    newest = max(sweeps, key=_launched_at)  # the first of equals: planned last
    if len(sweeps) > 1:
        echo(f"harness: no SWEEP is named: of {len(sweeps)}, {newest.name} was launched last", err=True)
    return newest


def find_recorded(name: str | None, results: Path) -> Path:
    """Return the folder of the launch called `name` (a folder, its record, or its name alone), else of the sweep.

    Raises:
        UserError: there is neither.
    """
    if name is None:
        return newest_sweep(results)
    path = Path(name)
    for folder in (path, path.parent if path.name == RUN_FILE else path, results / name):
        if LaunchFolder(folder).is_recorded:
            return folder
    if path.is_file():
        raise UserError(f"'{name}' is not a record: name a launch's folder, its {RUN_FILE}, or a sweep")
    for sweep in sweep_folders(results):
        if LaunchFolder(sweep / name).is_recorded:
            return sweep / name
    return find_sweep(name, results)


def find_measurement(
    name: str | None, *, results: Path, baselines: Path | None, contended_too: bool = False
) -> "Measurement":
    """Return the measurement called `name`, that of the newest sweep without one. Without `baselines`, of no baseline.

    `contended_too` is as in `harness.regression.measurement.measurements`.

    Raises:
        UserError: there is no such thing, it is not unique, or it holds no valid launch.
    """
    from harness.regression.baselines import find_baseline
    from harness.regression.measurement import measured_in

    if name is None:
        newest = newest_sweep(results)
        return measured_in(newest, str(newest), None, contended_too=contended_too)
    if baselines is not None and (baselines / f"{name}.json").is_file():
        return find_baseline(name, baselines).measurement
    sweep_name, at, commit = name.partition("@")
    folder = _exact(sweep_name, results, RUN_FILE) or _exact(sweep_name, results, STUDY_FILE)
    if folder is None:
        baseline_names = () if baselines is None else tuple(file.stem for file in baselines.glob("*.json"))
        folder = _only(sweep_name, _beginning(sweep_name, results, baseline_names))
    return measured_in(folder, name, commit if at else None, contended_too=contended_too)


def _all_sweeps(results: Path) -> tuple[Path, ...]:
    sweeps = sweep_folders(results)
    if not sweeps:
        raise UserError(
            f"no sweep in '{results}': run `harness sweep` first, or name the folder with {setting('results')}"
        )
    return sweeps


def _exact(name: str, results: Path, file: str) -> Path | None:
    """Return the folder called `name`, here or in the results, that has `file`."""
    for folder in (Path(name), results / name):
        if name and (folder / file).exists():
            return folder.resolve() if folder.name in ("", "..") else folder
    return None


def _beginning(name: str, results: Path, baselines: Iterable[str]) -> tuple[Path, ...]:
    """Return the sweeps whose names begin with `name`; an error names those of the `baselines` too."""
    parent = Path(name).parent
    start = Path(name).name
    sweeps = {folder.name: folder for folder in sweep_folders(results if parent == Path() else parent)}
    matching = tuple(folder for sweep_name, folder in sweeps.items() if start and sweep_name.startswith(start))
    if not matching:
        names = [*sweeps, *baselines]
        raise unknown("sweep", name, names) if names else UserError(f"sweep '{name}': no sweep in '{results}'")
    return matching


def _only(name: str, folders: tuple[Path, ...]) -> Path:
    if len(folders) > 1:
        names = ", ".join(sorted(folder.name for folder in folders))
        raise UserError(f"'{name}' is the beginning of {len(folders)} sweeps: {names}; write more of the name")
    return folders[0]


def _launched_at(folder: Path) -> float:
    """Return when a launch of the sweep in `folder` last began or ended, in seconds since 1970; 0 for none."""
    times = [0.0]
    files = SweepFolder(folder)
    records = (LaunchFolder(launch).record for launch in files.records())
    for path in (*records, *files.failures.glob("*.json"), files.running):
        with contextlib.suppress(FileNotFoundError):  # there is none, or a sweep that runs now has just removed it
            times.append(path.stat().st_mtime)
    return max(times)
