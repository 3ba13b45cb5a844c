"""What a check found: the verdict first, then what it rests on; the same as JUnit XML for a CI system."""

from xml.etree import ElementTree

from harness.analysis import numbers
from harness.analysis.stats import NEEDED, Interval
from harness.regression.baselines import machine_line
from harness.regression.checks import IMPROVEMENT, INCONCLUSIVE, PASS, REGRESSION, SMALL, Check, ComparedRow
from harness.report import sweep_sentences
from harness.report.answer import Answer, Section, Table, Tile
from harness.report.compare_page import (
    NOT_MEASURED,
    change_words,
    compared_cells,
    facts_of_two,
    final_accuracy,
    interval_figure,
    measurement_warnings,
    signed,
    software_changes,
)
from harness.report.figure_origin import measured_origin
from harness.report.launch_summary import machine_words

HEADINGS = ("Quantity", "Ranks", "Reference", "Now", "Slowdown", "95 % interval", "Launches", "Verdict")
_CODES = {PASS: 0, SMALL: 0, IMPROVEMENT: 0, REGRESSION: 1, INCONCLUSIVE: 3}  # exit codes of a command
_EXPLAINED = (
    "A slowdown is of speed or efficiency; of skew, wire and the USL's terms it is a part of the reference's epoch. "
    "Below 0 it is a gain. Rows in brackets show where a slowdown comes from and decide nothing. The intervals hold "
    "together at 95 %; in turns, where a check passes only by all rows, their upper ends hold each by itself."
)


def check_answer(check: Check, command: str) -> Answer:
    """Return what a check found. The exit code tells a CI job the verdict."""
    reference, workload = check.reference, check.reference.workload
    current = check.current if check.current.launches else reference
    subject, machine = sweep_sentences.subject(workload), machine_words(current.machine)
    measured = [(f"{row.quantity} {_place(row)}", row.slowdown, row.interval) for row in check.deciding]
    figures = interval_figure(
        "slowdowns",
        "Slowdown against the reference, with 95 % intervals",
        measured,
        (0.0, "Slowdown (above 0 is worse)"),
    )
    table = Table(
        title="Verdicts",
        headings=HEADINGS,
        rows=[_cells(row) for row in check.rows],
        note=_EXPLAINED,
        tones={REGRESSION: "bad", IMPROVEMENT: "good", PASS: "good"},
        wide=(HEADINGS.index("Launches"),),
    )
    rows = [
        {name: getattr(row, name) for name in ("quantity", "layout", "decides", "values", "launches")}
        | {"slowdown": row.slowdown, "interval": row.interval, "verdict": row.verdict}
        for row in check.rows
    ]
    return Answer(
        question=f"Did {subject} get worse since '{reference.label}'?",
        sentence=_sentence(check),
        table=table,
        banners=measurement_warnings((reference.label, "the current commit"), (reference, check.current), check.rows),
        data={"verdict": check.verdict, "against": reference.label, "rows": rows, "spent": check.spent},
        notes=_notes(check),
        tiles=[
            Tile(name=name, value=numbers.percent(slowdown, 1), detail=f"slowdown; {_interval(found)}")
            for name, slowdown, found in measured[:5]
        ],
        facts=facts_of_two(reference, current),
        sections=(
            Section(title="Verdicts", name="verdicts", blocks=[table]),
            Section(title="", name="", blocks=figures),
        ),
        command=command,
        code=_CODES[check.verdict],
        kind="check",
        place=f"check-{workload.name}",
        title=f"{subject} against {reference.label}",
        when=current.newest,
        machine=machine,
        origin=measured_origin(command, [reference, check.current]),
    )


def _sentence(check: Check) -> str:
    """Return the verdict on the whole, by which row, and what it took."""
    current, reference = check.current, check.reference
    who = current.label if current.workload != reference.workload else f"{current.workload.name} at {current.state}"
    name = f"{who} against '{reference.label}'"
    took = f"; {check.spent}" if check.spent else ""
    practical = numbers.percent(check.practical)
    rows = [row for row in check.deciding if row.verdict == check.verdict and row.interval]
    worst = max(rows, key=lambda row: row.slowdown, default=None)
    if check.verdict == REGRESSION and worst:
        return f"REGRESSION: {name}: {_difference(worst)}{took}."
    if check.verdict == IMPROVEMENT:
        best = min(rows, key=lambda row: row.slowdown)
        return f"IMPROVEMENT: {name}: {_difference(best)}, and nothing got worse{took}."
    if check.verdict == SMALL and worst and worst.interval:
        low, high = 100 * worst.interval.low, 100 * worst.interval.high
        return (
            f"PASS: {name}: a small slowdown of {low:.1f} to {high:.1f} % {_place(worst)}, below the {practical} that "
            f"matter{took}."
        )
    if check.verdict == PASS and worst:
        return (
            f"PASS: {name}: no slowdown of {practical}; the largest estimate is {signed(worst.slowdown)} "
            f"({_interval(worst.interval)}) {_place(worst)}{took}."
        )
    if check.apart:
        return (
            f"CANNOT TELL: {name}: they were launched in different sessions, between which the machine's speed changes "
            "too: `harness check --decide` (make check DECIDE=1) trains both versions in turns."
        )
    if check.spent:
        open_rows = [row for row in check.deciding if row.verdict == INCONCLUSIVE]
        widest = max(open_rows, key=lambda row: row.slowdown, default=None)
        found = f"{signed(widest.slowdown)} ({_interval(widest.interval)}) {_place(widest)}" if widest else "no round"
        return f"INCONCLUSIVE: {name}: {found}, which leaves {practical} open{took}: give a larger BUDGET."
    launches = min((min(row.launches) for row in check.deciding), default=0)
    why = f"{NEEDED} launches of each layout are needed on both sides" if launches < NEEDED else "the launches scatter"
    return f"INCONCLUSIVE: {name}: {why}: `harness check --decide` trains both versions in turns."


