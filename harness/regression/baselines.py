"""Measurements from records, and those that were kept: baselines, files in ``results/baselines/`` to be reviewed.

A measurement is the launches of one state of the code on one machine; they are joined, split and named here.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness.analysis.frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.analysis.stats import NEEDED
from harness.base.errors import UserError, unknown
from harness.base.files import read_bytes, write_atomic
from harness.base.provenance import Machine
from harness.schema.record import RunRecord, Versions, decode, encode
from harness.schema.setting_words import value_words
from harness.schema.sweep import Layout
from harness.schema.sweep_folder import LaunchFolder, sweep_folders
from harness.schema.workload import Workload, is_script

BASELINE_SCHEMA = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Software(Versions):
    """The code that ran. `code` is `Point.code`: it, and no commit, tells whether two launches ran the same."""

    code: str

    @property
    def state(self) -> str:
        """The same for launches of the same code and versions, whatever their commits."""
        return self.code or msgspec.json.encode(self).decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLaunch:
    """One valid launch in numbers; times in seconds of one epoch, medians over the launch's epochs.

    `seconds` is the maximum over ranks. `skew_seconds` (waiting for the slowest rank) and `wire_seconds`
    (the allreduce itself) are means over ranks. `test_accuracy` is of the last epoch, None where it was not
    evaluated. `rows` is what one epoch visits over all ranks.
    """

    layout: Layout
    repeat: int
    started: datetime
    ended: datetime
    rows: int
    seconds: float
    skew_seconds: float
    wire_seconds: float
    test_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The valid launches of one workload, of one state of the code, on one machine, in order of their start.

    `data_id` and `scaling` are those of `Point`. `label` is how a reader names it. `excluded` counts the
    launches of this state that were not valid, `met` the valid ones that trained in turns beside other work.
    """

    label: str
    workload: Workload
    scaling: str
    data_id: str
    data_kind: str
    machine: Machine
    software: Software
    reductions: tuple[str, ...]
    launches: tuple[MeasuredLaunch, ...]
    excluded: int = 0
    met: int = 0

    @property
    def state(self) -> str:
        """The state of the code as people write it: the harness's commit in twelve digits.

        After a plus sign come digits of `Software.code` where the commit does not name all that ran: files differed
        from it, or a script or MODEL of the user's own ran.
        """
        code, commit = self.software.code[:6], self.software.commit[:12] or "no commit"
        own = is_script(self.workload) or self.workload.own_modules
        return f"{commit}+{code}" if self.software.dirty or (own and code) else commit

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts that were launched, fewest ranks first."""
        found = {launch.layout for launch in self.launches}
        return tuple(sorted(found, key=lambda layout: (layout.ranks, layout.nodes, layout.threads, str(layout))))

    def of(self, layout: Layout) -> tuple[MeasuredLaunch, ...]:
        """Return the launches of `layout` in order of their start."""
        return tuple(launch for launch in self.launches if launch.layout == layout)

    @property
    def newest(self) -> datetime:
        """When the last launch started."""
        return max(launch.started for launch in self.launches)


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A measurement that was kept under a name: ``results/baselines/<name>.json``."""

    schema: int
    name: str
    saved: datetime
    note: str
    measurement: Measurement


def software(run: RunRecord) -> Software:
    """Return the code and versions of a launch."""
    versions = {field.name: getattr(run.provenance, field.name) for field in fields(Versions)}
    return Software(code=run.point.code, **versions)


def measurements(loaded: Loaded, label: str) -> tuple[Measurement, ...]:
    """Return one measurement for every state of code and machine in `loaded`, the newest first.

    A state without a valid launch is left out.
    """
    states: dict[tuple[str, str], list[RunRecord]] = {}
    for run in sorted(loaded.runs, key=lambda run: run.started):
        states.setdefault((run.provenance.machine.fingerprint, software(run).state), []).append(run)
    found = [_measurement(loaded, runs, label) for runs in states.values() if any(not run.invalid for run in runs)]
    return tuple(sorted(found, key=lambda one: one.newest, reverse=True))


def join(one: Measurement, other: Measurement) -> Measurement:
    """Return `one` with the launches of `other`, in order of their start; their blocks stay apart."""
    offset = 1 + max((launch.repeat for launch in one.launches), default=-1)
    added = [replace(launch, repeat=launch.repeat + offset) for launch in other.launches]
    return replace(one, launches=tuple(sorted((*one.launches, *added), key=lambda launch: launch.started)))


def without(one: Measurement, other: Measurement) -> Measurement:
    """Return `one` without the launches that `other` holds too."""
    taken = {(launch.layout, launch.started) for launch in other.launches}
    left = tuple(launch for launch in one.launches if (launch.layout, launch.started) not in taken)
    return replace(one, launches=left)


