"""A check in a reader's words, and what differs between two measurements."""

from datetime import UTC, datetime

from harness.analysis import numbers
from harness.analysis.stats import NEEDED
from harness.regression.compare import Comparison
from harness.regression.match import describe, describe_differences
from harness.regression.quantities import COHERENCY, CONTENTION, CURVE, EFFICIENCY
from harness.regression.verdict import IMPROVEMENT, INCONCLUSIVE, REGRESSION, Check, Row
from harness.schema.measurement import Baseline, Measurement

HEADINGS = ("Quantity", "Ranks", "Reference", "Now", "Loss", "95 % interval", "Noise floor", "Launches", "Verdict")
COMPARE_HEADINGS = ("Quantity", "Ranks", "A", "This", "Better by", "95 % interval", "Launches", "Meaning")
OLD_DAYS = 30  # of A/A launches: a machine changes


def cells(row: Row) -> tuple[str, ...]:
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
        f"{one.ratio:.3f}",
        numbers.NONE if one.interval is None else f"{one.interval.low:.3f} to {one.interval.high:.3f}",
        f"{one.launches[1]} against {one.launches[0]}",
        one.meaning,
    )


def signed(fraction: float) -> str:
    """Return a loss with its sign: ``+9.1 %``."""
    return f"{100 * fraction:+.1f}\u00a0%"


def headline(check: Check) -> str:
    """Return the verdict on the whole in one sentence."""
    name = f"{check.current.workload.name} at {check.current.software.name} against '{check.reference.label}'"
    if check.verdict == REGRESSION:
        worst = max((row for row in check.deciding if row.verdict == REGRESSION), key=lambda row: row.loss)
        return f"REGRESSION: {name}: {_loss(worst)}."
    if check.verdict == INCONCLUSIVE:
        return f"INCONCLUSIVE: {name}: {_needed(check)}."
    if check.verdict == IMPROVEMENT:
        best = min((row for row in check.deciding if row.verdict == IMPROVEMENT), key=lambda row: row.loss)
        return f"IMPROVEMENT: {name}: {_loss(best)}, and nothing got worse."
    return f"PASS: {name}: a loss of {numbers.percent(check.size)} would have shown, and none did."


def place(row: Row) -> str:
    """Return where the row was measured: ``on 2 ranks``, or over the whole curve."""
    return f"on {numbers.ranks(row.layout.ranks)}" if row.layout else "over the curve"


def notes(check: Check, kept: Baseline | None, now: datetime) -> tuple[str, ...]:
    """Return what a reader must know beside the verdicts. `kept` are the A/A launches, None where there are none."""
    reference, current = check.reference, check.current
    found = [
        f"Reference: commit {reference.software.name}, {numbers.moment(reference.newest)} UTC, "
        f"on {describe(reference.machine)}."
    ]
    if check.current.launches:
        found.append(f"Now: commit {current.software.name}, {numbers.moment(current.newest)} UTC.")
    found += [f"{name} changed: {a} to {b}." for name, a, b in software_changes(reference, current)]
    if reference.software.dirty or current.software.dirty:
        found.append("Launches marked + ran with uncommitted changes: no commit names their code.")
    found.append(_noise_note(check, kept, now))
    excluded = current.excluded
    if excluded:
        found.append(f"{numbers.plural(excluded, 'launch')} of the current commit were not valid and are left out.")
    for layout in check.unmeasured:
        found.append(f"{layout} was not measured now.")
    found.append(_accuracy(check))
    return tuple(note for note in found if note)


def software_changes(one: Measurement, other: Measurement) -> tuple[tuple[str, str, str], ...]:
    """Return name, old and new value of every version that differs, without the commit."""
    names = ("harness", "python", "tensorflow", "keras", "numpy", "mpi4py", "mpi_library")
    pairs = [(name, getattr(one.software, name), getattr(other.software, name)) for name in names]
    pairs.append(("reduction", ", ".join(one.reductions), ", ".join(other.reductions)))
    return tuple((name.replace("_", " "), a, b) for name, a, b in pairs if a != b)


def age(baseline: Baseline, now: datetime) -> str:
    """Return how old the launches of `baseline` are."""
    days = (now - baseline.measurement.newest.astimezone(UTC)).days
    return "today" if days <= 0 else f"{numbers.plural(days, 'day')} old"


def _noise_note(check: Check, kept: Baseline | None, now: datetime) -> str:
    if kept is None:
        return (
            "The noise floor is learned from these launches alone; `harness noise` measures it on more of one commit."
        )
    days = (now - kept.measurement.newest).days
    old = "; a machine changes: run `harness noise` again" if days > OLD_DAYS else ""
    launches = numbers.plural(len(kept.measurement.launches), "launch")
    return f"The noise floor rests on these launches and {launches} of commit {kept.measurement.software.name}, {age(kept, now)}{old}."  # noqa: E501


def _accuracy(check: Check) -> str:
    def of(measurement: Measurement) -> float | None:
        known = [launch.test_accuracy for launch in measurement.launches if launch.test_accuracy is not None]
        return sorted(known)[len(known) // 2] if known else None

    before, now = of(check.reference), of(check.current)
    if before is None or now is None:
        return ""
    return f"Test accuracy at the end: {numbers.percent(before, 2)} then, {numbers.percent(now, 2)} now."


def value(quantity: str, value: float) -> str:
    if quantity in (EFFICIENCY, CURVE):
        return numbers.percent(value, 1)
    if quantity in (CONTENTION, COHERENCY):
        return numbers.significant(value)
    return numbers.seconds(value)


def _loss(row: Row) -> str:
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
        return "the noise is too large for any number of launches: a quieter machine or a longer epoch would help"
    return f"{check.more} more {'launch' if check.more == 1 else 'launches'} of each layout can decide it"


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
