"""Why a sweep does not scale: efficiencies, overheads, for whom ranks wait, and known causes.

A figure shows the way from the ideal to the measured epoch.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.analysis import numbers
from harness.analysis.inference import Interval
from harness.analysis.scaling import PointScaling
from harness.base.own_matplotlib import Axes
from harness.report import sweep_sentences
from harness.report.answer import Answer, Fact, FigureBlock, Items, Section, Table
from harness.report.figures.breakdown import EPOCH
from harness.report.svg import INK, MUTED, PAPER, draw, time_unit
from harness.report.sweep_facts import machine_words, run_facts, sweep_warnings
from harness.report.sweep_tables import causes_table, unequal_cores
from harness.why.known_causes import Finding
from harness.why.overheads import LEAST, TREE, Efficiency, Explanation, PointEfficiencies, PointOverheads

Rows = list[tuple[str, ...]]
MINUS = "\N{MINUS SIGN}"
_NAMED = 3  # causes in the answer
_TELL = 0.0005  # of the epoch: less has no words
_MOST_RANKS = 16  # in the table of those that are waited for
_IDEAL = (
    "What each cause takes beyond its ideal share, the base's part divided by the ratio of the ranks (weak scaling: "
    "unchanged). Below zero it is a gain. In brackets intervals over launches, which all hold with 95 %."
)


def explain_answer(found: Explanation, findings: Sequence[Finding], command: str) -> Answer:
    """Return why the sweep does not scale; the table is of the overheads of the largest point."""
    folder, runs = found.loaded.folder.resolve().name, found.loaded.valid
    subject = sweep_sentences.subject(runs[0].point.workload)
    tables = _tables(found, findings)
    meanings = Items(texts=[f"{metric.name}: {metric.meaning}." for metric in TREE])
    return Answer(
        question=f"Why does {subject} not scale better?",
        sentence=_sentence(found),
        table=_overheads_table(found.main, found) if found.main else None,
        banners=sweep_warnings(found.loaded, found.scaling, found.detail.launches),
        data={
            "trees": found.efficiencies,
            "bills": found.overheads,
            "launch_bills": found.launch_overheads,
            "last_ranks": found.detail.last,
            "network": found.network,
            "findings": findings,
        },
        tiles=_tiles(found.efficiencies[-1]),
        facts=run_facts(runs, found.loaded.launched, found.loaded.failed),
        sections=(
            *(Section(title=one.title, name=f"table-{n}", blocks=[one]) for n, one in enumerate(tables) if one.rows),
            Section(
                title="Figure", name="figures", blocks=[_waterfall(found.main, found, subject)] if found.main else []
            ),
            Section(title="What the efficiencies mean", name="meanings", blocks=[meanings]),
        ),
        command=command,
        kind="explain",
        place=f"explain/{folder}",
        title=f"{subject}: why it does not scale",
        when=max(run.started for run in runs),
        machine=machine_words(runs[0].provenance.machine),
    )


def _tables(found: Explanation, findings: Sequence[Finding]) -> list[Table]:
    headings, rows = tree_table(found.efficiencies)
    return [
        Table(
            title="Efficiencies",
            headings=headings,
            rows=rows,
            texts=(),
            note="POP's standard metrics, of means over launches (in turns all, else the middle half): the factors of "
            "each multiply up to it. In brackets the 95 % interval, a bootstrap over launches, where there are 6. The "
            "ratio of a point's global efficiency to the base's is its efficiency in the report.",
        ),
        *([_overheads_table(found.main, found)] if found.main else []),
        _over_ranks("Overheads of an epoch over rank counts", found.overheads[:-1] and found.overheads, "the epoch"),
        _over_ranks("Overheads of a whole launch", found.launch_overheads, "the launch"),
        Table(
            title=f"For whom {numbers.ranks(found.scaling.points[-1].ranks)} wait",
            headings=("Rank", "Waiting for it", "Of all waiting", "Calls it was last in", "Usually later by"),
            rows=_last_rows(found),
            note="Medians over launches, seconds of an epoch, the most waited for first. The last rank of a call is "
            "the one that all others wait for; the last column: by how much a rank usually is later than the mean.",
        ),
        causes_table(findings, "Known causes", overheads=True),
    ]


def _tiles(point: PointEfficiencies) -> tuple[Fact, ...]:
    """Return the tree's main branches at the largest point."""
    shown = ("global efficiency", "parallel efficiency", "load balance", "communication efficiency")
    kept = [(name, point.metrics[name]) for name in (*shown, "computation scaling") if name in point.metrics]
    at = numbers.ranks(point.ranks)
    return tuple(
        Fact(
            name=name.capitalize(),
            value=numbers.percent(one.value, 1),
            detail=f"{at}; 95 % interval {numbers.percent_span(one.interval)}" if one.interval else at,
        )
        for name, one in kept
    )


