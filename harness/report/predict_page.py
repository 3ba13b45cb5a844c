"""What is predicted: `harness predict`'s curves, and the tables of a sweep's page.

All with what it rests on, and predictions scored by what was measured since.
"""

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from harness.analysis import numbers
from harness.analysis.inference import Interval
from harness.base.own_matplotlib import Axes
from harness.prediction.extrapolation import Extrapolation
from harness.prediction.kept_extrapolation import ExtrapolationScore
from harness.prediction.network_reference import NetworkReference
from harness.prediction.predicted_curve import PredictedCurve
from harness.prediction.step_model import assumptions
from harness.report.answer import Answer, Banner, Cell, Fact, FigureBlock, Prose, Section, Table
from harness.report.svg import MUTED, draw, mark, rank_axis, speedup_axis
from harness.report.sweep_tables import predicted_cell, ratio_cell, seconds_cell

_HEADINGS = (
    "Ranks",
    "Step",
    "Computation",
    "Slowest rank",
    "Allreduce",
    "Epoch",
    "Low to high",
    "Speedup",
    "Efficiency",
)
_TIMES = ("step_s", "compute_s", "straggler_s", "allreduce_s", "epoch_s")


def prediction_answer(found: Sequence[PredictedCurve], network: str, algorithm: str, command: str) -> Answer:
    """Return what the `command` predicts of each workload, with the costs that `network` says.

    In a terminal: the table of the one workload, of several their last rows.
    """
    names = [one.name.replace(one.base.workload.name, one.base.workload.name.upper()) for one in found]
    tables = [_curve_table(name, one.frame) for name, one in zip(names, found, strict=True)]
    parts = [_section(name, one, table) for name, one, table in zip(names, found, tables, strict=True)]
    last = [[one.name, *table.rows[-1]] for one, table in zip(found, tables, strict=True)]
    several = Table(title="", headings=("Workload", *_HEADINGS), rows=last, wide=(_HEADINGS.index("Computation") + 1,))
    costs = f"{network}; allreduce: {algorithm}"
    return Answer(
        question=f"How would {', '.join(names)} scale to {int(found[0].frame['ranks'].max()):,} ranks?",
        sentence=f"Predicted, not measured: {'; '.join(map(_sentence, found))}.",
        table=tables[0] if len(found) == 1 else several,
        data={"network": network, "predicted": [_data(one) for one in found]},
        banners=[Banner(kind="warning", text="Nothing here was measured except what the predictions rest on.")],
        tiles=[_tile(name, one.frame.iloc[-1]) for name, one in zip(names, found, strict=True)],
        facts=(Fact(name="Network", value=costs), Fact(name="Base", value="; ".join(one.base.source for one in found))),
        sections=(*parts, Section(title="Figures", name="figures", blocks=_figures(names, found))),
        command=command,
        kind="predict",
        place="predict",
        title=", ".join(names),
    )


def _sentence(one: PredictedCurve) -> str:
    return (
        f"{one.name} on {numbers.ranks(int(one.frame['ranks'].iloc[-1]))} is "
        f"{numbers.significant(one.speedup)} times as fast as on {numbers.ranks(one.base.ranks)} "
        f"({numbers.ratio_span(one.interval)} by the measured costs' intervals)"
    )


def _section(name: str, one: PredictedCurve, table: Table) -> Section:
    """Return what one prediction rests on, and its table."""
    anchor = re.sub(r"\W+", "-", name.lower())
    rests = f"{one.name}: base is {one.base.source}."
    text = " ".join([rests, *assumptions(one.base, one.frame["ranks"])])
    return Section(title=name, name=anchor, blocks=[Prose(text=text), table])


def _computed(first: str, *values: str) -> tuple[str | Cell, ...]:
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
    wide = (_HEADINGS.index("Computation"),)
    return Table(title=f"{name}, predicted", headings=_HEADINGS, rows=rows, texts=(), wide=wide)


def _data(one: PredictedCurve) -> Mapping[str, object]:
    return {
        "workload": one.base.workload.name,
        "sync": one.base.workload.sync,
        "base": one.base.source,
        "points": one.frame.to_dict("records"),
    }


