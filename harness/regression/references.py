"""What a check holds against what: a folder, a baseline or a window of sittings, and why two cannot be compared."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce
from pathlib import Path

from harness.analysis.read_results import load_sweep
from harness.analysis.stats import sittings
from harness.base.errors import UserError
from harness.base.provenance import Machine
from harness.regression.measurements import group_by_code, join, measurements, state_names
from harness.regression.store import CHECKS, read_baselines, read_noises, same_study
from harness.schema.measurement import Measurement
from harness.schema.presets import told
from harness.schema.record import RUN_FILE
from harness.schema.sweep import sweep_folders
from harness.schema.workload import Workload


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
    for measurement in kept:
        if same_study(measurement, current) and measurement.machine.fingerprint == current.machine.fingerprint:
            return measurement
    alike = [measurement for measurement in kept if same_study(measurement, current)]
    check_comparable((alike or kept)[0], current)
    raise AssertionError("a measurement that is comparable would have been returned")


def check_comparable(reference: Measurement, current: Measurement) -> None:
    """Refuse two measurements whose times say nothing about the code.

    Raises:
        UserError: they differ in workload, scaling, data or machine; it names both values.
    """
    differences = describe_differences(reference, current)
    if differences:
        raise UserError(
            f"cannot compare: '{reference.label}' and '{current.label}' are of different studies "
            f"({'; '.join(differences)}): name another baseline, or look at both with `harness compare`"
        )
    check_machine(reference, current.machine)


def check_machine(reference: Measurement, machine: Machine) -> None:
    """Refuse a machine that is not like the reference's.

    Raises:
        UserError: its fingerprint differs; it describes both.
    """
    if reference.machine.fingerprint != machine.fingerprint:
        raise UserError(
            f"cannot compare: '{reference.label}' was measured on another machine ({describe(reference.machine)}) "
            f"than this one ({describe(machine)}): save a baseline of this machine with `harness baseline save`"
        )


def describe(machine: Machine) -> str:
    """Return a machine in one line."""
    gpus = f", {len(machine.gpus)} GPUs" if machine.gpus else ""
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB"
    return f"{machine.hostname}: {machine.cpu}, {machine.cores} cores, {memory}{gpus}, {machine.fingerprint[:8]}"


def describe_differences(one: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return every setting of the study in which the two differ, as ``field: value against value``."""
    found = workload_differences(one.workload, other.workload)
    for name in ("scaling", "data_id"):
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            found += (f"{'data' if name == 'data_id' else name}: {a} against {b}",)
    return found


def workload_differences(one: Workload, other: Workload) -> tuple[str, ...]:
    """Return the fields in which two workloads differ."""
    names = [field.name for field in fields(Workload) if field.compare]
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in names]
    return tuple(f"{name.replace('_', ' ')}: {told(a)} against {told(b)}" for name, a, b in pairs if a != b)


def measure(folder: Path, label: str, commit: str | None) -> Measurement:
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
        lost = f"{len(loaded.runs)} invalid, {len(loaded.damaged)} damaged, {len(loaded.failures)} failed"
        raise UserError(f"'{folder}' holds no valid launch ({lost}): run `harness sweep` first")
    if commit is None:
        return found[0]
    for one in found:
        if commit and any(name.startswith(commit) for name in (one.state, one.software.commit, one.software.code)):
            return one
    have = ", ".join(dict.fromkeys(state_names(found)))
    raise UserError(f"'{label}': no valid launch of commit '{commit}' in '{folder}', there are of {have}")


def all_of(study: Measurement, *, results: Path, baselines: Path) -> tuple[Measurement, ...]:
    """Return every measurement of the study's workload on its machine, from sweeps, checks and baselines."""
    kept = [one.measurement for one in (*read_baselines(baselines), *read_noises(baselines))]
    measured = [
        one
        for folder in (*sweep_folders(results), *sweep_folders(results / CHECKS))
        for one in measurements(load_sweep(folder, every_code=True), folder.name)
    ]
    return tuple(
        one
        for one in (*measured, *kept)
        if same_study(one, study) and one.machine.fingerprint == study.machine.fingerprint
    )


def last_sittings(found: Sequence[Measurement], size: int) -> tuple[Measurement, Measurement]:
    """Return the `size` sittings before the last one, joined, and the last one, of all measurements of one study.

    What lies between the window's sittings, changes of the code among it, is then what the check takes for noise: one
    sitting stands out from days that differ as these do.

    Raises:
        UserError: there are fewer than 3 sittings: of two nobody knows what days differ by.
    """
    whole = reduce(join, group_by_code(found))
    numbers = sittings([(launch.started, launch.ended) for launch in whole.launches])
    last = max(numbers)
    if last < 2:
        raise UserError(
            f"--window needs 3 sittings of {whole.workload.name}, an hour apart or more, and there "
            f"{'is' if last == 0 else 'are'} {last + 1}: sweep again on other days, or give --against"
        )
    first = max(0, last - size)
    sides = []
    for wanted in (range(first, last), range(last, last + 1)):
        launches = tuple(one for one, number in zip(whole.launches, numbers, strict=True) if number in wanted)
        newest = max(launches, key=lambda launch: launch.started)
        own = next(one for one in found if newest.started in {launch.started for launch in one.launches})
        sides.append(replace(own, launches=launches, excluded=0))
    return replace(sides[0], label=f"the {last - first} sittings before"), sides[1]
