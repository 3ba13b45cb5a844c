"""Baselines and A/A launches: files in ``results/baselines/`` that a person can review, and what they are good for."""

import re
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.analysis.read_results import load_sweep
from harness.analysis.stats import NEEDED
from harness.base.errors import UserError, unknown
from harness.base.files import write_atomic
from harness.base.provenance import Machine
from harness.regression.measurements import measurements
from harness.schema.measurement import BASELINE_SCHEMA, Baseline, Measurement
from harness.schema.presets import setting_words
from harness.schema.record import decode, encode
from harness.schema.sweep import sweep_folders
from harness.schema.workload import Workload

CHECKS = "checks"  # results/checks/<time>: what checks have launched, which no page of a sweep shows
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def save_baseline(measurement: Measurement, name: str, folder: Path, *, note: str = "", replace_it: bool) -> Path:
    """Write ``FOLDER/NAME.json`` and return its path.

    Raises:
        UserError: the name is not a file name, is taken (unless `replace_it`), or a layout has too few launches.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"NAME '{name}' is not a name: use letters, digits, dots, dashes and underscores")
    path = folder / f"{name}.json"
    if path.exists() and not replace_it:
        raise UserError(f"baseline '{name}' exists already: choose another name, or add --replace")
    short = [layout for layout in measurement.layouts if len(measurement.of(layout)) < NEEDED]
    if short:
        have = len(measurement.of(short[0]))
        raise UserError(
            f"a baseline needs {NEEDED} valid launches of each layout, and {short[0]} of {measurement.label} has "
            f"{have} of commit {measurement.state}: run the same sweep with REPEATS={NEEDED} or more"
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


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UserError: the file is missing, damaged or of another schema version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"baseline '{path}' cannot be read: {error.strerror}") from error
    baseline = decode(content, Baseline, path)
    if baseline.schema != BASELINE_SCHEMA:
        raise UserError(f"'{path}' has schema {baseline.schema}, this harness reads {BASELINE_SCHEMA}: save it again")
    return baseline


def read_baselines(folder: Path) -> tuple[Baseline, ...]:
    """Return every baseline in `folder`, the one that was saved last first.

    Raises:
        UserError: one of them is damaged.
    """
    found = [read_baseline(path) for path in sorted(folder.glob("*.json"))]
    return tuple(sorted(found, key=lambda baseline: baseline.saved, reverse=True))


def find_baseline(name: str, folder: Path) -> Baseline:
    """Return the baseline called `name`.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = folder / f"{name}.json"
    if _NAME.fullmatch(name) and path.exists():
        return read_baseline(path)
    known = [found.stem for found in folder.glob("*.json")]
    if not known:
        raise UserError(
            f"no baseline '{name}' in '{folder}', nor any other: save one with `harness baseline save {name}`"
        )
    raise unknown("baseline", name, known)


def kept_baselines(folder: Path) -> tuple[Measurement, ...]:
    """Return the baselines in `folder`, at least one, the one that was saved last first.

    Raises:
        UserError: there is none.
    """
    kept = tuple(baseline.measurement for baseline in read_baselines(folder))
    if not kept:
        raise UserError(f"no baseline in '{folder}': save one with `harness baseline save NAME`")
    return kept


def default_reference(current: Measurement, folder: Path) -> Measurement:
    """Return the baseline of the same workload and machine that was saved last.

    Raises:
        UserError: there is none; it says what is there instead.
    """
    kept = kept_baselines(folder)
    same = [measurement for measurement in kept if _same_study(measurement, current)]
    for measurement in same:
        if measurement.machine.fingerprint == current.machine.fingerprint:
            return measurement
    check_comparable((same or kept)[0], current)
    raise AssertionError("a measurement that is comparable would have been returned")


def measurements_of(study: Measurement, *, results: Path, baselines: Path) -> tuple[Measurement, ...]:
    """Return every measurement of the study's workload on its machine, from sweeps, checks and baselines."""
    # Earlier versions kept launches of one commit in a folder beside the baselines.
    kept = [one.measurement for folder in (baselines, baselines / "noise") for one in read_baselines(folder)]
    measured = [
        one
        for folder in (*sweep_folders(results), *sweep_folders(results / CHECKS))
        for one in measurements(load_sweep(folder, every_code=True), folder.name)
    ]
    return tuple(one for one in (*measured, *kept) if _comparable(one, study))


def _comparable(one: Measurement, other: Measurement) -> bool:
    return _same_study(one, other) and one.machine.fingerprint == other.machine.fingerprint


def _same_study(one: Measurement, other: Measurement) -> bool:
    """Return whether both trained the same workload on the same data under the same scaling."""
    return (one.workload, one.scaling, one.data_id) == (other.workload, other.scaling, other.data_id)


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


def study_differences(one: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return every setting of the study in which the two differ, as ``field: value against value``."""
    found = workload_differences(one.workload, other.workload)
    for title, a, b in (("scaling", one.scaling, other.scaling), ("data", one.data_id, other.data_id)):
        if a != b:
            found += (f"{title}: {a} against {b}",)
    return found


def workload_differences(one: Workload, other: Workload) -> tuple[str, ...]:
    """Return the fields in which two workloads differ."""
    names = [field.name for field in fields(Workload) if field.compare]
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in names]
    return tuple(
        f"{name.replace('_', ' ')}: {setting_words(a)} against {setting_words(b)}" for name, a, b in pairs if a != b
    )
