"""What a comparison of two or more measurements found: ratios with intervals, and whether they matter."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis import units
from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.analysis.sessions import EFFICIENCY, STEP
from harness.regression.baselines import machine_line, study_differences
from harness.regression.launch_comparison import ALIKE, BETTER, OPEN, WORSE, ComparedRow
from harness.regression.measurement import TIME, Measurement
from harness.regression.variant_turns import Comparison
from harness.regression.variants import Variant
from harness.report import sweep_sentences
from harness.report.answer import Answer, Element, Section, Table
from harness.report.measurement_words import (
    compared_cells,
    facts_of_two,
    final_accuracy,
    interval_figure,
    measurement_warnings,
    place,
    software_changes,
)
from harness.report.run_words import machine_words
from harness.schema.setting_words import distinguishing_names

_HEADINGS = ("Quantity", "Ranks", "First", "Other", "Gain", "95 % CI", "Launches", "Meaning")
_NAME = "Variant or sweep"
_WIDE = ("Launches",)  # of a terminal's 80 columns
_WIDE_OF_SEVERAL = ("First", "Other", "Launches")
_APART = (
    "launched in different sessions, between which the machine's speed changes too: variants (commits, scripts, "
    "settings, environments, Pythons) are trained interleaved by `harness compare commit:COMMIT here`"
)
_NOTE = "First and Other are geometric means, Gain is of their ratio, with Welch's interval over the launches."
_NOTE_OF_TURNS = (
    "First and Other are medians of the step's time over blocks. Gain is of an epoch's speed, within rounds, with "
    "Student's interval over blocks; all that decide hold together at 95 %. The efficiency decides nothing."
)
_HASHED = re.compile(r".*-[0-9a-f]{8}/?$")  # Sweep.name


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """One measurement, called `name`, against the first, called `first`; `label` leads its lines where it is one of
    several. `left_out` of its launches are the first's too."""

    name: str
    first: str
    label: str
    rows: Sequence[ComparedRow]
    differences: tuple[str, ...]
    left_out: int

    def notes(self) -> list[str]:
        """Return what differs beside the times."""
        notes = []
        if self.left_out:
            notes.append(f"{self.name}: {self.left_out} launches that are in {self.first} too are left out")
        notes += [self.label + difference for difference in self.differences]
        if any(row.apart for row in self.rows):
            notes.append(f"{self.label}{_APART}")
        return notes

    def data(self) -> dict[str, object]:
        """Return what JSON has of it."""
        rows = [
            {
                "quantity": row.quantity,
                "layout": row.layout,
                "values": row.values,
                "launches": row.launches,
                "ratio": row.ratio,
                "apart": row.apart,
                "interval": row.ratio_interval,
                "meaning": row.verdict,
            }
            for row in self.rows
        ]
        return {"other": self.name, "first": self.first, "differences": self.differences, "rows": rows}

    def table_rows(self) -> list[tuple[str, ...]]:
        """Return its lines of the table."""
        name = (self.name,) if self.label else ()
        rows = []
        for row in self.rows:
            interval = row.ratio_interval
            ends = (interval.low - 1, interval.high - 1) if interval else None
            rows.append((*name, *compared_cells(row, row.ratio - 1, ends, row.verdict)))
        return rows


def comparison_answer(
    sides: Sequence[str],
    measured: Sequence[Measurement],
    compared: Sequence[Sequence[ComparedRow]],
    left_out: Sequence[int],
    command: str,
) -> Answer:
    """Return what sets the `measured`, which the user named `sides`, against the first of them.

    `compared` has the rows of each but the first, `left_out` how many of its launches are the first's too.
    """
    first, *others = measured
    names = side_names(sides, measured)
    comparisons = []
    for name, measurement, rows, shared in zip(names[1:], others, compared, left_out, strict=True):
        differences = list(_differences(first, measurement))
        if not differences:
            differences.append("same workload, commit, versions and machine: what differs is noise")
        differences.append(f"test accuracy: {final_accuracy(first)} against {final_accuracy(measurement)}")
        comparisons.append(
            _Pair(
                name=name,
                first=names[0],
                label=f"{name}: " if len(others) > 1 else "",
                rows=rows,
                differences=tuple(differences),
                left_out=shared,
            )
        )
    return _answer(names, measured, comparisons, command, [Path(name).name for name in sides], _NOTE)


def variants_answer(comparison: Comparison, command: str) -> Answer:
    """Return what sets the variants that trained in turns against the first of them."""
    names = [variant.name for variant in comparison.variants]
    first, *others = comparison.measured
    pairs = []
    for variant, measurement, rows in zip(comparison.variants[1:], others, comparison.rows, strict=True):
        differences = [*_variant_differences(comparison.variants[0], variant), *_differences(first, measurement)]
        differences.append(f"test accuracy: {final_accuracy(first)} against {final_accuracy(measurement)}")
        pairs.append(
            _Pair(
                name=variant.name,
                first=names[0],
                label=f"{variant.name}: " if len(others) > 1 else "",
                rows=rows,
                differences=tuple(differences),
                left_out=0,
            )
        )
    folders = [first.workload.name, *names]  # the same variants on another workload have another page
    answer = _answer(names, comparison.measured, pairs, command, folders, _NOTE_OF_TURNS)
    spent = f"{comparison.spent}; the records are in {comparison.folder}, a folder for each by its number, from 0"
    return replace(answer, notes=[*answer.notes, f"Interleaved on the same cores: {spent}."])