def group_by_code(measured: Iterable[Measurement]) -> list[Measurement]:
    """Return one measurement for each state of the code, each launch once, in order of first appearance."""
    found: list[Measurement] = []
    for measurement in measured:
        same = next((n for n, one in enumerate(found) if one.software.state == measurement.software.state), None)
        if same is None:
            found.append(measurement)
        else:
            found[same] = join(found[same], without(measurement, found[same]))
    return found


_VERSIONS = ("tensorflow", "keras", "mpi_library", "mpi4py", "numpy", "python", "harness")


def state_names(states: Sequence[Measurement]) -> tuple[str, ...]:
    """Return a name for each of `states`: its commit, and where others have the same the versions that differ."""
    found = []
    for one in states:
        same = [other for other in states if other.state == one.state]
        differing = [name for name in _VERSIONS if len({getattr(other.software, name) for other in same}) > 1]
        details = ", ".join(f"{name.replace('_', ' ')} {getattr(one.software, name)}" for name in differing)
        if len(same) > 1 and not differing:
            details = f"code {one.software.code}"
        found.append(f"{one.state} ({details})" if details else one.state)
    return tuple(found)


def measured_in(folder: Path, label: str, commit: str | None) -> Measurement:
    """Return what the sweep, or the single launch, in `folder` measured: of the newest state of its code.

    `commit` chooses another state by its first digits; `label` is how a reader names the measurement.

    Raises:
        UserError: there is no valid launch, or none of that commit.
    """
    single = LaunchFolder(folder).is_recorded
    loaded = load_sweep(folder.resolve().parent if single else folder, every_code=True)
    if single:
        runs = tuple(run for run in loaded.runs if run.point.folder == folder.resolve().name)
        loaded = replace(loaded, runs=runs, failures=())
    found = measurements(loaded, label)
    if not found:
        why = f"{len(loaded.runs)} invalid, {len(loaded.damaged)} damaged, {len(loaded.failures)} failed"
        raise UserError(f"'{folder}' holds no valid launch ({why}): run `harness sweep` first")
    if commit is None:
        return found[0]
    for one in found:
        if commit and any(name.startswith(commit) for name in (one.state, one.software.commit, one.software.code)):
            return one
    have = ", ".join(dict.fromkeys(state_names(found)))
    raise UserError(f"'{label}': no valid launch of commit '{commit}' in '{folder}', there are of {have}")


def _measurement(loaded: Loaded, runs: Sequence[RunRecord], label: str) -> Measurement:
    valid = [run for run in runs if not run.invalid]
    first = valid[0]
    return Measurement(
        label=label,
        workload=loaded.study.sweep.workload if loaded.study else first.point.workload,
        scaling=first.point.scaling,
        data_id=first.point.data_id,
        data_kind=first.data.kind,
        machine=first.provenance.machine,
        software=software(first),
        reductions=tuple(sorted({run.provenance.reduction for run in valid if run.point.layout.ranks > 1})),
        launches=tuple(_launches(loaded, valid)),
        excluded=len(runs) - len(valid),
        met=sum(bool(run.met) for run in valid),
    )


def _launches(loaded: Loaded, runs: Sequence[RunRecord]) -> Iterable[MeasuredLaunch]:
    rows = {str(row["run"]): row for row in launch_frame(runs, loaded.epochs).to_dict("records")}
    for run in runs:
        row = rows[run.point.folder]
        accuracy = float(row["test_accuracy"])
        yield MeasuredLaunch(
            layout=run.point.layout,
            repeat=run.point.repeat,
            started=run.started,
            ended=run.ended,
            rows=int(row["rows"]),
            seconds=float(row["seconds"]),
            skew_seconds=float(row["skew_seconds"]),
            wire_seconds=float(row["wire_seconds"]),
            test_accuracy=accuracy if accuracy == accuracy else None,
        )


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
    baseline = decode(read_bytes(path, "baseline"), Baseline, path)
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
    here = [measurement for measurement in same if measurement.machine.fingerprint == current.machine.fingerprint]
    found = (here or same or kept)[0]
    check_comparable(found, current)
    return found


def measurements_of(study: Measurement, *, results: Path, baselines: Path) -> tuple[Measurement, ...]:
    """Return every measurement of the study's workload on its machine, from sweeps, checks and baselines."""
    kept = [one.measurement for one in read_baselines(baselines)]
    measured = [
        one
        for folder in (*sweep_folders(results), *sweep_folders(results / CHECKS))
        for one in measurements(load_sweep(folder, every_code=True), folder.name)
    ]
    machine = study.machine.fingerprint
    every = (*measured, *kept)
    return tuple(one for one in every if _same_study(one, study) and one.machine.fingerprint == machine)


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
    names = [field.name for field in fields(Workload) if field.compare]
    pairs = [(name.replace("_", " "), getattr(one.workload, name), getattr(other.workload, name)) for name in names]
    pairs += [("scaling", one.scaling, other.scaling), ("data", one.data_id, other.data_id)]
    return tuple(f"{name}: {value_words(a)} against {value_words(b)}" for name, a, b in pairs if a != b)
