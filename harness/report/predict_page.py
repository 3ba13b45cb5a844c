"""`harness predict`: the curve beyond the machine, and all that it rests on."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from harness.analysis import numbers
from harness.analysis.stats import Interval
from harness.prediction.forecast import PredictedCurve
from harness.prediction.step_model import assumptions
from harness.report.answer import Answer, Banner, Cell, Fact, FigureBlock, Prose, Section, Table, Tile
from harness.report.axes import rank_axis, time_unit
from harness.report.figures.breakdown import EPOCH
from harness.report.svg import MUTED, draw, mark

_HEADINGS = (
    "Ranks", "Step", "Computation", "Slowest rank", "Allreduce", "Epoch", "Low to high", "Speedup", "Efficiency",
)  # fmt: skip
_T = TypeVar("_T")
_TIMES = ("step_s", "compute_s", "straggler_s", "allreduce_s", "epoch_s")
_LABELS = {part.column: part.label for part in EPOCH}


def prediction_answer(found: Sequence[PredictedCurve], network: str, algorithm: str, command: str) -> Answer:
    """Return what the `command` predicts of each workload, with the costs that `network` says.

    In a terminal: the table of the one workload, of several their last rows.
    """
    names = [one.name.replace(one.base.workload.name, one.base.workload.name.upper()) for one in found]
    tables = [_curve_table(name, one.frame) for name, one in zip(names, found, strict=True)]
    parts = [_section(name, one, table) for name, one, table in zip(names, found, tables, strict=True)]
    short = [replace(table, headings=_without(table.headings), rows=[*map(_without, table.rows)]) for table in tables]
    last = [[one.name, *table.rows[-1]] for one, table in zip(found, short, strict=True)]
    costs = f"{network}; allreduce: {algorithm}"
    return Answer(
        question=f"How would {', '.join(names)} scale to {int(found[0].frame['ranks'].max()):,} ranks?",
        sentence=f"Predicted, not measured: {'; '.join(map(_sentence, found))}.",
        table=short[0] if len(found) == 1 else Table(title="", headings=("Workload", *short[0].headings), rows=last),
        data={"network": network, "predicted": [_data(one) for one in found]},
        banners=[Banner(kind="warning", text="Nothing here was measured but what the predictions rest on.")],
        tiles=[_tile(name, one.frame.iloc[-1]) for name, one in zip(names, found, strict=True)],
        facts=(Fact(name="Network", value=costs), Fact(name="Base", value="; ".join(one.base.source for one in found))),
        sections=(*parts, Section(title="Figures", name="figures", blocks=_figures(names, found))),
        command=command,
        kind="predict",
        place="predict",
        title=", ".join(names),
    )


def _without(row: Sequence[_T]) -> list[_T]:
    """Return a row without the computation, for which a terminal is too narrow."""
    return [*row[:2], *row[3:]]


def _sentence(one: PredictedCurve) -> str:
    base, by_growth = one.base, ""
    if one.grown.frame is not None:
        last = one.grown.frame.iloc[-1]
        value, low, high = (last["speedup"] * last["epoch_s"] / last[f"epoch{end}_s"] for end in ("", "_high", "_low"))
        by_growth = (
            f", by growth models {numbers.significant(value)} "
            f"({numbers.significant(low)} to {numbers.significant(high)})"
        )
    return (
        f"{one.name} on {numbers.ranks(int(one.frame['ranks'].iloc[-1]))} is "
        f"{numbers.significant(one.speedup)} times as fast as on {numbers.ranks(base.ranks)} "
        f"({numbers.ratio_span(one.interval)} by the measured costs' intervals){by_growth}"
    )


def _section(name: str, one: PredictedCurve, table: Table) -> Section:
    """Return what one prediction rests on, its table, and its growth models or why there are none."""
    base, growth, grown = one.base, one.grown.growth, one.grown.frame
    anchor, rests = re.sub(r"\W+", "-", name.lower()), f"{one.name}: base is {base.source}."
    blocks: list[Prose | Table] = [Prose(text=" ".join([rests, *assumptions(base, one.frame["ranks"])])), table]
    if grown is None:
        blocks.append(Prose(text=f"{one.name}: no growth models: {growth.refused}."))
        return Section(title=name, name=anchor, blocks=blocks)
    held, test = one.grown.held, "No count can be spared to test them."
    if held:
        off = f"{numbers.percent(abs(held.error), 1)} too {'high' if held.error > 0 else 'low'}"
        inside = "inside" if held.covered else "outside"
        test = f"Fitted to the other counts alone they are {off} at {numbers.ranks(held.ranks)}, {inside} their band."
    counts = ", ".join(map(str, growth.counts))
    models = Table(
        title=f"{name}, growth models",
        headings=("Part of a step", "Error", "Model, p ranks"),
        rows=[(_LABELS[part.part], numbers.percent(part.error, 1), part.words) for part in growth.parts],
        note="Each part of a step has the model in the ranks with the least leave-one-out error, here as a part of a "
        "step: c0 + c1 p^i log2(p)^j, as in Extra-P. Waits and allreduces are of one synchronisation.",
    )
    rows = [
        _computed(
            f"{int(row['ranks']):,}",
            numbers.seconds(float(row["epoch_s"])),
            numbers.seconds_span(Interval(low=float(row["epoch_low_s"]), high=float(row["epoch_high_s"]))),
            numbers.significant(float(row["speedup"])),
        )
        for _, row in grown.iterrows()
    ]
    by_growth = Table(
        title=f"{name}, predicted by growth models",
        headings=("Ranks", "Epoch by growth", "95 % band", "Speedup"),
        rows=rows,
        texts=(),
    )
    blocks += [Prose(text=f"{base.workload.name}: growth models from {counts} ranks. {test}"), models, by_growth]
    return Section(title=name, name=anchor, blocks=blocks)


def _computed(first: str, *values: str) -> tuple[str | Cell, ...]:
    """Return a row of predictions."""
    return first, *(Cell(text=value, computed=True) for value in values)


def _curve_table(name: str, frame: pd.DataFrame) -> Table:
    rows = [
        _computed(
            numbers.count(row["ranks"]),
            *(numbers.seconds(row[part]) for part in _TIMES),
            numbers.seconds_span(Interval(low=row["epoch_low_s"], high=row["epoch_high_s"])),
            numbers.significant(row["speedup"]),
            numbers.percent(row["efficiency"]),
        )
        for row in frame.to_dict("records")
    ]
    return Table(title=f"{name}, predicted", headings=_HEADINGS, rows=rows, texts=())


def _data(one: PredictedCurve) -> Mapping[str, object]:
    growth, frame = one.grown.growth, one.grown.frame
    return {
        "workload": one.base.workload.name,
        "sync": one.base.workload.sync,
        "base": one.base.source,
        "points": one.frame.to_dict("records"),
        "growth": {
            "refused": growth.refused,
            "counts": growth.counts,
            "parts": [{"part": part.part, "model": part.words, "error": part.error} for part in growth.parts],
            "points": [] if frame is None else frame.to_dict("records"),
            "held_out": one.grown.held,
        },
    }


def _tile(name: str, last: "pd.Series[float]") -> Tile:
    detail = f"predicted speedup at {int(last['ranks']):,} ranks; efficiency {numbers.percent(last['efficiency'])}"
    return Tile(name=name, value=numbers.significant(last["speedup"]), detail=detail)


def _figures(names: Sequence[str], found: Sequence[PredictedCurve]) -> list[FigureBlock]:
    counts = sorted({int(ranks) for one in found for ranks in one.frame["ranks"]})
    curves = [(name, one.frame) for name, one in zip(names, found, strict=True)]

    def paint(axes: Axes) -> None:
        logarithmic = rank_axis(axes, counts)
        ends = [counts[0], counts[-1]]
        axes.plot(ends, [end / ends[0] for end in ends], color=MUTED.light, linestyle=(0, (5, 3)), label="ideal")
        for number, (name, frame) in enumerate(curves, start=1):
            look = mark(number)
            axes.plot(frame["ranks"], frame["speedup"], color=look.colour, linestyle=look.dashes, label=name)
        if logarithmic:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel("Predicted speedup")

    spoken = "; ".join(f"{n} {f['speedup'].iloc[-1]:.2f} at {int(f['ranks'].iloc[-1]):,} ranks" for n, f in curves)
    speedups = FigureBlock(
        picture=draw("predicted-speedup", "Predicted speedup against ranks", paint, numbers=spoken),
        title="Predicted speedup",
        caption="Lines: predicted, no launch was made. Dashed: ideal.",
        table=pd.concat([frame.assign(workload=name) for name, frame in curves]),
    )
    return [speedups, *(_growth_figure(n, o) for n, o in zip(names, found, strict=True) if o.grown.frame is not None)]


def _growth_figure(name: str, one: PredictedCurve) -> FigureBlock:
    """Draw the epoch time of both predictions beside what was measured."""
    frame, grown, points = one.frame, one.grown.frame, one.grown.points
    assert grown is not None  # the caller's choice
    unit, label = time_unit(float(max(frame["epoch_s"].max(), points["seconds"].max())))

    def paint(axes: Axes) -> None:
        rank_axis(axes, sorted({*map(int, frame["ranks"]), *map(int, points["ranks"])}))
        low, high = grown["epoch_low_s"] * unit, grown["epoch_high_s"] * unit
        axes.fill_between(grown["ranks"], low, high, color=mark(1).colour, alpha=0.18, linewidth=0)
        for look, of, said in ((mark(1), grown, "growth models"), (mark(2), frame, "network's costs")):
            axes.plot(of["ranks"], of["epoch_s"] * unit, color=look.colour, linestyle=look.dashes, label=said)
        axes.plot(points["ranks"], points["seconds"] * unit, "o", color=MUTED.light, label="measured")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"Epoch time ({label})")

    title = f"{name}: predicted epoch time"
    spoken = "; ".join(
        f"{int(ranks):,} ranks {numbers.seconds(float(epoch))}"
        for ranks, epoch in zip(grown["ranks"], grown["epoch_s"], strict=True)
    )
    return FigureBlock(
        picture=draw(f"growth-{name.lower()}", f"{title} against ranks", paint, numbers=spoken),
        title=title,
        caption="Lines and band: predicted, by growth models of the measured parts (95 %) and by the network's costs. "
        "Points: medians of launches.",
        table=grown,
    )
