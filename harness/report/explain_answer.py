"""Why a sweep does not scale: efficiencies, overheads, for whom ranks wait, and known causes.

A figure shows the way from the ideal to the measured epoch.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.analysis.scaling import PointScaling
from harness.base.own_matplotlib import Axes
from harness.report import captions, sweep_sentences
from harness.report.answer import Answer, Fact, Items, PageFigure, Section, Table
from harness.report.figures.breakdown import EPOCH
from harness.report.rank_axes import time_unit
from harness.report.run_words import machine_words
from harness.report.svg import INK, MUTED, PAPER, draw
from harness.report.sweep_facts import run_facts
from harness.report.sweep_tables import causes_table, unequal_cores
from harness.report.sweep_warnings import sweep_warnings
from harness.why.efficiencies import TALP_NAMES, TREE, Efficiency, PointEfficiencies
from harness.why.explanation import Explanation
from harness.why.known_causes import Finding
from harness.why.overheads import LEAST, LastRank, PointOverheads

Rows = list[tuple[str, ...]]
MINUS = "\N{MINUS SIGN}"
_NAMED = 3  # causes in the answer
_TELL = 0.0005  # of the epoch: less has no words
_MOST_RANKS = 16  # in the table of those that are waited for
_BRANCHES = (
    "global efficiency",
    "parallel efficiency",
    "load balance",
    "communication efficiency",
    "computation scaling",
)
_IDEAL = (
    "What each cause takes beyond its ideal share, the base's part divided by the ratio of the ranks (weak scaling: "
    "unchanged). Below zero it is a gain. In brackets intervals over launches, which all hold with 95 %."
)


def explain_answer(explanation: Explanation, findings: Sequence[Finding], command: str) -> Answer:
    """Return why the sweep does not scale; the table is of the overheads of the largest point."""
    folder = explanation.loaded.folder.resolve().name
    runs = explanation.loaded.valid
    subject = sweep_sentences.subject(runs[0].point.workload)
    tables = _tables(explanation, findings)
    meanings = Items(texts=[f"{metric.name}: {metric.meaning}." for metric in TREE])
    return Answer(
        question=f"Why does {subject} not scale better?",
        sentence=_sentence(explanation),
        table=_overheads_table(explanation.main, explanation) if explanation.main else None,
        banners=sweep_warnings(explanation.loaded, explanation.scaling, explanation.detail.launches),
        data={
            "trees": explanation.efficiencies,
            "talp": _talp(explanation.efficiencies),
            "bills": explanation.overheads,
            "launch_bills": explanation.launch_overheads,
            "last_ranks": explanation.detail.last,
            "network": explanation.network,
            "findings": findings,
        },
        tiles=_tiles(explanation.efficiencies[-1]),
        facts=run_facts(runs, explanation.loaded.launched, explanation.loaded.failed),
        sections=(
            *(
                Section(title=table.title, name=f"table-{number}", elements=[table])
                for number, table in enumerate(tables)
                if table.rows
            ),
            Section(
                title="Figure",
                name="figures",
                elements=[_waterfall(explanation.main, explanation, subject)] if explanation.main else [],
            ),
            Section(title="What the efficiencies mean", name="meanings", elements=[meanings]),
        ),
        command=command,
        kind="explain",
        place=f"explain/{folder}",
        title=f"{subject}: why it does not scale",
        when=max(run.started for run in runs),
        machine=machine_words(runs[0].provenance.machine),
    )


def _talp(points: Sequence[PointEfficiencies]) -> dict[str, dict[str, float]]:
    """Return the efficiencies of every layout by the names that TALP has for them."""
    by_layout: dict[str, dict[str, float]] = {}
    for point in points:
        named = by_layout.setdefault(point.layout, {})
        for name, efficiency in point.metrics.items():
            if name in TALP_NAMES:
                named[TALP_NAMES[name]] = efficiency.value
    return by_layout


def _tables(explanation: Explanation, findings: Sequence[Finding]) -> list[Table]:
    headings, rows = tree_table(explanation.efficiencies)
    return [
        Table(
            title="Efficiencies",
            headings=headings,
            rows=rows,
            texts=(),
            note="POP's standard metrics; the factors of each multiply up to it. In brackets the 95 % CI: over blocks "
            "of interleaved launches, from 3 on; else a bootstrap over launches, from 6 on. The ratio of a point's "
            "global efficiency to the base's is its efficiency in the report."
            f"{_met_launches(explanation.efficiencies)}",
        ),
        *([_overheads_table(explanation.main, explanation)] if explanation.main else []),
        _over_ranks(
            "Overheads of an epoch over rank counts", explanation.overheads[:-1] and explanation.overheads, "the epoch"
        ),
        _over_ranks("Overheads of a whole launch", explanation.launch_overheads, "the launch"),
        Table(
            title=f"For whom {units.ranks(explanation.scaling.points[-1].ranks)} wait",
            headings=("Rank", "Waiting for it", "Of all waiting", "Calls it was last in", "Usually later by"),
            rows=_last_rows(explanation),
            note="Medians over launches, seconds of an epoch, the most waited for first. The last rank of a call is "
            "the one that all others wait for; the last column: by how much a rank usually is later than the mean.",
        ),
        causes_table(findings, "Known causes", overheads=True),
    ]


def _met_launches(points: Sequence[PointEfficiencies]) -> str:
    """Return which points' efficiencies include interference, each after a blank; else an empty text."""
    sentences = [
        f" On {units.ranks(point.ranks)} those of {units.plural(point.met_launches, 'launch')} of {point.launches} "
        "include interference: other work met all rounds in which their steps were recorded."
        for point in points
        if point.met_launches
    ]
    return "".join(sentences)


