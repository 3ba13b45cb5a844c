"""What differs between two measurements, so that a reader knows what a ratio is a ratio of."""

from harness.guard.match import describe, describe_differences
from harness.guard.words import software_changes
from harness.report import numbers
from harness.spec.measurement import Measurement


def differences(first: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return one line for each thing that differs, and the accuracies, for a faster training may be a worse one."""
    found = list(describe_differences(first, other))
    if first.software.name != other.software.name:
        found.append(f"commit: {first.software.name} against {other.software.name}")
    found += [f"{name}: {one} against {two}" for name, one, two in software_changes(first, other)]
    if first.machine.fingerprint != other.machine.fingerprint:
        found.append(f"machine: {describe(first.machine)} against {describe(other.machine)}")
    if not found:
        found.append("same workload, commit, versions and machine: what differs is noise")
    found.append(f"test accuracy: {accuracy(first)} against {accuracy(other)}")
    return tuple(found)


def accuracy(measurement: Measurement) -> str:
    """Return the median test accuracy at the end over the launches with the most ranks."""
    known = [one.test_accuracy for one in measurement.of(measurement.layouts[-1]) if one.test_accuracy is not None]
    return numbers.percent(sorted(known)[len(known) // 2], 2) if known else "not measured"
