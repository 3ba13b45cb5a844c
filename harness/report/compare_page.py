"""What a comparison of two or more measurements found: ratios with intervals, and whether they matter."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd

from harness.analysis import numbers
from harness.analysis.inference import FEWEST_LAUNCHES, Interval
from harness.base.own_matplotlib import Axes, ticker
from harness.regression.baselines import machine_line, study_differences
from harness.regression.checks import (
    ALIKE,
    BETTER,
    IMPROVEMENT,
    INCONCLUSIVE,
    OPEN,
    PASS,
    REGRESSION,
    SMALL,
    WORSE,
    Check,
    ComparedRow,
)
from harness.regression.cost_samples import EFFICIENCY, STEP, TIME, quantity_value
from harness.regression.measurement import Measurement
from harness.report import sweep_sentences
from harness.report.answer import Answer, Banner, Fact, FigureBlock, Section, Table, distinct, facts
from harness.report.svg import BLUE, MUTED, draw
from harness.report.sweep_facts import DISTURBED, DOUBTFUL, days, machine_words
from harness.schema.setting_words import distinguishing_names

NOT_MEASURED = "not measured"
_LONGEST_NAME = 40  # characters, which leave most of the figure to its axes
_HEADINGS = ("Quantity", "Ranks", "First", "Other", "Gain", "95 % interval", "Launches", "Meaning")
_APART = (
    "launched in different sessions, between which the machine's speed changes too: two versions of a script or model "
    "are trained in turns by `harness compare A.py B.py`, two commits by `harness check --decide`"
)
_HASHED = re.compile(r".*-[0-9a-f]{8}/?$")  # Sweep.name


def comparison_answer(
    sides: Sequence[str],
    measured: Sequence[Measurement],
    found: Sequence[Sequence[ComparedRow]],
    left_out: Sequence[int],
    command: str,
) -> Answer:
    """Return what sets the `measured`, which the user named `sides`, against the first of them.

    `found` has the rows of each but the first, `left_out` how many of its launches are the first's too.
    """
    first, *others = measured
    called = side_names(sides, measured)
    several = len(others) > 1
    notes, sentences, data, rows, points = [], [], [], [], []
    for name, other, compared, shared in zip(called[1:], others, found, left_out, strict=True):
        lead = f"{name}: " if several else ""
        if shared:
            notes.append(f"{name}: {shared} launches that are in {called[0]} too are left out")
        differences = _differences(first, other)
        notes += [lead + difference for difference in differences]
        if any(row.apart for row in compared):
            notes.append(f"{lead}{_APART}")
        sentences.append(comparison_sentence(name, called[0], compared))
        kept = [
            {field: getattr(row, field) for field in ("quantity", "layout", "values", "launches", "ratio", "apart")}
            | {"interval": row.ratio_interval, "meaning": row.verdict}
            for row in compared
        ]
        data.append({"other": name, "first": called[0], "differences": differences, "rows": kept})
        for row in compared:
            ends = (row.ratio_interval.low - 1, row.ratio_interval.high - 1) if row.ratio_interval else None
            cells = compared_cells(row, row.ratio - 1, ends, row.verdict)
            rows.append((*([name] if several else []), *cells))
        points += [(f"{lead}{row.quantity} {_place(row)}", row.ratio, row.ratio_interval) for row in compared]
    table = Table(
        title=f"{' and '.join(called[1:])} against {called[0]}",
        headings=(*(["Sweep"] if several else []), *_HEADINGS),
        rows=rows,
        tones={BETTER: "good", WORSE: "bad"},
        left=2 if several else 1,
        note="First and Other are medians, Gain is of their ratio, with the interval of a bootstrap over the launches.",
    )
    figures = interval_figure(
        "ratios", f"Times as good as {called[0]}, with 95 % intervals", points, (1.0, "Ratio (above 1 is better)")
    )
    places = tuple(Path(name).name for name in sides)
    return Answer(
        question=f"Is {' or '.join(called[1:])} faster than {called[0]}?",
        sentence=" ".join(sentences),
        table=table,
        banners=measurement_warnings(called, measured, [row for rows in found for row in rows]),
        data={"comparisons": data},
        notes=notes,
        facts=facts_of_two(*measured[:2]),
        sections=[Section(title=table.title, name="ratios-table", blocks=[table, *figures] if rows else [])],
        command=command,
        kind="compare",
        place=re.sub(r"[^\w.-]+", "_", "-".join(["compare", *places]))[:200],
        title=f"{sweep_sentences.subject(first.workload)}: {table.title}",
        when=max(one.newest for one in measured),
        machine=machine_words(measured[-1].machine),
        sides=tuple(sorted(places)),
    )


def measurement_warnings(
    names: Sequence[str], measured: Sequence[Measurement], rows: Sequence[ComparedRow] = ()
) -> tuple[Banner, ...]:
    """Return what a reader must know before the numbers of `measured`, which are called `names`, and of `rows`."""
    texts = list[str]()
    for name, one in zip(names, measured, strict=True):
        every = f"{numbers.plural(len(one.launches) + one.excluded, 'launch')} of {name}"
        if one.excluded:
            texts.append(f"{one.excluded} of {every} are not valid and left out.")
        if one.met:
            texts.append(f"{one.met} of {every} {DISTURBED}")
        if one.workload.sync == "none":
            texts.append(f"{name} ran without synchronisation: a limit of the machine, no training.")
    if any(row.quantity == EFFICIENCY and max(row.values) > DOUBTFUL for row in rows):
        texts.append(
            "Efficiency far above 100 %, more than caches explain: the launches on the fewest ranks were slowed by "
            "something else."
        )
    stand_ins = [name for name, one in zip(names, measured, strict=True) if one.data_kind == "synthetic"]
    synthetic = f"Synthetic data ({distinct(stand_ins)}): times are comparable, accuracy says only that training works."
    return (
        *(Banner(kind="data", text=synthetic) for _ in stand_ins[:1]),
        *(Banner(kind="warning", text=text) for text in dict.fromkeys(texts)),
    )


def comparison_sentence(name: str, first: str, rows: Sequence[ComparedRow]) -> str:
    """Return in plain words what `rows` (of one measurement, called `name`) say over `first`.

    The point with the most ranks speaks: it is what a scaling study is about.
    """
    times = [row for row in rows if row.quantity == TIME]
    if not times:
        return f"{name} and {first} share no layout with the same rows: nothing to compare."
    last = times[-1]
    assert last.layout is not None
    where = f"On {last.layout.ranks} rank{'s' if last.layout.ranks > 1 else ''} {name} is"
    interval = last.ratio_interval
    span = f" (95 % interval {numbers.ratio_span(interval)})" if interval else ""
    if last.verdict == OPEN:
        why = "the interval leaves it open" if interval else f"{FEWEST_LAUNCHES} launches of each are needed to judge"
        why = "of different sessions, which cannot tell" if last.apart else why
        return f"{where} {last.ratio:.2f} times as fast as {first}{span}: {why}."
    if last.verdict == ALIKE:
        return f"{where} as fast as {first}: {last.ratio:.2f} times{span}."
    efficiency = next((row.values for row in rows if row.quantity == EFFICIENCY and row.layout == last.layout), None)
    cause = f", efficiency {100 * efficiency[0]:.0f} to {100 * efficiency[1]:.0f} %" if efficiency else ""
    word = "faster" if last.verdict == BETTER else "slower"
    return f"{where} {word} than {first}: {last.ratio:.2f} times as fast{span}{cause}."


def side_names(names: Sequence[str], measured: Sequence[Measurement]) -> tuple[str, ...]:
    """Return what a reader calls the `measured` that a user named so: by what differs where a name ends in digits."""
    distinct = distinguishing_names([one.workload for one in measured])
    if len(set(distinct)) < len(distinct):
        return tuple(names)
    return tuple(words if _HASHED.fullmatch(name) else name for name, words in zip(names, distinct, strict=True))


def _differences(first: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return one line for each thing that differs, and the accuracies, for a faster training may be a worse one."""
    found = list(study_differences(first, other))
    if first.state != other.state:
        found.append(f"commit: {first.state} against {other.state}")
    found += [f"{name}: {one} against {two}" for name, one, two in software_changes(first, other)]
    if first.machine.fingerprint != other.machine.fingerprint:
        found.append(f"machine: {machine_line(first.machine)} against {machine_line(other.machine)}")
    if not found:
        found.append("same workload, commit, versions and machine: what differs is noise")
    found.append(f"test accuracy: {final_accuracy(first)} against {final_accuracy(other)}")
    return tuple(found)


