"""Baselines: sessions of a study, kept as files in ``results/baselines/`` to be reviewed, and what is compared."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.analysis.read_results import load_sweep
from harness.base.errors import UserError, unknown
from harness.base.files import hold_folder_lock, make_folder, read_bytes, write_atomic
from harness.base.provenance import Machine
from harness.base.setting_names import setting
from harness.regression.measurement import (
    Measurement,
    group_by_code,
    join_measurements,
    measurements,
    session_numbers,
    version_changes,
    without,
)
from harness.schema.point import SCALINGS
from harness.schema.record import decode, encode
from harness.schema.setting_words import setting_differences
from harness.schema.sweep import Study
from harness.schema.sweep_folder import SweepFolder, make_results, sweep_folders

BASELINE_SCHEMA = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """Measurements of one study that were kept under a name: ``results/baselines/<name>.json``.

    `measurements` are of one session or more, in order of saving; `saved` and `note` are those of the last.
    """

    schema: int
    name: str
    saved: datetime
    note: str
    measurements: tuple[Measurement, ...]

    def __post_init__(self) -> None:
        """Refuse sessions that cannot be judged together, as a file that was edited or merged may have.

        Raises:
            UserError: there is none, one has no launch, they are of several studies, or a launch is there twice.
        """
        if not all(measurement.launches for measurement in self.measurements) or not self.measurements:
            raise UserError(f"it has no launches: save it again with {setting('replace', True)}")
        if not all(self.measurements[0].is_same_study(measurement) for measurement in self.measurements):
            raise UserError(f"its sessions are of several studies: save it again with {setting('replace', True)}")
        launches = [(launch.layout, launch.started) for each in self.measurements for launch in each.launches]
        if len(set(launches)) < len(launches):
            raise UserError(f"a launch is in it twice: take one out, or save it again with {setting('replace', True)}")
        if self.saved.tzinfo is None:
            raise UserError(f"saved {self.saved} has no time zone: write Z behind it for UTC")
        if self.measurements[0].scaling not in SCALINGS:
            raise unknown("scaling", self.measurements[0].scaling, SCALINGS)

    @property
    def measurement(self) -> Measurement:
        """All launches in one, with the machine and software of those that were saved last."""
        *earlier, last = self.measurements
        whole = last
        for measurement in earlier:
            whole = join_measurements(whole, measurement)
        excluded = sum(measurement.excluded for measurement in self.measurements)
        met = sum(measurement.met for measurement in self.measurements)
        return replace(whole, label=self.name, excluded=excluded, met=met)

    @property
    def sessions(self) -> int:
        """In how many sessions its launches were."""
        return 1 + max(session_numbers(self.measurement).values())


CHECKS = "checks"  # results/checks/<time>: what checks have launched, which no page of a sweep shows
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def save_baseline(
    measurement: Measurement,
    name: str,
    folder: Path,
    *,
    note: str = "",
    replace_it: bool = False,
    other_machine: bool = False,
) -> Baseline:
    """Write ``FOLDER/NAME.json``, or add `measurement` to the baseline that is there, and return it.

    `replace_it` starts it anew. `other_machine` says that a machine of another kind has the same role.

    Raises:
        UserError: the name is not a file name or that of a file that is no baseline, a layout has too few launches, or
            the measurement is of another study, machine or other versions than the baseline, or in it already.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"NAME '{name}' is not a name: use letters, digits, dots, dashes and underscores")
    path = folder / f"{name}.json"
    if not path.exists():
        _check_launches(measurement)  # before there is a folder
    make_folder(folder, "folder of baselines", "name another folder with --baselines")
    # Two that save at once would each add to what was there before, and one session would be lost.
    with hold_folder_lock(folder):
        earlier: tuple[Measurement, ...] = ()
        if path.exists():
            if not _is_baseline(path):
                raise UserError(f"'{path}' is there and is no baseline: choose another name, or remove it first")
            if not replace_it:
                present = read_baseline(path)
                earlier = present.measurements
                measurement = _added(measurement, present, other_machine=other_machine)
        _check_launches(measurement)
        baseline = Baseline(
            schema=BASELINE_SCHEMA,
            name=name,
            saved=datetime.now(UTC).replace(microsecond=0),
            note=note,
            measurements=(*earlier, measurement),
        )
        write_atomic(path, encode(baseline))
    return baseline


def _added(measurement: Measurement, present: Baseline, *, other_machine: bool) -> Measurement:
    """Return what of `measurement` is to be added to the baseline that is `present`.

    Raises:
        UserError: nothing is, or the two are not of one study, machine and stack.
    """
    reference = present.measurement
    check_comparable(reference, measurement, other_machine=other_machine)
    changes = version_changes(reference, measurement)
    if changes:
        listed = "; ".join(f"{name}: {before} against {now}" for name, before, now in changes)
        raise UserError(
            f"baseline '{present.name}' is of other versions ({listed}): start it anew with "
            f"{setting('replace', True)}, or choose "
            "another name"
        )
    fresh = without(measurement, reference)
    if not fresh.launches:
        raise UserError(
            f"the launches of '{measurement.label}' are in baseline '{present.name}' already: measure another session "
            f"(`harness sweep` with more {setting('repeats')}, on another day), or start anew with "
            f"{setting('replace', True)}"
        )
    missing = [str(layout) for layout in reference.layouts if not fresh.of(layout)]
    if missing:
        raise UserError(
            f"'{measurement.label}' has no new launch of {', '.join(missing)}, which baseline '{present.name}' has: "
            "measure all of its layouts"
        )
    return fresh


