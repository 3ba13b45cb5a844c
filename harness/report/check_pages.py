"""`harness check` and `harness compare` as pages: the verdict first, then what it rests on."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from harness.analysis import numbers
from harness.analysis.stats import Interval
from harness.regression.check_wording import (
    COMPARE_HEADINGS,
    HEADINGS,
    accuracy,
    cells,
    comparison_cells,
    differences,
    headline,
    place,
    side_names,
)
from harness.regression.compare import Comparison, sentence
from harness.regression.significance import IMPROVEMENT, REGRESSION
from harness.regression.verdict import Check
from harness.report import captions
from harness.report.answer import Fact, FigureBlock, Table, Tile, facts
from harness.report.launch_summary import days, machine_words
from harness.report.provenance import measured_origin
from harness.report.publish import Page, PageSummary, publish
from harness.report.render import Head
from harness.report.svg import BLUE, MUTED, draw
from harness.schema.measurement import Measurement

_LONGEST_NAME = 40  # signs, which leave most of the figure to its axes
_TONES = {REGRESSION: "bad", IMPROVEMENT: "good", "pass": "good", "better": "good", "worse": "bad"}
_EXPLAINED = (
    "A loss below 0 is a gain. Rows in brackets say where a loss comes from and decide nothing. All intervals of this "
    "table hold together with 95 %."
)


def write_check(check: Check, notes: Sequence[str], command: str, reports: Path, results: Path | None = None) -> Path:
    """Write ``REPORTS/check-<workload>/index.html`` and return its path; `command` gave the check.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    measured = [row for row in check.rows if row.decides]
    rows = [(f"{one.quantity} {place(one)}", one.loss, one.interval) for one in measured]
    figures = _forest(
        "losses",
        "Loss against the reference, with 95 % intervals",
        [_ends(*row) for row in rows],
        (0.0, "Loss (above 0 is worse)"),
    )
    current = check.current if check.current.launches else check.reference
    workload = check.reference.workload
    head = Head(
        question=f"Did {captions.subject(workload)} get worse since '{check.reference.label}'?",
        answer=headline(check),
        tiles=tuple(
            Tile(name=name, value=numbers.percent(loss, 1), detail=f"loss; {_interval(found)}")
            for name, loss, found in rows[:5]
        ),
        facts=_facts(check.reference, current),
        command=command,
    )
    table = Table(title="Verdicts", headings=HEADINGS, rows=tuple(map(cells, check.rows)), note=_EXPLAINED)
    summary = PageSummary(
        kind="check",
        title=f"{captions.subject(workload)} against {check.reference.label}",
        answer=head.answer,
        when=current.newest,
        machine=machine_words(current.machine),
    )
    sides = [check.reference, check.current]
    page = _page(f"check-{workload.name}", summary, head, [table], figures, sides, notes)
    return publish(page, reports, results)