def compared_cells(row: ComparedRow, change: float, ends: tuple[float, float] | None, verdict: str) -> tuple[str, ...]:
    """Return a row of a table: quantity, ranks, both values, the `change` with its interval, launches, `verdict`."""
    return (
        row.quantity,
        str(row.layout.ranks) if row.layout else "all",
        *(quantity_value(row.quantity, one) for one in row.values),
        signed(change),
        numbers.NONE if ends is None else " to ".join(map(signed, ends)),
        f"{row.launches[1]} against {row.launches[0]}",
        verdict,
    )


def change_words(quantity: str, slowdown: float) -> str:
    """Return a change in words: ``13.0 % less speed``."""
    what = "speed" if quantity.startswith((TIME, STEP)) else "efficiency"
    return f"{numbers.percent(abs(slowdown), 1)} {'less' if slowdown > 0 else 'more'} {what}"


def signed(fraction: float) -> str:
    """Return a change with its sign: ``+9.1 %``."""
    return f"{100 * fraction:+.1f}\u00a0%"


def software_changes(one: Measurement, other: Measurement) -> tuple[tuple[str, str, str], ...]:
    """Return name, old and new value of every version that differs, without the commit."""
    names = ("harness", "python", "tensorflow", "keras", "numpy", "mpi4py", "mpi_library")
    pairs = [(name, getattr(one.software, name), getattr(other.software, name)) for name in names]
    pairs.append(("reduction", ", ".join(one.reductions), ", ".join(other.reductions)))
    return tuple((name.replace("_", " "), a, b) for name, a, b in pairs if a != b)


