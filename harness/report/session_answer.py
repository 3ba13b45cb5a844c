"""What new sessions are beside a baseline: the verdict, what decides it and what of the stack changed."""

import math
from collections.abc import Sequence

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.analysis.sessions import STEP
from harness.analysis.useful_time import SERIALISATION, TRANSFER
from harness.base.exit_codes import FAILED, UNDECIDED
from harness.regression.change_threshold import LARGEST_THRESHOLD
from harness.regression.measurement import StackLine, compare_stacks, quantity_value
from harness.regression.session_check import SessionCheck, SessionRow, Verdict
from harness.regression.session_model import Scatter, ScatterSource
from harness.report import sweep_sentences
from harness.report.answer import Answer, CaseOutcome, CaseResult, CaseSuite, Fact, Section, Table
from harness.report.measurement_words import (
    NOT_MEASURED,
    facts_of_two,
    final_accuracy,
    interval_figure,
    measurement_warnings,
    signed,
    skipped_notes,
    slow_node_words,
)
from harness.report.run_words import machine_words

HEADINGS = ("Quantity", "Ranks", "Baseline", "Now", "Loss", "95 % CI", "Sessions", "Blocks", "Verdict")
_SHORT_NAMES = {SERIALISATION: "serialisation", TRANSFER: "transfer"}  # with them a row fits a terminal
_DEFAULTS = (ScatterSource.SAME_DAY, ScatterSource.DEFAULT)
_CODES = {Verdict.REGRESSION: FAILED, Verdict.CANNOT_TELL: UNDECIDED}  # 0 of all others
_OUTCOMES = {Verdict.REGRESSION: CaseOutcome.FAILED, Verdict.CANNOT_TELL: CaseOutcome.SKIPPED}
_MOST_NAMED = 3
_MOST_TILES = 5
_EXPLAINED = (
    "A loss is of speed or efficiency; below 0 it is a gain. Each interval is the row's own, and holds what differs "
    "between sessions. A regression and an improvement share an error of 5 % over all rows (Holm)."
)


def session_answer(check: SessionCheck, command: str, *, skipped: Sequence[str] = ()) -> Answer:
    """Return what new sessions are beside a baseline. The exit code tells a CI job the verdict.

    `skipped` has a sentence on each sweep that could not be read.
    """
    reference = check.reference
    workload = reference.workload
    current = check.current if check.current.launches else reference
    subject = sweep_sentences.subject(workload)
    measured = [(f"{row.quantity} {_place(row)}", row.slowdown, row.interval) for row in check.rows]
    figures = interval_figure("losses", "Loss since the baseline, with 95 % CIs", measured, (0.0, "Loss"))
    table = Table(
        title="Verdicts",
        headings=HEADINGS,
        rows=[_cells(row) for row in check.rows],
        note=_EXPLAINED,
        tones={Verdict.REGRESSION: "bad", Verdict.IMPROVEMENT: "good", Verdict.PASS: "good"},
        wide=(HEADINGS.index("Sessions"), HEADINGS.index("Blocks")),
    )
    stack = compare_stacks(reference, check.current) if check.current.launches else ()
    return Answer(
        question=f"Did {subject} get worse since '{reference.label}'?",
        sentence=_sentence(check),
        details=_details(check),
        table=table,
        banners=measurement_warnings((reference.label, "the new sessions"), (reference, check.current), check.rows),
        data={
            "verdict": check.verdict,
            "against": reference.label,
            "rows": check.rows,
            "stack": stack,
            "slow_node": check.slow_node,
            "other_work": check.other_work,
        },
        notes=(*_notes(check, stack), *skipped_notes(skipped)),
        tiles=_tiles(check),
        facts=facts_of_two(reference, current),
        sections=[
            Section(title="Verdicts", name="verdicts", elements=[table, *figures]),
            Section(title="What differs", name="stack", elements=[_stack_table(stack)] if stack else []),
        ],
        command=command,
        code=_CODES.get(check.verdict, 0),
        kind="check",
        place=f"check-{workload.name}",
        title=f"{subject} against {reference.label}",
        when=current.newest,
        machine=machine_words(current.machine),
        suite=_suite(check),
    )


def _tiles(check: SessionCheck) -> list[Fact]:
    """Return the losses of the first screen, those of rows that decide first."""
    rows = sorted(check.rows, key=lambda row: row.verdict != check.verdict)
    return [
        Fact(name=f"{row.quantity} {_place(row)}", value=signed(row.slowdown), detail=_interval(row.interval))
        for row in rows[:_MOST_TILES]
    ]