def _percent(value: float | None, interval: Interval | None = None, places: int = 1) -> str:
    """Return ``12.3 % (11.9 to 12.8)``, the interval where there is one."""
    text = numbers.percent(value, places).replace("-", MINUS)
    if interval is None:
        return text
    low, high = (f"{100 * end:.{places}f}".replace("-", MINUS) for end in (interval.low, interval.high))
    return f"{text} ({low} to {high})"


def tree_table(points: Sequence[PointEfficiencies], *, most: int | None = None) -> tuple[tuple[str, ...], Rows]:
    """Return headings and rows of the tree: a line for each metric, a column for each point.

    With `most` for a terminal: that many points at most, intervals of the last one only.
    """
    shown = list(points)
    if most is not None and len(shown) > most:
        shown = [shown[round(place)] for place in np.linspace(0, len(shown) - 1, most)]
    headings = ("Efficiency (POP)", *(numbers.ranks(point.ranks) for point in shown))

    def cell(found: Efficiency | None, point: PointEfficiencies) -> str:
        if found is None:
            return numbers.NONE
        certain = found.interval is None or found.interval.low == found.interval.high  # the base of a ratio
        bare = certain or (most is not None and point is not shown[-1])
        return _percent(found.value, None if bare else found.interval)

    rows = [
        (f"{'. ' * metric.depth}{metric.name}", *(cell(point.metrics.get(metric.name), point) for point in shown))
        for metric in TREE
    ]
    return headings, rows


def _as_it_ran(point: PointScaling | None) -> str:
    """Return what others took of an epoch of launches in turns, a sentence and a blank; else an empty text."""
    if point is None or point.ran_seconds is None:
        return ""
    taken = point.ran_seconds / point.seconds - 1
    return (
        f"Times are those on undisturbed cores; with what others took of the machine an epoch took "
        f"{numbers.seconds(point.ran_seconds)} ({'+' if taken >= 0 else MINUS}{numbers.percent(abs(taken), 1)}). "
    )


def _overheads_table(point: PointOverheads, found: Explanation) -> Table:
    """Return a line for every cause that costs or saves 0.1 % of the measured time, and their sum."""
    rows: Rows = [
        (
            item.cause.name,
            str(point.ranks),
            numbers.seconds(item.seconds).replace("-", MINUS),
            _percent(item.fraction, item.fraction_interval),
            _percent(item.share, item.share_interval, 0),
            item.cause.lowers or numbers.NONE,
        )
        for item in point.listed
    ]
    every = sum(item.seconds for item in point.items)
    known = all(item.share is not None for item in point.items)
    share = _percent(every / point.seconds, places=0) if known else numbers.NONE
    whole = _percent(every / point.measured, point.fraction_interval)
    rows.append(("all", str(point.ranks), numbers.seconds(every).replace("-", MINUS), whole, share, numbers.NONE))
    return Table(
        title=f"Overheads of an epoch on {numbers.ranks(point.ranks)}",
        headings=("Cause", "Ranks", "Beyond ideal", "Of the epoch", "Of all overhead", "Lowers"),
        rows=rows,
        wide=(5,),
        note=f"{_IDEAL} {_as_it_ran(found.point_of(point))}{unequal_cores(found.scaling)}{found.network}.",
    )


def _over_ranks(title: str, points: Sequence[PointOverheads], whole: str) -> Table:
    """Return the overheads of all points: a line for each cause that is worth one, a column for each point."""
    worth = {item.cause for point in points for item in point.listed}
    rows = [
        (items[0].cause.name, *(_percent(item.fraction, item.fraction_interval) for item in items))
        for items in zip(*(point.items for point in points), strict=True)
        if items[0].cause in worth
    ]
    every = ("all", *(_percent(point.seconds / point.measured, point.fraction_interval) for point in points))
    headings = ("Cause", *(numbers.ranks(point.ranks) for point in points))
    rows = [*rows, every] if points else []
    return Table(title=title, headings=headings, rows=rows, texts=(), note=f"Parts of {whole}. {_IDEAL}")