def write_comparison(
    names: Sequence[str],
    measured: Sequence[Measurement],
    found: Sequence[Sequence[Comparison]],
    reports: Path,
    command: str,
    results: Path | None = None,
) -> Path:
    """Write the page that sets the `measured`, called `names`, against the first of them; return its path.

    `found` are the comparisons of each but the first.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    sides = tuple(Path(name).name for name in names)
    names = side_names(names, measured)
    others = names[1:]
    rows = [
        (
            (f"{name}: " if len(others) > 1 else "")
            + one.quantity
            + (f" on {numbers.ranks(one.layout.ranks)}" if one.layout else ""),
            one,
        )
        for name, comparisons in zip(others, found, strict=True)
        for one in comparisons
    ]
    figures = _forest(
        "ratios",
        f"Times as good as {names[0]}, with 95 % intervals",
        [_ends(text, one.ratio, one.interval) for text, one in rows],
        (1.0, "Ratio (above 1 is better)"),
    )
    answers = [sentence(name, names[0], list(one)) for name, one in zip(others, found, strict=True)]
    question = f"Is {' or '.join(others)} faster than {names[0]}?"
    head = Head(question=question, answer=" ".join(answers), facts=_facts(*measured[:2]), command=command)
    summary = PageSummary(
        kind="compare",
        title=f"{captions.subject(measured[0].workload)}: {' and '.join(others)} against {names[0]}",
        answer=head.answer,
        when=max(one.newest for one in measured),
        machine=machine_words(measured[-1].machine),
        sides=tuple(sorted(sides)),
    )
    where = re.sub(r"[^\w.-]+", "_", "-".join(["compare", *sides]))[:200]
    page = _page(where, summary, head, _tables(names, measured, found), figures, measured)
    return publish(page, reports, results)


def _tables(
    names: Sequence[str], measured: Sequence[Measurement], found: Sequence[Sequence[Comparison]]
) -> list[Table]:
    """Return a table of ratios for each of `names` but the first, with what differs below it."""
    return [
        Table(
            title=f"{name} against {names[0]}",
            headings=COMPARE_HEADINGS,
            rows=tuple(map(comparison_cells, one)),
            note="; ".join(differences(measured[0], other)) + ".",
        )
        for name, other, one in zip(names[1:], measured[1:], found, strict=True)
    ]


def _page(
    place: str,
    summary: PageSummary,
    head: Head,
    tables: Sequence[Table],
    figures: Sequence[FigureBlock],
    sides: Sequence[Measurement],
    notes: Sequence[str] = (),
) -> Page:
    values = {
        "banners": (), "tables": tables, "figures": figures, "lines": notes, "lines_title": "What to know",
        "tones_of": _TONES,
    }  # fmt: skip
    return Page(
        place=place, template="tables.html.j2", summary=summary, head=head, values=values, figures=figures,
        origin=measured_origin(head.command, sides),
    )  # fmt: skip


def _interval(found: Interval | None) -> str:
    return "no interval" if found is None else f"interval {100 * found.low:+.1f} to {100 * found.high:+.1f} %"


def _ends(name: str, value: float, found: Interval | None) -> tuple[str, float, float, float]:
    return (name, value, found.low if found else value, found.high if found else value)


def _facts(first: Measurement, other: Measurement) -> tuple[Fact, ...]:
    both = (first, other)
    starts = [launch.started for one in both for launch in one.launches]
    return facts(
        [
            ("Machine", "; ".join(dict.fromkeys(machine_words(one.machine) for one in both))),
            ("Date", days(starts)),
            ("Data", "; ".join(dict.fromkeys(f"{one.data_kind}, {one.data_id}" for one in both))),
            ("Commit", " against ".join(dict.fromkeys(one.state for one in both))),
            ("Accuracy", f"{accuracy(first)} against {accuracy(other)}"),
        ]
    )


def _forest(
    name: str, title: str, rows: Sequence[tuple[str, float, float, float]], scale: tuple[float, str]
) -> tuple[FigureBlock, ...]:
    """Return the figure of values with their intervals, a line for each; none without any."""
    if not rows:
        return ()
    zero, label = scale
    names = [textwrap.fill(text, _LONGEST_NAME) for text, *_ in rows]
    lines = sum(1 + text.count("\n") for text in names)

    def paint(axes: Axes) -> None:
        axes.axvline(zero, color=MUTED.light, linewidth=1.0)
        for line, (_, value, low, high) in enumerate(rows):
            axes.plot([low, high], [line, line], color=BLUE.light, linewidth=1.4)
            axes.plot([value], [line], color=BLUE.light, marker="o", linestyle="none")
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(label)
        if zero == 0.0:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))

    table = pd.DataFrame(rows, columns=["what", "value", "low", "high"])
    spoken = "; ".join(f"{text}: {value:.3f} ({low:.3f} to {high:.3f})" for text, value, low, high in rows)
    picture = draw(name, title, paint, (7.2, 1.2 + 0.16 * (len(rows) + lines)), numbers=spoken)
    caption = f"{label}. Strokes: 95 % intervals."
    return (FigureBlock(picture=picture, title=title, caption=caption, table=table),)