def _sentence(check: SessionCheck) -> str:
    """Return the verdict on the whole, and the row that tells most; all else is in the details."""
    verdict = Verdict.PASS if check.verdict == Verdict.SMALL else check.verdict
    subject = f"{verdict.upper()}: {check.current.workload.name} against '{check.reference.label}'"
    limit = units.percent(check.threshold)
    match check.verdict:
        case Verdict.REGRESSION | Verdict.IMPROVEMENT:
            return f"{subject}: {_change(check.of(check.verdict)[0])}."
        case Verdict.SMALL:
            return f"{subject}: a loss, less than the {limit} that matter."
        case Verdict.PASS:
            return f"{subject}: no loss of {limit}."
    if check.unmeasured:
        return f"{subject}: {', '.join(map(str, check.unmeasured))} was not measured now."
    if check.other_work is not None:
        return f"{subject}: other work used {check.other_work:.1f} cores during the session."
    unsure = check.of(Verdict.CANNOT_TELL)
    possible = f"a loss of {limit} is possible in {len(unsure)} of {units.plural(len(check.rows), 'row')}"
    largest = check.largest_possible_loss
    if largest is None:
        return f"{subject}: {possible}."
    return f"{subject}: {possible}, one of {units.percent(_passing_threshold(largest), 1)} in none."


def _passing_threshold(largest: float) -> float:
    """Return the least threshold above the `largest` possible loss, in tenths of a per cent."""
    return (math.floor(1000 * largest) + 1) / 1000


def _details(check: SessionCheck) -> tuple[str, ...]:
    """Return the rows that decide with their intervals, what would decide the others, and a slow node."""
    lines: list[str] = []
    match check.verdict:
        case Verdict.CANNOT_TELL:
            lines += [] if check.unmeasured else _undecided(check)
        case Verdict.PASS:
            worst = max(check.rows, key=lambda row: row.slowdown)
            lines.append(f"The largest estimate: {_difference(worst)}.")
        case _:
            rows = check.of(check.verdict)
            lines += [f"{_difference(row)}." for row in rows[:_MOST_NAMED]]
            more = len(rows) - _MOST_NAMED
            lines += [f"{units.plural(more, 'more row')}: see the table."] if more > 0 else []
            lines += ["Steps changed on every layout, and efficiency did not."] if check.is_of_steps_alone else []
    if check.verdict == Verdict.IMPROVEMENT:
        lines.append(f"Nothing got worse by {units.percent(check.threshold)}.")
    node = check.slow_node
    if node is not None:
        lines.append(slow_node_words(node))
    return tuple(lines)


def _undecided(check: SessionCheck) -> list[str]:
    """Return where the largest loss is possible, and what would decide."""
    if check.other_work is not None:
        worst = max(check.rows, key=lambda row: row.slowdown)
        return [
            f"The largest loss, which that work may have caused: {_difference(worst)}.",
            "Measure again while the machine does nothing else.",
        ]
    unsure = check.of(Verdict.CANNOT_TELL)
    bounded = [row for row in unsure if row.interval]
    if not bounded:
        return ["There are too few launches for an interval: at least 3 of each layout are needed."]
    widest = max(bounded, key=_upper)
    largest = f"{_quantity(widest)} {_place(widest)}: {signed(widest.slowdown)} ({_interval(widest.interval)})"
    sure_gains = [f"A gain is sure: {_difference(row)}." for row in check.of(Verdict.IMPROVEMENT)[:1]]
    return [*sure_gains, f"The largest loss is possible in the {largest}.", *_passing(check), _needed(unsure)]


def _passing(check: SessionCheck) -> list[str]:
    """Return the threshold with which the check passes, where the option takes it."""
    largest = check.largest_possible_loss
    if largest is None or _passing_threshold(largest) > LARGEST_THRESHOLD:
        return []
    return [f"With `--threshold {100 * _passing_threshold(largest):.1f}` this check passes."]


def _upper(row: SessionRow) -> float:
    return row.interval.high if row.interval else 0.0


def _needed(unsure: Sequence[SessionRow]) -> str:
    """Return in a sentence what would decide the rows that cannot be told, as far as anything would."""
    needs = [row.needed for row in unsure if row.needed]
    sessions = max((need.sessions for need in needs), default=0)
    blocks = max((need.blocks for need in needs), default=0)
    hopeless = dict.fromkeys(row.quantity for row in unsure if row.needed and not row.needed.is_enough)
    but = f" all but {', '.join(hopeless)}" if hopeless else ""
    if blocks and not sessions:
        return f"About {units.plural(blocks, 'more block')} would decide{but}: --until-sure MINUTES makes them."
    if any(row.scatter.source in _DEFAULTS for row in unsure):
        return (
            "A baseline of 3 sessions or more, on different days, is judged by how far sessions differ here: `harness "
            "baseline save` adds one. Two stacks that are both here are told apart in minutes by `harness compare`."
        )
    if sessions:
        return (
            f"About {units.plural(sessions, 'more session')} on either side would decide{but}, on other days: `harness "
            "baseline save` adds one."
        )
    return "Sessions differ too much here for this limit: raise --threshold, or use a quieter machine."


def _difference(row: SessionRow) -> str:
    return f"{_change(row)} ({_interval(row.interval)})"


def _change(row: SessionRow) -> str:
    """Return by how much a row changed: ``9.8 % less transfer efficiency on 2 ranks``."""
    amount = units.percent(abs(row.slowdown), 1)
    return f"{amount} {'less' if row.slowdown > 0 else 'more'} {_quantity(row)} {_place(row)}"