def _last_rows(found: Explanation) -> Rows:
    """Return for whom the ranks of the largest point waited most, medians over its launches; none without calls."""
    point = found.scaling.points[-1]
    launches = [one for one in found.detail.last[point.layout] if one]
    if not launches:
        return []
    values = np.median([[(one.seconds, one.share, one.calls, one.usual_s) for one in ranks] for ranks in launches], 0)
    rows: Rows = []
    for rank in sorted(range(len(values)), key=lambda rank: -values[rank][0])[:_MOST_RANKS]:
        waited, share, calls, usual = map(float, values[rank])
        later = numbers.seconds(usual) if usual >= 0 else f"{numbers.seconds(-usual)} sooner"
        rows.append((str(rank), numbers.seconds(waited), numbers.percent(share), numbers.percent(calls), later))
    return rows


def _sentence(found: Explanation) -> str:
    point = found.main
    if point is None:
        last = found.efficiencies[-1]
        useful = _percent(last.metrics["parallel efficiency"].value)
        alone = "there is no other point of the same work to compare"
        return f"{numbers.ranks(last.ranks).capitalize()}: {useful} of the time is useful; {alone}."
    fraction = point.seconds / point.measured
    if fraction < LEAST:
        gain = "takes less than the ideal time" if point.seconds < 0 else "has less than 1 % overhead in its epoch"
        return f"{numbers.ranks(point.ranks).capitalize()}: the point {gain}, there is nothing to explain."
    known = [item for item in point.listed if item.sure and item.cause.column != "unexplained_seconds"]
    costs = [item for item in known if item.seconds > 0][:_NAMED]
    gains = [item for item in known if item.seconds < 0]
    named = {item.cause.name: item.fraction for item in (*costs, *gains)}
    if abs(rest := fraction - sum(named.values())) >= _TELL:
        named["causes that are smaller or not sure"] = rest
    told = ", ".join(f"{name} {_percent(part)}" for name, part in named.items())
    return f"{numbers.ranks(point.ranks)} spend {_percent(fraction)} of the epoch beyond the ideal: {told}."


def _waterfall(point: PointOverheads, found: Explanation, subject: str) -> FigureBlock:
    """Draw what each cause adds to the ideal time of a point, or saves, up to the measured one."""
    table = pd.DataFrame(
        [{"cause": item.cause.name, "seconds": item.seconds, "fraction": item.fraction} for item in point.items]
    )
    spoken = ", ".join(f"{item.cause.name} {numbers.seconds(item.seconds)}" for item in point.listed)
    rest = "What is below 0.1 % of the epoch is left out. "
    return FigureBlock(
        picture=draw(
            "overheads",
            f"From the ideal to the measured epoch of {subject} on {numbers.ranks(point.ranks)}",
            lambda axes: _overhead_steps(axes, point),
            (4.8, 1.3 + 0.3 * len(point.listed)),
            numbers=f"Ideal {numbers.seconds(point.ideal)}, measured {numbers.seconds(point.measured)}: {spoken}",
        ),
        title=f"From ideal to measured on {numbers.ranks(point.ranks)}",
        caption="Each bar is what one cause adds to the ideal time, or saves; the colour is its part of the epoch. "
        f"The axis does not begin at 0. {rest}{sweep_sentences.conditions(found.scaling, found.loaded.runs)}",
        table=table,
    )


def _overhead_steps(axes: Axes, point: PointOverheads) -> None:
    factor, unit = time_unit(point.measured)
    bars = {part.column: part for part in EPOCH}
    at, labelled = point.ideal, set[str]()
    names = ["ideal", *(item.cause.name for item in point.listed), "measured"]
    for row, item in enumerate(point.listed, start=1):
        bar = bars[item.cause.part]
        label = None if bar.column in labelled else bar.label
        labelled.add(bar.column)
        axes.barh(
            row,
            item.seconds * factor,
            left=at * factor,
            height=0.62,
            color=bar.tone.light,
            hatch=bar.hatch,
            edgecolor=PAPER.light,
            linewidth=0.6,
            label=label,
        )
        ends = [item.fraction_interval.low, item.fraction_interval.high] if item.fraction_interval else []
        places = [(at + end * point.measured) * factor for end in ends]
        if places:
            axes.plot(places, [row, row], color=INK.light, linewidth=1, marker="|", markersize=5)
        at += item.seconds
        axes.plot([at * factor] * 2, [row - 0.31, row + 1], color=MUTED.light, linewidth=0.7)
    for row, seconds in ((0, point.ideal), (len(names) - 1, point.measured)):
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
