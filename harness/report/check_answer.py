"""What a check found: the verdict with its intervals, as an answer."""

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.base.exit_codes import FAILED, UNDECIDED
from harness.regression.baselines import machine_line
from harness.regression.checks import (
    IMPROVEMENT,
    INCONCLUSIVE,
    PASS,
    REGRESSION,
    SMALL,
    Check,
    ComparedRow,
)
from harness.report import sweep_sentences
from harness.report.answer import Answer, CaseOutcome, CaseResult, CaseSuite, Fact, Section, Table
from harness.report.measurement_words import (
    NOT_MEASURED,
    change_words,
    compared_cells,
    facts_of_two,
    final_accuracy,
    interval_figure,
    measurement_warnings,
    place,
    signed,
    software_changes,
)
from harness.report.run_words import machine_words

HEADINGS = ("Quantity", "Ranks", "Reference", "Now", "Slowdown", "95 % interval", "Launches", "Verdict")
_CODES = {PASS: 0, SMALL: 0, IMPROVEMENT: 0, REGRESSION: FAILED, INCONCLUSIVE: UNDECIDED}  # exit codes of a command
_OUTCOMES = {REGRESSION: CaseOutcome.FAILED, INCONCLUSIVE: CaseOutcome.SKIPPED}
_EXPLAINED = (
    "A slowdown is of speed or efficiency. Below 0 it is a gain. Rows in brackets decide nothing. The intervals hold "
    "together at 95 %; in turns, where a check passes only by all rows, their upper ends hold each by itself."
)


def check_answer(check: Check, command: str) -> Answer:
    """Return what a check found. The exit code tells a CI job the verdict."""
    reference = check.reference
    workload = reference.workload
    current = check.current if check.current.launches else reference
    subject = sweep_sentences.subject(workload)
    measured = [(f"{row.quantity} {place(row)}", row.slowdown, row.interval) for row in check.deciding]
    figures = interval_figure(
        "slowdowns",
        "Slowdown against the reference, with 95 % intervals",
        measured,
        (0.0, "Slowdown (above 0 is worse)"),
    )
    table = Table(
        title="Verdicts",
        headings=HEADINGS,
        rows=[_verdict_cells(row) for row in check.rows],
        note=_EXPLAINED,
        tones={REGRESSION: "bad", IMPROVEMENT: "good", PASS: "good"},
        wide=(HEADINGS.index("Launches"),),
    )
    return Answer(
        question=f"Did {subject} get worse since '{reference.label}'?",
        sentence=_sentence(check),
        table=table,
        banners=measurement_warnings((reference.label, "the current commit"), (reference, check.current), check.rows),
        data={"verdict": check.verdict, "against": reference.label, "rows": check.rows, "spent": check.spent},
        notes=_notes(check),
        tiles=[
            Fact(name=name, value=units.percent(slowdown, 1), detail=f"slowdown; {_interval(interval)}")
            for name, slowdown, interval in measured[:5]
        ],
        facts=facts_of_two(reference, current),
        sections=[Section(title="Verdicts", name="verdicts", elements=[table, *figures])],
        command=command,
        code=_CODES[check.verdict],
        kind="check",
        place=f"check-{workload.name}",
        title=f"{subject} against {reference.label}",
        when=current.newest,
        machine=machine_words(current.machine),
        suite=_suite(check),
    )


