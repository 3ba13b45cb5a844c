"""Which two measurements a check compares, and why two cannot be compared."""

from dataclasses import fields
from pathlib import Path

from harness.base.errors import UserError
from harness.base.provenance import Machine
from harness.regression.store import read_baselines, same_study
from harness.schema.measurement import Measurement
from harness.schema.workload import Workload


def default_reference(current: Measurement, folder: Path) -> Measurement:
    """Return the baseline of the same workload and machine that was saved last.

    Raises:
        UserError: there is none; it says what is there instead.
    """
    kept = [baseline.measurement for baseline in read_baselines(folder)]
    if not kept:
        raise UserError(f"no baseline in '{folder}': save one with `harness baseline save NAME`")
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
    return tuple(f"{name.replace('_', ' ')}: {a} against {b}" for name, a, b in pairs if a != b)
