"""A check in a reader's words, and what differs between two measurements."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from harness.analysis import numbers
from harness.analysis.stats import NEEDED, SITTING
from harness.regression.compare import Comparison
from harness.regression.noise import KNOWN
from harness.regression.quantities import COHERENCY, CONTENTION, CURVE, EFFICIENCY
from harness.regression.references import describe, describe_differences
from harness.regression.significance import IMPROVEMENT, INCONCLUSIVE, REGRESSION, CheckRow
from harness.regression.verdict import Check
from harness.schema.measurement import Baseline, Measurement
from harness.schema.presets import names_apart

HEADINGS = ("Quantity", "Ranks", "Reference", "Now", "Loss", "95 % interval", "Noise floor", "Launches", "Verdict")
COMPARE_HEADINGS = ("Quantity", "Ranks", "First", "Other", "Gain", "95 % interval", "Launches", "Meaning")
NOT_MEASURED = "not measured"
OLD_DAYS = 30  # of A/A launches: a machine changes


def cells(row: CheckRow) -> tuple[str, ...]:
    """Return the row's cells, one for each of `HEADINGS`. A loss below 0 is a gain."""
    before, now = (value(row.quantity, one) for one in row.values)
    interval = numbers.NONE if row.interval is None else f"{signed(row.interval.low)} to {signed(row.interval.high)}"
    return (
        row.quantity,
        str(row.layout.ranks) if row.layout else "all",
        before,
        now,
        signed(row.loss),
        interval,
        numbers.NONE if row.floor is None else numbers.percent(row.floor, 1),
        f"{row.launches[1]} against {row.launches[0]}",
        row.verdict if row.decides else f"({row.verdict})",
    )


def comparison_cells(one: Comparison) -> tuple[str, ...]:
    """Return the cells of a comparison, one for each of `COMPARE_HEADINGS`."""
    return (
        one.quantity,
        str(one.layout.ranks) if one.layout else "all",
        *(value(one.quantity, median) for median in one.values),
        signed(one.ratio - 1),
        numbers.NONE if one.interval is None else f"{signed(one.interval.low - 1)} to {signed(one.interval.high - 1)}",
        f"{one.launches[1]} against {one.launches[0]}",
        one.meaning,
    )


def signed(fraction: float) -> str:
    """Return a loss or a gain with its sign: ``+9.1 %``."""
    return f"{100 * fraction:+.1f}\u00a0%"


def headline(check: Check) -> str:
    """Return the verdict on the whole in one sentence."""
    current, reference = check.current, check.reference
    who = current.label if current.workload != reference.workload else f"{current.workload.name} at {current.state}"
    name = f"{who} against '{reference.label}'"
    if check.verdict == REGRESSION:
        worst = max((row for row in check.deciding if row.verdict == REGRESSION), key=lambda row: row.loss)
        return f"REGRESSION: {name}: {_loss(worst)}."
    if check.verdict == INCONCLUSIVE:
        return f"INCONCLUSIVE: {name}: {_needed(check)}."
    if check.verdict == IMPROVEMENT:
        best = min((row for row in check.deciding if row.verdict == IMPROVEMENT), key=lambda row: row.loss)
        return f"IMPROVEMENT: {name}: {_loss(best)}, and nothing got worse."
    return f"PASS: {name}: a loss of {numbers.percent(check.limits.size)} would have shown, and none did."


def place(row: CheckRow) -> str:
    """Return where the row was measured: ``on 2 ranks``, or over the whole curve."""
    return f"on {numbers.ranks(row.layout.ranks)}" if row.layout else "over the curve"


def notes(check: Check, kept: Sequence[Baseline], now: datetime) -> tuple[str, ...]:
    """Return what a reader must know beside the verdicts. `kept` are the A/A launches of the workload and machine."""
    reference, current = check.reference, check.current
    found = [
        f"Reference: commit {reference.state}, {numbers.moment(reference.newest)} UTC, "
        f"on {describe(reference.machine)}."
    ]
    if check.current.launches:
        found.append(f"Now: commit {current.state}, {numbers.moment(current.newest)} UTC.")
    found += [f"{name} changed: {a} to {b}." for name, a, b in software_changes(reference, current)]
    if reference.software.dirty or current.software.dirty:
        found.append("After a + come digits of the code itself: uncommitted changes ran, which no commit names.")
    found += _noise_notes(check, kept, now)
    excluded = current.excluded
    if excluded:
        found.append(f"{numbers.plural(excluded, 'launch')} of the current commit were not valid and are left out.")
    for layout in check.unmeasured:
        found.append(f"{layout} was not measured now.")
    before, later = accuracy(reference), accuracy(current) if current.launches else NOT_MEASURED
    if NOT_MEASURED not in (before, later):
        found.append(f"Test accuracy at the end: {before} then, {later} now.")
    return tuple(found)