def _check_launches(measurement: Measurement) -> None:
    """Refuse a measurement without an interval.

    Raises:
        UserError: a layout has fewer launches than an interval over blocks needs.
    """
    for layout in measurement.layouts:
        count = len(measurement.of(layout))
        if count < FEWEST_BLOCKS:
            raise UserError(
                f"a baseline needs {FEWEST_BLOCKS} valid launches of each layout, and {layout} of {measurement.label} "
                f"has {count} of commit {measurement.state}: run the same sweep with "
                f"{setting('repeats', FEWEST_BLOCKS)} or more"
            )


def _is_baseline(path: Path) -> bool:
    """Say whether the file at `path` is a baseline, of whatever schema version."""
    content = read_bytes(path, "baseline")
    try:
        msgspec.json.decode(content, type=_AnyBaseline)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


class _AnyBaseline(msgspec.Struct):
    """What baselines of all schema versions have."""

    schema: int
    name: str
    saved: datetime


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UserError: the file is missing, damaged or of another schema version.
    """
    content = read_bytes(path, "baseline")
    if _is_baseline(path):
        schema = msgspec.json.decode(content, type=_AnyBaseline).schema
        if schema != BASELINE_SCHEMA:
            raise UserError(
                f"'{path}' has schema {schema}, this harness reads {BASELINE_SCHEMA}: save it again with "
                f"{setting('replace', True)}"
            )
    return replace(decode(content, Baseline, path), name=path.stem)  # of a copy, the copy's


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


def default_reference(current: Measurement, folder: Path, *, other_machine: bool = False) -> Measurement:
    """Return the baseline of the same workload and machine that was saved last.

    Raises:
        UserError: there is none; it says what is there instead.
    """
    saved = saved_measurements(folder)
    of_study = [measurement for measurement in saved if measurement.is_same_study(current)]
    of_machine = [measurement for measurement in of_study if measurement.is_same_machine(current)]
    reference = (of_machine or of_study or saved)[0]
    check_comparable(reference, current, other_machine=other_machine)
    return reference


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFiles:
    """The folders of sweeps whose study file can be read, with their studies, and a sentence on each other file."""

    readable: tuple[tuple[Path, Study], ...]
    damaged: tuple[str, ...]


def read_studies(folders: Iterable[Path]) -> StudyFiles:
    """Return the studies of the sweeps in `folders`, in their order."""
    readable = []
    damaged = []
    for folder in folders:
        file = SweepFolder(folder).study
        try:
            readable.append((folder, decode(read_bytes(file, "study"), Study, file)))
        except UserError as error:
            damaged.append(str(error))
    return StudyFiles(readable=tuple(readable), damaged=tuple(damaged))


def studies_of_sweeps_and_checks(results: Path) -> StudyFiles:
    """Return the studies of all sweeps in `results`, and of all checks there."""
    folders = list(sweep_folders(results))
    for check in sorted((results / CHECKS).glob("*")):
        folders += sweep_folders(check)
    return read_studies(folders)


def measured_on(machine: Machine, *, results: Path, baselines: Path) -> tuple[Measurement, ...]:
    """Return every measurement on `machine`, from baselines, and from sweeps and checks whose study can be read."""
    measured: list[Measurement] = []
    for folder, _ in studies_of_sweeps_and_checks(results).readable:
        measured += measurements(load_sweep(folder, every_code=True), folder.name)
    for baseline in read_baselines(baselines):
        measured += baseline.measurements
    return tuple(measurement for measurement in measured if measurement.machine.fingerprint == machine.fingerprint)


def join_by_study(measured: Iterable[Measurement], excluded: Measurement) -> tuple[Measurement, ...]:
    """Return the launches of each study and state of the code in one measurement, each once, without the `excluded`."""
    studies: list[list[Measurement]] = []
    for measurement in measured:
        alike = next((study for study in studies if study[0].is_same_study(measurement)), None)
        if alike is None:
            studies.append([measurement])
        else:
            alike.append(measurement)
    joined: list[Measurement] = []
    for study in studies:
        joined += [without(measurement, excluded) for measurement in group_by_code(study)]
    return tuple(measurement for measurement in joined if measurement.launches)


def new_check_folder(results: Path) -> Path:
    """Return a new folder below `results` for the records of a check, named by the time."""
    make_results(results)
    return results / CHECKS / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")


def check_comparable(reference: Measurement, current: Measurement, *, other_machine: bool = False) -> None:
    """Refuse two measurements whose times say nothing about the code.

    Raises:
        UserError: they differ in workload, scaling, data, way of measuring or machine; it names both values.
    """
    differences = study_differences(reference, current)
    if differences:
        raise UserError(
            f"cannot compare: '{reference.label}' and '{current.label}' are of different studies "
            f"({'; '.join(differences)}): name another baseline, or compare them with `harness compare`"
        )
    if reference.in_turns != current.in_turns:
        ways = [
            "interleaved" if measurement.in_turns else "one after the other" for measurement in (reference, current)
        ]
        raise UserError(
            f"cannot compare: launches of '{reference.label}' trained {ways[0]}, of '{current.label}' {ways[1]}: "
            f"measure both in the same way ({setting('mode', 'turns')} or {setting('mode', 'jobs')})"
        )
    if not other_machine:
        check_machine(reference, current.machine)


def check_machine(reference: Measurement, machine: Machine) -> None:
    """Refuse a machine that is not the reference's.

    Raises:
        UserError: its fingerprint differs; it describes both.
    """
    if reference.machine.fingerprint != machine.fingerprint:
        raise UserError(
            f"cannot compare: '{reference.label}' was measured on another machine ({machine_line(reference.machine)}) "
            f"than this one ({machine_line(machine)}): say {setting('other_machine', True)} if both have the same "
            "role, or save a baseline of this machine"
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
