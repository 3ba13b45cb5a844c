"""Baselines and A/A launches as files that a person can review: ``results/baselines/``."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.analysis.stats import NEEDED
from harness.base.errors import UserError, unknown
from harness.base.files import write_atomic
from harness.regression.measurements import join, without
from harness.schema.measurement import BASELINE_SCHEMA, Baseline, Measurement
from harness.schema.record import decode, encode
from harness.schema.sweep import digest

CHECKS = "checks"  # results/checks/<sweep>: what checks have launched, which no page of the sweep shows
NOISE = "noise"  # results/baselines/noise/<workload>-<machine>-<commit>-<versions>.json
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
    short = [layout for layout in measurement.layouts if len(measurement.of(layout)) < NEEDED]
    if short:
        have = len(measurement.of(short[0]))
        raise UserError(
            f"a baseline needs {NEEDED} valid launches of each layout, and {short[0]} of {measurement.label} has "
            f"{have} of commit {measurement.state}: run the same sweep with REPEATS={NEEDED} or more"
        )
    return _write(path, name, measurement, note)


def save_noise(fresh: Measurement, folder: Path) -> Path:
    """Add A/A launches of a commit to those kept of the same workload, machine and commit; return the file's path.

    Raises:
        UserError: the file of earlier ones is damaged, or the folder cannot be written to.
    """
    state = digest(fresh.software)[:8]
    name = f"{fresh.workload.name}-{fresh.machine.fingerprint[:8]}-{fresh.software.commit[:8]}-{state}"
    path = folder / NOISE / f"{name}.json"
    earlier = read_baseline(path).measurement if path.exists() else None
    whole = join(earlier, without(fresh, earlier)) if earlier else fresh
    return _write(path, name, whole, "launches of one commit: the noise floor")


def unkept(measurement: Measurement, folder: Path) -> Measurement:
    """Return `measurement` without the launches that a baseline or an earlier `save_noise` holds.

    Raises:
        UserError: one of the files is damaged.
    """
    for kept in (*read_baselines(folder), *read_noises(folder)):
        measurement = without(measurement, kept.measurement)
    return measurement


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


def find_noises(measurement: Measurement, folder: Path) -> tuple[Baseline, ...]:
    """Return the A/A launches of the measurement's workload on its machine, one for each commit.

    Raises:
        UserError: a file is damaged.
    """
    return tuple(
        kept
        for kept in read_noises(folder)
        if same_study(kept.measurement, measurement)
        and kept.measurement.machine.fingerprint == measurement.machine.fingerprint
    )


def _study(measurement: Measurement) -> tuple[object, ...]:
    return measurement.workload, measurement.scaling, measurement.data_id


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