def software_changes(one: Measurement, other: Measurement) -> tuple[tuple[str, str, str], ...]:
    """Return name, old and new value of every version that differs, without the commit."""
    names = ("harness", "python", "tensorflow", "keras", "numpy", "mpi4py", "mpi_library")
    pairs = [(name, getattr(one.software, name), getattr(other.software, name)) for name in names]
    pairs.append(("reduction", ", ".join(one.reductions), ", ".join(other.reductions)))
    return tuple((name.replace("_", " "), a, b) for name, a, b in pairs if a != b)


def age(baseline: Baseline, now: datetime) -> str:
    """Return how old the launches of `baseline` are."""
    days = _days(baseline, now)
    return "today" if days <= 0 else f"{numbers.plural(days, 'day')} old"


def _days(baseline: Baseline, now: datetime) -> int:
    return (now - baseline.measurement.newest.astimezone(UTC)).days


def _noise_notes(check: Check, kept: Sequence[Baseline], now: datetime) -> list[str]:
    """Return what the errors rest on."""
    if check.duet:
        return [
            "Duet: the two versions were launched in turn, and chance decided which came first in each pair: what "
            "the machine did meanwhile fell on both alike. Both ran with the versions that are installed now."
        ]
    found = []
    own = {(launch.layout, launch.started) for side in (check.reference, check.current) for launch in side.launches}
    for one in kept:
        added = [launch for launch in one.measurement.launches if (launch.layout, launch.started) not in own]
        if not added:
            continue
        old = "; a machine changes: run `harness noise` again" if _days(one, now) > OLD_DAYS else ""
        launches = numbers.plural(len(added), "launch")
        found.append(f"Noise is learned from {launches} of commit {one.measurement.state} too, {age(one, now)}{old}.")
    if check.sittings < KNOWN:
        found.append(
            f"The two were measured in different sittings, between which a deviation of {numbers.percent(SITTING)} is "
            f"assumed: A/A launches of {KNOWN + 1} sittings would measure it (`harness noise --launches {NEEDED}` on "
            "other days), and `harness check --decide --duet` does without."
        )
    return found


def value(quantity: str, value: float) -> str:
    """Return a quantity's value with its unit: seconds, per cent, or a bare coefficient."""
    if quantity in (EFFICIENCY, CURVE):
        return numbers.percent(value, 1)
    if quantity in (CONTENTION, COHERENCY):
        return numbers.significant(value)
    return numbers.seconds(value)


def _loss(row: CheckRow) -> str:
    assert row.interval is not None
    what = "speed" if row.quantity == "epoch time" else "efficiency"
    word = "lost" if row.loss > 0 else "gained"
    low, high = sorted((abs(row.interval.low), abs(row.interval.high)))
    return (
        f"{numbers.percent(abs(row.loss), 1)} of the {what} {place(row)} {word} "
        f"(interval {100 * low:.1f} to {numbers.percent(high, 1)})"
    )


def _needed(check: Check) -> str:
    short = min((row.launches[0] for row in check.deciding), default=NEEDED)
    if short < NEEDED:
        return f"the reference has {numbers.plural(short, 'launch')} of a layout, {NEEDED} are needed to judge by it"
    if check.more is None:
        return (
            "what lies between sittings is too much for any number of launches in this one: `harness check --decide "
            "--duet` launches both versions in one"
        )
    return f"{check.more} more {'launch' if check.more == 1 else 'launches'} of each layout can decide it"


_HASHED = re.compile(r".*-[0-9a-f]{8}/?$")  # Sweep.name


def side_names(names: Sequence[str], measured: Sequence[Measurement]) -> tuple[str, ...]:
    """Return what a reader calls the `measured` that a user named so: by what differs where a name ends in digits."""
    apart = names_apart([one.workload for one in measured])
    if len(set(apart)) < len(apart):
        return tuple(names)
    return tuple(words if _HASHED.fullmatch(name) else name for name, words in zip(names, apart, strict=True))


def differences(first: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return one line for each thing that differs, and the accuracies, for a faster training may be a worse one."""
    found = list(describe_differences(first, other))
    if first.state != other.state:
        found.append(f"commit: {first.state} against {other.state}")
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
    return numbers.percent(sorted(known)[len(known) // 2], 2) if known else NOT_MEASURED