def _difference(row: ComparedRow) -> str:
    assert row.interval is not None
    low, high = sorted((abs(row.interval.low), abs(row.interval.high)))
    change = change_words(row.quantity, row.slowdown)
    return f"{change} {_place(row)} (95 % interval {100 * low:.1f} to {numbers.percent(high, 1)})"


def _place(row: ComparedRow) -> str:
    """Return where the row was measured: ``on 2 ranks``, or over the whole curve."""
    return f"on {numbers.ranks(row.layout.ranks)}" if row.layout else "over the curve"


def _cells(row: ComparedRow) -> tuple[str, ...]:
    """Return the row's cells, one for each of `HEADINGS`."""
    ends = None if row.interval is None else (row.interval.low, row.interval.high)
    return compared_cells(row, row.slowdown, ends, row.verdict if row.decides else f"({row.verdict})")


def _interval(found: Interval | None) -> str:
    return "no interval" if found is None else f"interval {100 * found.low:+.1f} to {100 * found.high:+.1f} %"


def _notes(check: Check) -> tuple[str, ...]:
    """Return what a reader must know beside the verdicts."""
    reference, current = check.reference, check.current
    found = [
        f"Reference: commit {reference.state}, {numbers.moment(reference.newest)} UTC, "
        f"on {machine_line(reference.machine)}."
    ]
    if current.launches:
        found.append(f"Now: commit {current.state}, {numbers.moment(current.newest)} UTC.")
    found += [f"{name} changed: {a} to {b}." for name, a, b in software_changes(reference, current)]
    if reference.software.dirty or current.software.dirty:
        found.append("The digits after a + are of the code itself: uncommitted changes ran, which no commit names.")
    if check.spent:
        found.append(
            f"In turns: {check.spent}. Both versions trained at once on the same cores, in turns of 50 ms: "
            "what the machine did fell on both. The sample is the block. Both ran with the versions installed now."
        )
    found += [f"{layout} was not measured now." for layout in check.unmeasured]
    before, later = final_accuracy(reference), final_accuracy(current) if current.launches else NOT_MEASURED
    if NOT_MEASURED not in (before, later):
        found.append(f"Test accuracy at the end: {before} then, {later} now.")
    return tuple(found)


def junit(check: Check, answer: Answer) -> str:
    """Return one test case for each row that decides: failed is a regression, skipped is inconclusive.

    Rows that only explain, the warnings and notes of the `answer`, are the suite's output.
    """
    verdicts = [row.verdict for row in check.deciding]
    suite = ElementTree.Element(
        "testsuite",
        name=f"harness check against {check.reference.label}",
        tests=str(len(verdicts) + len(check.unmeasured)),
        failures=str(verdicts.count(REGRESSION)),
        errors="0",
        skipped=str(verdicts.count(INCONCLUSIVE) + len(check.unmeasured)),
    )
    workload, explaining = check.current.workload.name, []
    for row in check.rows:
        text = ", ".join(f"{heading}: {cell}" for heading, cell in zip(HEADINGS, _cells(row), strict=True))
        if not row.decides:
            explaining.append(text)
            continue
        case = ElementTree.SubElement(suite, "testcase", classname=workload, name=f"{row.quantity} {_place(row)}")
        if row.verdict == REGRESSION:
            ElementTree.SubElement(case, "failure", message=text)
        elif row.verdict == INCONCLUSIVE:
            ElementTree.SubElement(case, "skipped", message=f"inconclusive: {text}")
        else:
            ElementTree.SubElement(case, "system-out").text = text
    for layout in check.unmeasured:
        case = ElementTree.SubElement(suite, "testcase", classname=workload, name=str(layout))
        ElementTree.SubElement(case, "skipped", message="not measured now")
    output = ElementTree.SubElement(suite, "system-out")
    output.text = "\n".join([answer.sentence, *(one.text for one in answer.banners), *explaining, *answer.notes])
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
