"""Why a sweep does not scale, as a page: efficiencies, the bill, for whom ranks wait, and what launches proved."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from harness.analysis import numbers
from harness.analysis.efficiency import TREE, PointTree
from harness.analysis.time_breakdown import Bill
from harness.explain.evidence import Explanation
from harness.explain.prove import CONFIRMED, REFUTED, Proofs
from harness.explain.wording import (
    BILL_HEADINGS,
    LAST_HEADINGS,
    PROOF_HEADINGS,
    answer,
    bill_rows,
    bills_table,
    last_rows,
    proof_rows,
    tree_table,
)
from harness.report import captions
from harness.report.answer import FigureBlock, Table, Tile
from harness.report.axes import time_unit
from harness.report.figures.breakdown import EPOCH
from harness.report.launch_summary import machine_words, run_facts
from harness.report.provenance import sweeps_origin
from harness.report.publish import Page, PageSummary, publish
from harness.report.render import SCREEN, Head
from harness.report.svg import BLUE, INK, MUTED, ORANGE, PAPER, draw

FOLDER = "explain"  # reports/explain/<sweep>/
_MOST_COLUMNS = 9
_DEEPEST = 0.45  # of a cell's colour, behind text that must stay readable on light and on dark pages
_WORST = 0.5  # the efficiency from which a cell is not coloured deeper


def write_explanation(
    found: Explanation, proofs: Proofs | None, command: str, reports: Path, results: Path, *, style: str = SCREEN
) -> Path:
    """Write ``REPORTS/explain/<sweep>/index.html`` with its figures and return its path; `command` made it.

    `style` as in `render.write_figures`.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    name, runs = found.loaded.folder.resolve().name, found.loaded.valid
    subject = captions.subject(runs[0].point.workload)
    head = Head(
        question=f"Why does {subject} not scale better?",
        answer=answer(found),
        tiles=_tiles(found.trees[-1]),
        facts=run_facts(runs, found.loaded.runs),
        command=command,
    )
    figures = [_heat_map(found, subject), *([_waterfall(found.main, found, subject)] if found.main else [])]
    summary = PageSummary(
        kind="explain",
        title=f"{subject}: why it does not scale",
        answer=head.answer,
        when=max(run.started for run in runs),
        machine=machine_words(runs[0].provenance.machine),
    )
    values = {
        "tables": _tables(found, proofs),
        "banners": (),
        "tones_of": {CONFIRMED: "good", REFUTED: "bad"},
        "figures": figures,
        "lines": [f"{metric.name}: {metric.meaning}." for metric in TREE],
        "lines_title": "What the efficiencies mean",
    }
    page = Page(
        place=f"{FOLDER}/{name}", template="tables.html.j2", summary=summary, head=head, values=values,
        figures=figures, origin=sweeps_origin(command, [found.loaded]),
    )  # fmt: skip
    return publish(page, reports, results, style=style)


def _tiles(tree: PointTree) -> tuple[Tile, ...]:
    """Return the tree's main branches at the largest point."""
    shown = ("global efficiency", "parallel efficiency", "load balance", "communication efficiency")
    kept = [(name, tree.metrics[name]) for name in (*shown, "computation scaling") if name in tree.metrics]
    at = numbers.ranks(tree.ranks)
    return tuple(
        Tile(
            name=name.capitalize(),
            value=numbers.percent(one.value, 1),
            detail=f"{at}; 95 % interval {numbers.percent_span(one.interval)}" if one.interval else at,
        )
        for name, one in kept
    )


def _tables(found: Explanation, proofs: Proofs | None) -> list[Table]:
    headings, rows = tree_table(found.trees)
    tables = [
        Table(
            title="Efficiencies",
            headings=headings,
            rows=tuple(rows),
            texts=(),
            note="POP's standard metrics, of the median launch: the factors of each multiply up to it. In brackets the "
            "95 % interval, a bootstrap over launches, where there are 6. The ratio of a point's global efficiency to "
            "the base's is its efficiency in the report.",
        ),
        Table(
            title=f"The bill of an epoch on {numbers.ranks(found.main.ranks)}" if found.main else "",
            headings=BILL_HEADINGS,
            rows=tuple(bill_rows(found.main)) if found.main else (),
            texts=(),
            note=f"{_IDEAL} {found.network}.",
        ),
        _over_ranks("The bill of an epoch over rank counts", found.bills[:-1] and found.bills, "the epoch"),
        _over_ranks("The bill of a whole launch", found.launch_bills, "the launch"),
        Table(
            title=f"For whom {numbers.ranks(found.scaling.points[-1].ranks)} wait",
            headings=LAST_HEADINGS,
            rows=tuple(last_rows(found)),
            note="Medians over launches, seconds of an epoch, the most waited for first. The last rank of a call is "
            "the one that all others wait for; the last column: by how much a rank usually is later than the mean.",
        ),
    ]
    if proofs:
        note = (
            f"Launched {numbers.moment(proofs.made)} UTC on {numbers.ranks(proofs.ranks)}, in turn with the launch as "
            "it is; gains are parts of the epoch's time. What is expected was written down before. Confirmed: the two "
            "intervals overlap and noise does not hide the gain."
        )
        tables.insert(
            2, Table(title="Proof", headings=PROOF_HEADINGS, rows=tuple(proof_rows(proofs.proofs)), note=note)
        )
    return [table for table in tables if table.rows]