def _tiles(point: PointEfficiencies) -> tuple[Fact, ...]:
    """Return the tree's main branches at the largest point."""
    tiles = []
    for name in _BRANCHES:
        metric = point.metrics.get(name)
        if metric is None:
            continue
        detail = units.ranks(point.ranks)
        if metric.interval:
            detail += f"; 95 % CI {units.percent_span(metric.interval)}"
        tiles.append(Fact(name=name.capitalize(), value=units.percent(metric.value, 1), detail=detail))
    return tuple(tiles)


def _percent(value: float | None, interval: Interval | None = None, places: int = 1) -> str:
    """Return ``12.3 % (11.9 to 12.8)``, the interval where there is one."""
    text = units.percent(value, places).replace("-", MINUS)
    if interval is None:
        return text
    low, high = (f"{100 * end:.{places}f}".replace("-", MINUS) for end in (interval.low, interval.high))
    return f"{text} ({low} to {high})"


def tree_table(points: Sequence[PointEfficiencies], *, most: int | None = None) -> tuple[tuple[str, ...], Rows]:
    """Return headings and rows of the tree: a line for each metric, a column for each point.

    With `most` for a terminal: that many points at most, intervals of the last one only.
    """
    columns = list(points)
    if most is not None and len(columns) > most:
        columns = [columns[round(place)] for place in np.linspace(0, len(columns) - 1, most)]
    headings = ("Efficiency (POP)", *(units.ranks(point.ranks) for point in columns))
    rows: Rows = []
    for metric in TREE:
        row = [f"{'. ' * metric.depth}{metric.name}"]
        for point in columns:
            with_interval = most is None or point is columns[-1]
            row.append(_efficiency(point.metrics.get(metric.name), with_interval=with_interval))
        rows.append(tuple(row))
    return headings, rows


def _efficiency(efficiency: Efficiency | None, *, with_interval: bool) -> str:
    if efficiency is None:
        return units.NONE
    interval = efficiency.interval if with_interval else None
    if interval and interval.low == interval.high:  # the base of a ratio
        interval = None
    return _percent(efficiency.value, interval)