def _quantity(row: SessionRow) -> str:
    """Return what a loss is of."""
    return "speed" if row.quantity == STEP else row.quantity


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "no interval"
    return f"95 % CI of the loss {100 * interval.low:+.1f} to {100 * interval.high:+.1f} %"


def _place(row: SessionRow) -> str:
    return f"on {units.ranks(row.layout.ranks)}"


def _cells(row: SessionRow) -> tuple[str, ...]:
    """Return the row's cells, one for each of `HEADINGS`."""
    before, now = (quantity_value(row.quantity, value) for value in row.values)
    ends = row.interval
    return (
        _SHORT_NAMES.get(row.quantity, row.quantity),
        str(row.layout.ranks),
        before,
        now,
        signed(row.slowdown),
        f"{100 * ends.low:+.1f} to {signed(ends.high)}" if ends else units.NONE,
        f"{row.sessions[1]} against {row.sessions[0]}",
        f"{row.blocks[1]} against {row.blocks[0]}",
        row.verdict,
    )


def _notes(check: SessionCheck, stack: Sequence[StackLine]) -> tuple[str, ...]:
    reference = check.reference
    current = check.current
    notes = [f"Baseline: commit {reference.state}, last launch {units.moment(reference.newest)} UTC."]
    if current.launches:
        notes.append(f"Now: commit {current.state}, last launch {units.moment(current.newest)} UTC.")
    notes += [_scatter_line(source, check.rows) for source in ScatterSource if _of_source(source, check.rows)]
    if check.is_told_by_one_day:
        notes.append(
            "All sessions of the baseline are of one day, and other days differ by more: too much is called a "
            "regression. Add sessions of other days."
        )
    if reference in check.whole_epochs:
        notes.append(
            f"The factors of '{reference.label}' are of whole epochs, other work included. If an earlier version saved "
            "it, save its sweep again with --replace: that leaves contended rounds out."
        )
    if check.current in check.whole_epochs:
        notes.append("The factors of the new sessions are of whole epochs, other work included.")
    changed = [line for line in stack if line.changed]
    notes += [f"{line.name} changed: {line.before or 'not set'} to {line.now or 'not set'}." for line in changed]
    if stack and not changed:
        notes.append(f"Nothing of the stack changed ({len(stack)} parts are compared).")
    if reference.software.dirty or current.software.dirty:
        notes.append("The digits after a + are of the code itself: uncommitted changes ran, which no commit names.")
    before = final_accuracy(reference)
    after = final_accuracy(current) if current.launches else NOT_MEASURED
    if NOT_MEASURED not in (before, after):
        notes.append(f"Test accuracy at the end: {before} then, {after} now.")
    return tuple(notes)


def _of_source(source: ScatterSource, rows: Sequence[SessionRow]) -> list[SessionRow]:
    return [row for row in rows if row.scatter.source == source]


def _scatter_line(source: ScatterSource, rows: Sequence[SessionRow]) -> str:
    """Return what told how far sessions differ, and by how much they do in the quantities of these `rows`."""
    quantities: dict[str, Scatter] = {}
    for row in _of_source(source, rows):
        quantities.setdefault(row.quantity, row.scatter)
    deviations = ", ".join(f"{name} {units.percent(one.variance**0.5, 1)}" for name, one in quantities.items())
    count = max(scatter.sessions for scatter in quantities.values())
    if source in _DEFAULTS:
        apart = "of one day" if source == ScatterSource.SAME_DAY else "of different days"
        return (
            f"How far sessions differ was not measured here; a default for sessions {apart} is taken for the standard "
            f"deviation ({deviations}). Add sessions of other days to the baseline: from 3 on these tell it."
        )
    return f"How far sessions differ is told by {count} sessions, {source} (standard deviation: {deviations})."


def _stack_table(stack: Sequence[StackLine]) -> Table:
    """Return the stack of both, what changed first."""
    rows = [
        (line.name, line.before or units.NONE, line.now or units.NONE, "yes" if line.changed else "no")
        for line in stack
    ]
    return Table(title="What differs", headings=("Part", "Baseline", "Now", "Changed"), rows=rows, left=4, texts=())


def _suite(check: SessionCheck) -> CaseSuite:
    """Return a test for each row: failed is a regression, skipped is what cannot be told."""
    workload = check.reference.workload.name
    cases = []
    for row in check.rows:
        text = ", ".join(f"{heading}: {cell}" for heading, cell in zip(HEADINGS, _cells(row), strict=True))
        outcome = _OUTCOMES.get(row.verdict, CaseOutcome.PASSED)
        reason = "" if outcome == CaseOutcome.PASSED else f"{row.verdict}: {text}"
        name = f"{row.quantity} {_place(row)}"
        cases.append(CaseResult(group=workload, name=name, outcome=outcome, reason=reason, output=text))
    for layout in check.unmeasured:
        cases.append(
            CaseResult(group=workload, name=str(layout), outcome=CaseOutcome.SKIPPED, reason="not measured now")
        )
    return CaseSuite(name=f"harness check against {check.reference.label}", cases=cases)