_IDEAL = (
    "What each cause takes beyond its ideal share, the base's part divided by the ratio of the ranks (weak scaling: "
    "unchanged). Below zero it is a gain. In brackets 95 % intervals over launches."
)


def _over_ranks(title: str, bills: tuple[Bill, ...], whole: str) -> Table:
    headings, rows = bills_table(bills)
    return Table(title=title, headings=headings, rows=tuple(rows), texts=(), note=f"Parts of {whole}. {_IDEAL}")


def _heat_map(found: Explanation, subject: str) -> FigureBlock:
    table = pd.DataFrame(
        [
            {
                "layout": tree.layout,
                "ranks": tree.ranks,
                "metric": name,
                "value": one.value,
                "low": one.interval.low if one.interval else None,
                "high": one.interval.high if one.interval else None,
            }
            for tree in found.trees
            for name, one in tree.metrics.items()
        ]
    )
    step = -(-len(found.trees) // _MOST_COLUMNS)
    shown = found.trees[::-1][::step][::-1]  # the largest is always among them
    last = shown[-1]
    spoken = ", ".join(f"{name} {numbers.percent(one.value, 1)}" for name, one in last.metrics.items())
    return FigureBlock(
        picture=draw(
            "efficiencies",
            f"Efficiencies of {subject} over rank counts",
            lambda axes: _cells(axes, shown),
            (2.6 + 0.75 * len(shown), 3.0),
            numbers=f"On {numbers.ranks(last.ranks)}: {spoken}",
        ),
        title="Efficiencies over rank counts",
        caption="POP's tree in percent; the deeper a cell, the more is lost, blue is above 100 %. "
        + captions.drawn(len(found.trees), len(shown)) * (step > 1)
        + captions.conditions(found.scaling, found.loaded.runs, bars=False),
        table=table,
    )


def _cells(axes: Axes, shown: tuple[PointTree, ...]) -> None:
    for row, metric in enumerate(TREE):
        for column, tree in enumerate(shown):
            one = tree.metrics.get(metric.name)
            value = 1.0 if one is None else one.value
            depth = min(abs(1 - value) / (1 - _WORST), 1.0) * _DEEPEST
            tone = ORANGE if value <= 1 else BLUE
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=tone.light, alpha=depth, linewidth=0))
            text = numbers.NONE if one is None else f"{100 * value:.1f}"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=INK.light)
    axes.set_xlim(0, len(shown))
    axes.set_ylim(len(TREE), 0)
    axes.set_xticks([column + 0.5 for column in range(len(shown))], [str(tree.ranks) for tree in shown])
    axes.set_yticks([row + 0.5 for row in range(len(TREE))], [f"{'   ' * m.depth}{m.name}" for m in TREE], ha="left")
    axes.tick_params(axis="y", pad=128, length=0)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("MPI ranks")


def _waterfall(bill: Bill, found: Explanation, subject: str) -> FigureBlock:
    items = sorted(bill.told, key=lambda item: -item.seconds)
    table = pd.DataFrame(
        [{"cause": item.cause.name, "seconds": item.seconds, "fraction": item.fraction} for item in bill.items]
    )
    spoken = ", ".join(f"{item.cause.name} {numbers.seconds(item.seconds)}" for item in items)
    rest = "What is below 0.1 % of the epoch is left out. "
    return FigureBlock(
        picture=draw(
            "bill",
            f"From the ideal to the measured epoch of {subject} on {numbers.ranks(bill.ranks)}",
            lambda axes: _steps(axes, bill),
            (4.8, 1.3 + 0.3 * len(items)),
            numbers=f"Ideal {numbers.seconds(bill.ideal)}, measured {numbers.seconds(bill.measured)}: {spoken}",
        ),
        title=f"From ideal to measured on {numbers.ranks(bill.ranks)}",
        caption="Each bar is what one cause adds to the ideal time, or saves; the colour is its part of the epoch. "
        f"The axis does not begin at 0. {rest}{captions.conditions(found.scaling, found.loaded.runs)}",
        table=table,
    )


def _steps(axes: Axes, bill: Bill) -> None:
    factor, unit = time_unit(bill.measured)
    looks = {part.column: part for part in EPOCH}
    at, labelled = bill.ideal, set[str]()
    names = ["ideal", *(item.cause.name for item in bill.told), "measured"]
    for row, item in enumerate(bill.told, start=1):
        look = looks[item.cause.part]
        label = None if look.column in labelled else look.label
        labelled.add(look.column)
        axes.barh(
            row, item.seconds * factor, left=at * factor, height=0.62, color=look.tone.light, hatch=look.hatch,
            edgecolor=PAPER.light, linewidth=0.6, label=label,
        )  # fmt: skip
        ends = [item.fraction_interval.low, item.fraction_interval.high] if item.fraction_interval else []
        places = [(at + end * bill.measured) * factor for end in ends]
        if places:
            axes.plot(places, [row, row], color=INK.light, linewidth=1, marker="|", markersize=5)
        at += item.seconds
        axes.plot([at * factor] * 2, [row - 0.31, row + 1], color=MUTED.light, linewidth=0.7)
    for row, seconds in ((0, bill.ideal), (len(names) - 1, bill.measured)):
        axes.plot(seconds * factor, row, marker="D", color=INK.light)
        axes.annotate(
            numbers.seconds(seconds), (seconds * factor, row), xytext=(7, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    low, high = axes.dataLim.intervalx
    axes.set_xlim(low - 0.04 * (high - low), high + 0.18 * (high - low))  # the value stands right of its mark
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"Time of an epoch ({unit})")