def _as_it_ran(point: PointScaling | None) -> str:
    """Return what interference takes of an epoch of launches in turns, a sentence and a blank; else an empty text."""
    if point is None or point.ran_seconds is None:
        return ""
    taken = point.ran_seconds / point.seconds - 1
    return (
        f"Times are those excluding contended rounds; including interference an epoch took "
        f"{units.seconds(point.ran_seconds)} ({'+' if taken >= 0 else MINUS}{units.percent(abs(taken), 1)}). "
    )


def _overheads_table(point: PointOverheads, explanation: Explanation) -> Table:
    """Return a line for every cause that costs or saves 0.1 % of the measured time, and their sum."""
    rows: Rows = [
        (
            item.cause.name,
            str(point.ranks),
            units.seconds(item.seconds).replace("-", MINUS),
            _percent(item.fraction, item.fraction_interval),
            _percent(item.share, item.share_interval, 0),
            item.cause.lowers or units.NONE,
        )
        for item in point.listed
    ]
    seconds = sum(item.seconds for item in point.items)
    fraction = _percent(seconds / point.measured, point.fraction_interval)
    share = units.NONE
    if all(item.share is not None for item in point.items):
        share = _percent(seconds / point.seconds, places=0)
    rows.append(
        (
            "all",
            str(point.ranks),
            units.seconds(seconds).replace("-", MINUS),
            fraction,
            share,
            units.NONE,
        )
    )
    return Table(
        title=f"Overheads of an epoch on {units.ranks(point.ranks)}",
        headings=("Cause", "Ranks", "Beyond ideal", "Of the epoch", "Of all overhead", "Lowers"),
        rows=rows,
        wide=(5,),
        note=f"{_IDEAL} {_as_it_ran(explanation.point_of(point))}{unequal_cores(explanation.scaling)}"
        f"{explanation.network}.",
    )


def _over_ranks(title: str, points: Sequence[PointOverheads], of: str) -> Table:
    """Return the overheads of all points: a line for each cause that is worth one, a column for each point."""
    worth = {item.cause for point in points for item in point.listed}
    rows: Rows = []
    for items in zip(*(point.items for point in points), strict=True):
        if items[0].cause in worth:
            fractions = (_percent(item.fraction, item.fraction_interval) for item in items)
            rows.append((items[0].cause.name, *fractions))
    if points:
        totals = (_percent(point.seconds / point.measured, point.fraction_interval) for point in points)
        rows.append(("all", *totals))
    headings = ("Cause", *(units.ranks(point.ranks) for point in points))
    return Table(title=title, headings=headings, rows=rows, texts=(), note=f"Parts of {of}. {_IDEAL}")


def _last_rows(explanation: Explanation) -> Rows:
    """Return for whom the ranks of the largest point waited most, medians over its launches; none without calls."""
    point = explanation.scaling.points[-1]
    launches = [ranks for ranks in explanation.detail.last[point.layout] if ranks]
    if not launches:
        return []
    values = np.median([list(map(_waiting, ranks)) for ranks in launches], axis=0)
    rows: Rows = []
    for rank in sorted(range(len(values)), key=lambda rank: -values[rank][0])[:_MOST_RANKS]:
        waited, share, calls, usual = map(float, values[rank])
        later = units.seconds(usual) if usual >= 0 else f"{units.seconds(-usual)} sooner"
        rows.append(
            (
                str(rank),
                units.seconds(waited),
                units.percent(share),
                units.percent(calls),
                later,
            )
        )
    return rows


def _waiting(rank: LastRank) -> tuple[float, float, float, float]:
    return rank.seconds, rank.share, rank.calls, rank.usual_s


