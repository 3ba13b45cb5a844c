"""Baselines: measurements kept as files in ``results/baselines/`` to be reviewed, and what compares with them."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.analysis.confidence_intervals import FEWEST_LAUNCHES
from harness.analysis.read_results import load_sweep
from harness.base.errors import UserError, unknown
from harness.base.files import read_bytes, write_atomic
from harness.base.provenance import Machine
from harness.regression.measurement import Measurement, measurements
from harness.schema.record import decode, encode
from harness.schema.setting_words import setting_differences
from harness.schema.sweep_folder import sweep_folders

BASELINE_SCHEMA = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A measurement that was kept under a name: ``results/baselines/<name>.json``."""

    schema: int
    name: str
    saved: datetime
    note: str
    measurement: Measurement


CHECKS = "checks"  # results/checks/<time>: what checks have launched, which no page of a sweep shows
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def save_baseline(measurement: Measurement, name: str, folder: Path, *, note: str = "", replace_it: bool) -> Path:
    """Write ``FOLDER/NAME.json`` and return its path.

    Raises:
        UserError: the name is not a file name, is taken (unless `replace_it`) or is that of a file that is no baseline,
            or a layout has too few launches.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"NAME '{name}' is not a name: use letters, digits, dots, dashes and underscores")
    path = folder / f"{name}.json"
    if path.exists() and not replace_it:
        raise UserError(f"baseline '{name}' exists already: choose another name, or add --replace")
    if path.exists() and not _is_baseline(path):
        raise UserError(f"'{path}' is there and is no baseline: choose another name, or remove it first")
    short = [layout for layout in measurement.layouts if len(measurement.of(layout)) < FEWEST_LAUNCHES]
    if short:
        have = len(measurement.of(short[0]))
        raise UserError(
            f"a baseline needs {FEWEST_LAUNCHES} valid launches of each layout, and {short[0]} of "
            f"{measurement.label} has {have} of commit {measurement.state}: run the same sweep with "
            f"REPEATS={FEWEST_LAUNCHES} or more"
        )
    baseline = Baseline(
        schema=BASELINE_SCHEMA,
        name=name,
        saved=datetime.now(UTC).replace(microsecond=0),
        note=note,
        measurement=replace(measurement, label=name),
    )
    write_atomic(path, encode(baseline))
    return path


def _is_baseline(path: Path) -> bool:
    try:
        decode(read_bytes(path, "baseline"), Baseline, path)
    except UserError:
        return False
    return True


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UserError: the file is missing, damaged or of another schema version.
    """
    baseline = decode(read_bytes(path, "baseline"), Baseline, path)
    if baseline.schema != BASELINE_SCHEMA:
        raise UserError(f"'{path}' has schema {baseline.schema}, this harness reads {BASELINE_SCHEMA}: save it again")
    return baseline


def read_baselines(folder: Path) -> tuple[Baseline, ...]:
    """Return every baseline in `folder`, the one that was saved last first.

    Raises:
        UserError: one of them is damaged.
    """
    baselines = [read_baseline(path) for path in sorted(folder.glob("*.json"))]
    return tuple(sorted(baselines, key=lambda baseline: baseline.saved, reverse=True))


def find_baseline(name: str, folder: Path) -> Baseline:
    """Return the baseline called `name`.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = folder / f"{name}.json"
    if _NAME.fullmatch(name) and path.exists():
        return read_baseline(path)
    names = [path.stem for path in folder.glob("*.json")]
    if not names:
        raise UserError(
            f"no baseline '{name}' in '{folder}', nor any other: save one with `harness baseline save {name}`"
        )
    raise unknown("baseline", name, names)


def saved_measurements(folder: Path) -> tuple[Measurement, ...]:
    """Return the measurements of the baselines in `folder`, at least one, the one that was saved last first.

    Raises:
        UserError: there is none.
    """
    saved = tuple(baseline.measurement for baseline in read_baselines(folder))
    if not saved:
        raise UserError(f"no baseline in '{folder}': save one with `harness baseline save NAME`")
    return saved


def default_reference(current: Measurement, folder: Path) -> Measurement:
    """Return the baseline of the same workload and machine that was saved last.

    Raises:
        UserError: there is none; it says what is there instead.
    """
    saved = saved_measurements(folder)
    of_study = [measurement for measurement in saved if measurement.is_same_study(current)]
    of_machine = [measurement for measurement in of_study if measurement.is_same_machine(current)]
    reference = (of_machine or of_study or saved)[0]
    check_comparable(reference, current)
    return reference


def measurements_of(study: Measurement, *, results: Path, baselines: Path) -> tuple[Measurement, ...]:
    """Return every measurement of the study's workload on its machine, from sweeps, checks and baselines."""
    measured: list[Measurement] = []
    for folder in (*sweep_folders(results), *sweep_folders(results / CHECKS)):
        measured += measurements(load_sweep(folder, every_code=True), folder.name)
    measured += [baseline.measurement for baseline in read_baselines(baselines)]
    of_study = [measurement for measurement in measured if measurement.is_same_study(study)]
    return tuple(measurement for measurement in of_study if measurement.is_same_machine(study))


def check_comparable(reference: Measurement, current: Measurement) -> None:
    """Refuse two measurements whose times say nothing about the code.

    Raises:
        UserError: they differ in workload, scaling, data or machine; it names both values.
    """
    differences = study_differences(reference, current)
    if differences:
        raise UserError(
            f"cannot compare: '{reference.label}' and '{current.label}' are of different studies "
            f"({'; '.join(differences)}): name another baseline, or compare them with `harness compare`"
        )
    check_machine(reference, current.machine)


def check_machine(reference: Measurement, machine: Machine) -> None:
    """Refuse a machine that is not the reference's.

    Raises:
        UserError: its fingerprint differs; it describes both.
    """
    if reference.machine.fingerprint != machine.fingerprint:
        raise UserError(
            f"cannot compare: '{reference.label}' was measured on another machine ({machine_line(reference.machine)}) "
            f"than this one ({machine_line(machine)}): save a baseline of this machine with `harness baseline save`"
        )


def machine_line(machine: Machine) -> str:
    """Return a machine in one line, with what identifies it."""
    gpus = f", {len(machine.gpus)} GPUs" if machine.gpus else ""
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB"
    return f"{machine.hostname}: {machine.cpu}, {machine.cores} cores, {memory}{gpus}, {machine.fingerprint[:8]}"


def study_differences(first: Measurement, second: Measurement) -> tuple[str, ...]:
    """Return every setting of the study in which the two differ, as ``field: value against value``."""
    differences = list(setting_differences(first.workload, second.workload))
    for name, before, after in (("scaling", first.scaling, second.scaling), ("data", first.data_id, second.data_id)):
        if before != after:
            differences.append((name, before, after))
    return tuple(f"{name}: {before} against {after}" for name, before, after in differences)