def final_accuracy(measurement: Measurement) -> str:
    """Return the median test accuracy at the end over the launches with the most ranks."""
    known = [one.test_accuracy for one in measurement.of(measurement.layouts[-1]) if one.test_accuracy is not None]
    return numbers.percent(sorted(known)[len(known) // 2], 2) if known else NOT_MEASURED


def facts_of_two(first: Measurement, other: Measurement) -> tuple[Fact, ...]:
    """Return where, when, on which data and code two measurements were made."""
    both = (first, other)
    return facts(
        [
            ("Machine", "; ".join(dict.fromkeys(machine_words(one.machine) for one in both))),
            ("Date", days(launch.started for one in both for launch in one.launches)),
            ("Data", "; ".join(dict.fromkeys(f"{one.data_kind}, {one.data_id}" for one in both))),
            ("Commit", " against ".join(dict.fromkeys(one.state for one in both))),
            ("Accuracy", f"{final_accuracy(first)} against {final_accuracy(other)}"),
        ]
    )


def interval_figure(
    name: str, title: str, rows: Sequence[tuple[str, float, Interval | None]], scale: tuple[float, str]
) -> tuple[FigureBlock, ...]:
    """Return the figure of named values with their intervals, a line for each; none without any.

    `scale` is the value of no difference (0 for fractions), and the axis's label.
    """
    if not rows:
        return ()
    zero, label = scale
    names = [textwrap.fill(text, _LONGEST_NAME) for text, *_ in rows]
    lines = sum(1 + text.count("\n") for text in names)
    ends = [(text, value, one.low if one else value, one.high if one else value) for text, value, one in rows]

    def paint(axes: Axes) -> None:
        axes.axvline(zero, color=MUTED.light, linewidth=1.0)
        for line, (_, value, low, high) in enumerate(ends):
            axes.plot([low, high], [line, line], color=BLUE.light, linewidth=1.4)
            axes.plot([value], [line], color=BLUE.light, marker="o", linestyle="none")
        axes.set_yticks(range(len(ends)), names)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(label)
        if zero == 0.0:
            axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:g} %"))

    spoken = "; ".join(f"{text}: {value:.3f} ({low:.3f} to {high:.3f})" for text, value, low, high in ends)
    picture = draw(name, title, paint, (7.2, 1.2 + 0.16 * (len(rows) + lines)), numbers=spoken)
    table = pd.DataFrame(ends, columns=["what", "value", "low", "high"])
    return (FigureBlock(picture=picture, title=title, caption=f"{label}. Error bars: 95 % intervals.", table=table),)


HEADINGS = ("Quantity", "Ranks", "Reference", "Now", "Slowdown", "95 % interval", "Launches", "Verdict")
_CODES = {PASS: 0, SMALL: 0, IMPROVEMENT: 0, REGRESSION: 1, INCONCLUSIVE: 3}  # exit codes of a command
_EXPLAINED = (
    "A slowdown is of speed or efficiency. Below 0 it is a gain. Rows in brackets decide nothing. The intervals hold "
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
            Fact(name=name, value=numbers.percent(slowdown, 1), detail=f"slowdown; {_interval(found)}")
            for name, slowdown, found in measured[:5]
        ],
        facts=facts_of_two(reference, current),
        sections=[Section(title="Verdicts", name="verdicts", blocks=[table, *figures])],
        command=command,
        code=_CODES[check.verdict],
        kind="check",
        place=f"check-{workload.name}",
        title=f"{subject} against {reference.label}",
        when=current.newest,
        machine=machine,
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
    if not check.spent:
        return (
            f"CANNOT TELL: {name}: they did not train in turns, and between launches the machine's speed changes too: "
            "`harness check --decide` (make check DECIDE=1) trains both versions in turns."
        )
    open_rows = [row for row in check.deciding if row.verdict == INCONCLUSIVE]
    widest = max(open_rows, key=lambda row: row.slowdown, default=None)
    found = f"{signed(widest.slowdown)} ({_interval(widest.interval)}) {_place(widest)}" if widest else "no round"
    return f"INCONCLUSIVE: {name}: {found}, which leaves {practical} open{took}: give a larger BUDGET."


def _difference(row: ComparedRow) -> str:
    assert row.interval is not None
    low, high = sorted((abs(row.interval.low), abs(row.interval.high)))
    change = change_words(row.quantity, row.slowdown)
    return f"{change} {_place(row)} (95 % interval {100 * low:.1f} to {numbers.percent(high, 1)})"


def _place(row: ComparedRow) -> str:
    """Return where the row was measured: ``on 2 ranks``, or over the whole curve."""
    return f"on {numbers.ranks(row.layout.ranks)}" if row.layout else "over the curve"


def _verdict_cells(row: ComparedRow) -> tuple[str, ...]:
    """Return the row's cells, one for each of `HEADINGS`."""
    ends = None if row.interval is None else (row.interval.low, row.interval.high)
    return compared_cells(row, row.slowdown, ends, row.verdict if row.decides else f"({row.verdict})")


def _interval(found: Interval | None) -> str:
    return "no interval" if found is None else f"interval {100 * found.low:+.1f} to {100 * found.high:+.1f} %"


def _notes(check: Check) -> tuple[str, ...]:
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
        text = ", ".join(f"{heading}: {cell}" for heading, cell in zip(HEADINGS, _verdict_cells(row), strict=True))
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
