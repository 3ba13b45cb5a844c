"""Baselines and A/A launches as files that a person can review: ``results/baselines/``."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.analysis.stats import NEEDED
from harness.base.errors import UserError, unknown
from harness.base.files import write_atomic
from harness.schema.measurement import BASELINE_SCHEMA, Baseline, Measurement
from harness.schema.record import decode, encode

NOISE = "noise"  # results/baselines/noise/<workload>-<machine>.json
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def save_baseline(measurement: Measurement, name: str, folder: Path, *, note: str = "", replace_it: bool) -> Path:
    """Write ``FOLDER/NAME.json`` and return its path.

    Raises:
        UserError: the name is no file name, is taken (unless `replace_it`), or a layout has too few launches.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"NAME '{name}' is no name: use letters, digits, dots, dashes and underscores")
    path = folder / f"{name}.json"
    if path.exists() and not replace_it:
        raise UserError(f"baseline '{name}' is there already: choose another name, or add --replace")
    _check_launches(measurement, "a baseline")
    return _write(path, name, measurement, note)


def save_noise(measurement: Measurement, folder: Path) -> Path:
    """Write the A/A launches of a workload on a machine in place of older ones, and return the file's path.

    Raises:
        UserError: a layout has too few launches, or the folder cannot be written to.
    """
    _check_launches(measurement, "the noise floor")
    name = f"{measurement.workload.name}-{measurement.machine.fingerprint[:8]}"
    return _write(folder / NOISE / f"{name}.json", name, measurement, "launches of one commit: the noise floor")


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


def read_noises(folder: Path) -> tuple[Baseline, ...]:
    """Return the A/A launches of every workload and machine in `folder`.

    Raises:
        UserError: a file is damaged.
    """
    return tuple(read_baseline(path) for path in sorted((folder / NOISE).glob("*.json")))


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
        raise UserError(f"no baseline '{name}': '{folder}' holds none; save one with `harness baseline save {name}`")
    raise unknown("baseline", name, known)


def same_study(one: Measurement, other: Measurement) -> bool:
    """Return whether both trained the same workload on the same data under the same scaling."""
    return _study(one) == _study(other)


def find_noise(measurement: Measurement, folder: Path) -> Baseline | None:
    """Return the A/A launches of the measurement's workload on its machine, None if there are none."""
    for found in read_noises(folder):
        kept = found.measurement
        if same_study(kept, measurement) and kept.machine.fingerprint == measurement.machine.fingerprint:
            return found
    return None


def _study(measurement: Measurement) -> tuple[object, ...]:
    return measurement.workload, measurement.scaling, measurement.data_id


def _check_launches(measurement: Measurement, what: str) -> None:
    short = [layout for layout in measurement.layouts if len(measurement.of(layout)) < NEEDED]
    if short:
        have = len(measurement.of(short[0]))
        raise UserError(
            f"{what} needs {NEEDED} valid launches of each layout, and {short[0]} of {measurement.label} has {have} "
            f"of commit {measurement.software.name}: run the same sweep with REPEATS={NEEDED} or more"
        )


def _write(path: Path, name: str, measurement: Measurement, note: str) -> Path:
    baseline = Baseline(
        schema=BASELINE_SCHEMA,
        name=name,
        saved=datetime.now(UTC).replace(microsecond=0),
        note=note,
        measurement=replace(measurement, label=name),
    )
    write_atomic(path, encode(baseline))
    return path