def _sentence(explanation: Explanation) -> str:
    point = explanation.main
    if point is None:
        last = explanation.efficiencies[-1]
        useful = last.metrics.get("parallel efficiency")
        share = f"{_percent(useful.value)} of the time is useful; " if useful else ""
        return f"{units.ranks(last.ranks).capitalize()}: {share}there is no other point of the same work to compare."
    fraction = point.seconds / point.measured
    if fraction < LEAST:
        gain = "takes less than the ideal time" if point.seconds < 0 else "has less than 1 % overhead in its epoch"
        return f"{units.ranks(point.ranks).capitalize()}: the point {gain}, there is nothing to explain."
    sure = [item for item in point.listed if item.sure and item.cause.column != "unexplained_seconds"]
    costs = [item for item in sure if item.seconds > 0][:_NAMED]
    gains = [item for item in sure if item.seconds < 0]
    named = {item.cause.name: item.fraction for item in (*costs, *gains)}
    if abs(rest := fraction - sum(named.values())) >= _TELL:
        named["causes that are smaller or not sure"] = rest
    causes = ", ".join(f"{name} {_percent(part)}" for name, part in named.items())
    return f"{units.ranks(point.ranks)} spend {_percent(fraction)} of the epoch beyond the ideal: {causes}."


def _waterfall(point: PointOverheads, explanation: Explanation, subject: str) -> PageFigure:
    """Draw what each cause adds to the ideal time of a point, or saves, up to the measured one."""
    table = pd.DataFrame(
        [{"cause": item.cause.name, "seconds": item.seconds, "fraction": item.fraction} for item in point.items]
    )
    spoken = ", ".join(f"{item.cause.name} {units.seconds(item.seconds)}" for item in point.listed)
    rest = "What is below 0.1 % of the epoch is left out. "
    return PageFigure(
        picture=draw(
            "overheads",
            f"From the ideal to the measured epoch of {subject} on {units.ranks(point.ranks)}",
            lambda axes: _overhead_steps(axes, point),
            (4.8, 1.3 + 0.3 * len(point.listed)),
            numbers=f"Ideal {units.seconds(point.ideal)}, measured {units.seconds(point.measured)}: {spoken}",
        ),
        title=f"From ideal to measured on {units.ranks(point.ranks)}",
        caption="Each bar is what one cause adds to the ideal time, or saves; the colour is its part of the epoch. "
        f"The axis does not begin at 0. {rest}"
        f"{captions.conditions_caption(explanation.scaling, explanation.loaded.runs)}",
        table=table,
    )


def _overhead_steps(axes: Axes, point: PointOverheads) -> None:
    factor, unit = time_unit(point.measured)
    bars = {part.column: part for part in EPOCH}
    seconds_so_far = point.ideal
    labelled: set[str] = set()
    names = ["ideal", *(item.cause.name for item in point.listed), "measured"]
    for row, item in enumerate(point.listed, start=1):
        bar = bars[item.cause.part]
        label = None if bar.column in labelled else bar.label
        labelled.add(bar.column)
        axes.barh(
            row,
            item.seconds * factor,
            left=seconds_so_far * factor,
            height=0.62,
            color=bar.tone.light,
            hatch=bar.hatch,
            edgecolor=PAPER.light,
            linewidth=0.6,
            label=label,
        )
        ends = [item.fraction_interval.low, item.fraction_interval.high] if item.fraction_interval else []
        places = [(seconds_so_far + end * point.measured) * factor for end in ends]
        if places:
            axes.plot(places, [row, row], color=INK.light, linewidth=1, marker="|", markersize=5)
        seconds_so_far += item.seconds
        axes.plot([seconds_so_far * factor] * 2, [row - 0.31, row + 1], color=MUTED.light, linewidth=0.7)
    for row, seconds in ((0, point.ideal), (len(names) - 1, point.measured)):
        axes.plot(seconds * factor, row, marker="D", color=INK.light)
        axes.annotate(
            units.seconds(seconds),
            (seconds * factor, row),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    low, high = axes.dataLim.intervalx
    axes.set_xlim(low - 0.04 * (high - low), high + 0.18 * (high - low))  # the value stands right of its mark
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"Time of an epoch ({unit})")