def _tile(name: str, last: "pd.Series[float]") -> Fact:
    detail = f"predicted speedup at {int(last['ranks']):,} ranks; efficiency {numbers.percent(last['efficiency'])}"
    return Fact(name=name, value=numbers.significant(last["speedup"]), detail=detail)


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
        speedup_axis(axes, "Predicted speedup", logarithmic=logarithmic)

    spoken = "; ".join(f"{n} {f['speedup'].iloc[-1]:.2f} at {int(f['ranks'].iloc[-1]):,} ranks" for n, f in curves)
    speedups = FigureBlock(
        picture=draw("predicted-speedup", "Predicted speedup against ranks", paint, numbers=spoken),
        title="Predicted speedup",
        caption="Lines: predicted, no launch was made. Dashed: ideal.",
        table=pd.concat([frame.assign(workload=name) for name, frame in curves]),
    )
    return [speedups]


def beyond_table(one: Extrapolation, names: Mapping[str, str]) -> Table:
    """Return a predicted series: speedup with its band, and the parts of a step."""
    rows: list[tuple[str | Cell, ...]] = [
        (
            str(point.ranks),
            names[point.layout],
            predicted_cell(point),
            Cell(
                text=numbers.percent(point.efficiency),
                note=numbers.percent_span(point.efficiency_interval),
                value=point.efficiency,
                computed=True,
            ),
            seconds_cell(point.seconds, point.seconds_interval, computed=True),
            *(seconds_cell(part, computed=True) for part in (point.compute_s, point.straggler_s, point.allreduce_s)),
        )
        for point in one.points
    ]
    return Table(
        title=f"Predicted {one.where}, not measured",
        headings=(
            "Ranks",
            "Layout",
            "Predicted\nspeedup",
            "Predicted\nefficiency",
            "Predicted\nepoch time",
            "Computation\nof a step",
            "Wait for the\nslowest",
            "Allreduce",
        ),
        rows=rows,
        left=0,
        texts=(1,),
        note=" ".join(one.rests),
    )


def beyond_scores(scores: Sequence[ExtrapolationScore]) -> Table:
    """Return what was predicted beyond the machine beside what was measured since."""
    inside = sum(one.covered for one in scores)
    return Table(
        title="Predicted beyond the machine, measured since",
        headings=(
            "Ranks",
            "Where",
            "Predicted\nspeedup",
            "Measured\nspeedup",
            "Error of the\nprediction",
            "Within the\nband",
        ),
        rows=[
            (
                str(one.predicted.ranks),
                one.where,
                ratio_cell(one.predicted.speedup, one.predicted.speedup_interval, computed=True),
                ratio_cell(one.measured.speedup, one.measured.speedup_interval),
                Cell(text=f"{100 * one.error:+.1f} %", value=one.error),
                "yes" if one.covered else "no",
            )
            for one in scores
        ],
        left=0,
        texts=(1, -1),
        note=f"{inside} of {len(scores)} measured speedups lie within the predicted band.",
    )


def reference_table(reference: NetworkReference) -> Table:
    """Return what a step would take by this machine's network, beside what was measured."""
    return Table(
        title="Reference by this machine's network",
        headings=(
            "Ranks",
            "Computation\nof a step",
            "Slowest\nrank",
            "Allreduce",
            "Reference of\na step",
            "Measured\nstep",
            "Reference of\nthe speedup",
            "Measured\nspeedup",
        ),
        rows=[
            (
                str(one.point.ranks),
                *(
                    seconds_cell(seconds, computed=True)
                    for seconds in (one.compute_s, one.straggler_s, one.allreduce_s, one.step_s)
                ),
                seconds_cell(one.point.step_seconds),
                ratio_cell(one.speedup, computed=True),
                ratio_cell(one.point.speedup),
            )
            for one in reference.points
        ],
        left=0,
        texts=(),
        note=f"What a step would take with the computation of {reference.base}, the wait for the slowest of p ranks "
        f"from the measured distribution of compute times, and the cheapest allreduce with {reference.network}. "
        "Computed, not measured, and not a bound: cores that share memory and clock are not in it, and an allreduce in "
        "shared memory may be faster.",
    )
