"""Measurements from records: the launches of one state of the code on one machine, joined, split and named."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from harness.analysis.frames import launch_frame
from harness.analysis.read_results import Loaded, load_sweep
from harness.base.errors import UserError
from harness.schema.measurement import MeasuredLaunch, Measurement, Software
from harness.schema.record import RUN_FILE, RunRecord, Versions


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
    single = (folder / RUN_FILE).exists()
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