def _variant_differences(first: Variant, second: Variant) -> list[str]:
    """Return a line for each thing in which two variants are started otherwise."""
    differences = []
    for name in sorted({*first.variables, *second.variables}):
        values = [_value(variant.variables, name) for variant in (first, second)]
        if values[0] != values[1]:
            differences.append(f"{name}: {values[0]} against {values[1]}")
    if first.python != second.python:
        differences.append(f"Python: {first.python} against {second.python}")
    if first.prefix != second.prefix:
        prefixes = [shlex.join(variant.prefix) or "nothing" for variant in (first, second)]
        differences.append(f"ranks started by: {prefixes[0]} against {prefixes[1]}")
    return differences


def _value(variables: Mapping[str, str | None], name: str) -> str:
    value = variables.get(name, "as here")
    return "not set" if value is None else value


def _answer(
    names: Sequence[str],
    measured: Sequence[Measurement],
    comparisons: Sequence[_Pair],
    command: str,
    folders: Sequence[str],
    note: str,
) -> Answer:
    """Return the answer of `comparisons` of what readers call `names`; `note` explains its table."""
    first = measured[0]
    table = _table(comparisons, note)
    sentences = [comparison_sentence(comparison.name, names[0], comparison.rows) for comparison in comparisons]
    rows = [row for comparison in comparisons for row in comparison.rows]
    notes: list[str] = []
    for comparison in comparisons:
        notes += comparison.notes()
    return Answer(
        question=f"Is {' or '.join(names[1:])} faster than {names[0]}?",
        sentence=" ".join(sentences),
        table=table,
        banners=measurement_warnings(names, measured, rows),
        data={"comparisons": [comparison.data() for comparison in comparisons]},
        notes=notes,
        facts=facts_of_two(*measured[:2]),
        sections=[Section(title=table.title, name="ratios-table", elements=_ratios(table, comparisons))],
        command=command,
        kind="compare",
        place=re.sub(r"[^\w.-]+", "_", "-".join(["compare", *folders]))[:200],
        title=f"{sweep_sentences.subject(first.workload)}: {table.title}",
        when=max(measurement.newest for measurement in measured),
        machine=machine_words(measured[-1].machine),
        sides=tuple(sorted(folders)),
    )


def _ratios(table: Table, comparisons: Sequence[_Pair]) -> list[Element]:
    """Return the table and the figure of all ratios; nothing where nothing could be compared."""
    points = []
    for comparison in comparisons:
        for row in comparison.rows:
            points.append((f"{comparison.label}{row.quantity} {place(row)}", row.ratio, row.ratio_interval))
    if not points:
        return []
    title = f"Times as good as {comparisons[0].first}, with 95 % CIs"
    return [table, *interval_figure("ratios", title, points, (1.0, "Ratio (above 1 is better)"))]


def _table(comparisons: Sequence[_Pair], note: str) -> Table:
    is_several = len(comparisons) > 1
    headings = (_NAME, *_HEADINGS) if is_several else _HEADINGS
    wide = _WIDE_OF_SEVERAL if is_several else _WIDE
    rows: list[tuple[str, ...]] = []
    for comparison in comparisons:
        rows += comparison.table_rows()
    return Table(
        title=f"{' and '.join(comparison.name for comparison in comparisons)} against {comparisons[0].first}",
        headings=headings,
        rows=rows,
        tones={BETTER: "good", WORSE: "bad"},
        left=2 if is_several else 1,
        note=note,
        wide=[headings.index(heading) for heading in wide],
    )


def comparison_sentence(name: str, first: str, rows: Sequence[ComparedRow]) -> str:
    """Return in plain words what `rows` (of one measurement, called `name`) say over `first`.

    The point with the most ranks speaks: it is what a scaling study is about.
    """
    times = [row for row in rows if row.quantity in (TIME, STEP)]
    if not times:
        return f"{name} and {first} share no layout with the same rows: nothing to compare."
    last = times[-1]
    assert last.layout is not None
    where = f"On {last.layout.ranks} rank{'s' if last.layout.ranks > 1 else ''} {name} is"
    interval = last.ratio_interval
    span = f" (95 % CI {units.ratio_span(interval)})" if interval else ""
    if last.verdict == OPEN:
        fewest = f"{FEWEST_BLOCKS} blocks" if last.quantity == STEP else f"{FEWEST_BLOCKS} launches of each"
        why = "the interval leaves it open" if interval else f"{fewest} are needed to judge"
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
    distinct = distinguishing_names([measurement.workload for measurement in measured])
    if len(set(distinct)) < len(distinct):
        return tuple(names)
    return tuple(words if _HASHED.fullmatch(name) else name for name, words in zip(names, distinct, strict=True))


def _differences(first: Measurement, second: Measurement) -> tuple[str, ...]:
    """Return one line for each recorded thing that differs."""
    differences = list(study_differences(first, second))
    if first.state != second.state:
        differences.append(f"commit: {first.state} against {second.state}")
    differences += [f"{name}: {old} against {new}" for name, old, new in software_changes(first, second)]
    if first.machine.fingerprint != second.machine.fingerprint:
        differences.append(f"machine: {machine_line(first.machine)} against {machine_line(second.machine)}")
    return tuple(differences)