def _sentence(check: Check) -> str:
    """Return the verdict on the whole, by which row, and what it took."""
    current = check.current
    reference = check.reference
    version = f"{current.workload.name} at {current.state}"
    if current.workload != reference.workload:
        version = current.label
    name = f"{version} against '{reference.label}'"
    took = f"; {check.spent}" if check.spent else ""
    practical = units.percent(check.practical)
    rows = [row for row in check.deciding if row.verdict == check.verdict and row.interval]
    worst = max(rows, key=lambda row: row.slowdown, default=None)
    if check.verdict == REGRESSION and worst:
        return f"REGRESSION: {name}: {_difference(worst)}{took}."
    if check.verdict == IMPROVEMENT:
        best = min(rows, key=lambda row: row.slowdown)
        return f"IMPROVEMENT: {name}: {_difference(best)}, and nothing got worse{took}."
    if check.verdict == SMALL and worst and worst.interval:
        span = f"{100 * worst.interval.low:.1f} to {100 * worst.interval.high:.1f} %"
        return f"PASS: {name}: a small slowdown of {span} {place(worst)}, below the {practical} that matter{took}."
    if check.verdict == PASS and worst:
        return (
            f"PASS: {name}: no slowdown of {practical}; the largest estimate is {signed(worst.slowdown)} "
            f"({_interval(worst.interval)}) {place(worst)}{took}."
        )
    if not check.spent:
        return (
            f"CANNOT TELL: {name}: they did not train in turns, and between launches the machine's speed changes too: "
            "`harness compare commit:COMMIT here` trains two commits in turns."
        )
    open_rows = [row for row in check.deciding if row.verdict == INCONCLUSIVE]
    widest = max(open_rows, key=lambda row: row.slowdown, default=None)
    estimate = "no round"
    if widest:
        estimate = f"{signed(widest.slowdown)} ({_interval(widest.interval)}) {place(widest)}"
    return f"INCONCLUSIVE: {name}: {estimate}, which leaves {practical} open{took}: give a larger BUDGET."


def _difference(row: ComparedRow) -> str:
    assert row.interval is not None
    low, high = sorted((abs(row.interval.low), abs(row.interval.high)))
    change = change_words(row.quantity, row.slowdown)
    return f"{change} {place(row)} (95 % interval {100 * low:.1f} to {units.percent(high, 1)})"


def _verdict_cells(row: ComparedRow) -> tuple[str, ...]:
    """Return the row's cells, one for each of `HEADINGS`."""
    ends = None if row.interval is None else (row.interval.low, row.interval.high)
    return compared_cells(row, row.slowdown, ends, row.verdict if row.decides else f"({row.verdict})")


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "no interval"
    return f"interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f} %"


def _notes(check: Check) -> tuple[str, ...]:
    reference = check.reference
    current = check.current
    notes = [
        f"Reference: commit {reference.state}, {units.moment(reference.newest)} UTC, "
        f"on {machine_line(reference.machine)}."
    ]
    if current.launches:
        notes.append(f"Now: commit {current.state}, {units.moment(current.newest)} UTC.")
    notes += [f"{name} changed: {old} to {new}." for name, old, new in software_changes(reference, current)]
    if reference.software.dirty or current.software.dirty:
        notes.append("The digits after a + are of the code itself: uncommitted changes ran, which no commit names.")
    if check.spent:
        notes.append(
            f"In turns: {check.spent}. Both versions trained at once on the same cores, in turns of 50 ms: "
            "what the machine did fell on both. The sample is the block. Both ran with the versions installed now."
        )
    notes += [f"{layout} was not measured now." for layout in check.unmeasured]
    before = final_accuracy(reference)
    after = final_accuracy(current) if current.launches else NOT_MEASURED
    if NOT_MEASURED not in (before, after):
        notes.append(f"Test accuracy at the end: {before} then, {after} now.")
    return tuple(notes)


def _suite(check: Check) -> CaseSuite:
    """Return a test for each row that decides."""
    workload = check.current.workload.name
    cases = [_case(row, workload) for row in check.deciding]
    for layout in check.unmeasured:
        cases.append(
            CaseResult(group=workload, name=str(layout), outcome=CaseOutcome.SKIPPED, reason="not measured now")
        )
    return CaseSuite(name=f"harness check against {check.reference.label}", cases=cases)


def _case(row: ComparedRow, workload: str) -> CaseResult:
    """Return a deciding row as a test: failed is a regression, skipped is inconclusive."""
    text = ", ".join(f"{heading}: {cell}" for heading, cell in zip(HEADINGS, _verdict_cells(row), strict=True))
    outcome = _OUTCOMES.get(row.verdict, CaseOutcome.PASSED)
    return CaseResult(
        group=workload,
        name=f"{row.quantity} {place(row)}",
        outcome=outcome,
        reason="" if outcome == CaseOutcome.PASSED else f"{row.verdict}: {text}",
        output=text,
    )
