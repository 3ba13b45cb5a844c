"""What is predicted: `harness predict`'s curves, and the table of a sweep's page, with what they rest on."""

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.base.own_matplotlib import Axes
from harness.prediction.extrapolation import Extrapolation
from harness.prediction.predicted_curve import PredictedCurve
from harness.prediction.step_model import assumptions
from harness.report.answer import Answer, Banner, Cell, Fact, PageFigure, Prose, Section, Table
from harness.report.rank_axes import rank_axis, speedup_axis
from harness.report.svg import MUTED, draw, mark
from harness.report.table_cells import predicted_cell, seconds_cell

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


def prediction_answer(curves: Sequence[PredictedCurve], network: str, command: str) -> Answer:
    """Return what the `command` predicts of each workload, with the costs that `network` says.

    In a terminal: the table of the one workload, of several their last rows.
    """
    names = [curve.name.replace(curve.base.workload.name, curve.base.workload.name.upper()) for curve in curves]
    tables = []
    parts = []
    tiles = []
    for name, curve in zip(names, curves, strict=True):
        table = _curve_table(name, curve.frame)
        text = [f"{curve.name}: base is {curve.base.source}.", *assumptions(curve.base, curve.frame["ranks"])]
        anchor = re.sub(r"\W+", "-", name.lower())
        tables.append(table)
        parts.append(Section(title=name, name=anchor, elements=[Prose(text=" ".join(text)), table]))
        end = curve.frame.iloc[-1]
        detail = f"predicted speedup at {int(end['ranks']):,} ranks; efficiency {units.percent(end['efficiency'])}"
        tiles.append(Fact(name=name, value=units.significant(end["speedup"]), detail=detail))
    last = [[curve.name, *table.rows[-1]] for curve, table in zip(curves, tables, strict=True)]
    several = Table(title="", headings=("Workload", *_HEADINGS), rows=last, wide=(_HEADINGS.index("Computation") + 1,))
    costs = f"{network}; each allreduce by the cheapest algorithm"
    return Answer(
        question=f"How would {', '.join(names)} scale to {int(curves[0].frame['ranks'].max()):,} ranks?",
        sentence=f"Predicted, not measured: {'; '.join(map(_sentence, curves))}.",
        table=tables[0] if len(curves) == 1 else several,
        data={"network": network, "predicted": [_data(curve) for curve in curves]},
        banners=[Banner(kind="warning", text="Nothing here was measured except what the predictions rest on.")],
        tiles=tiles,
        facts=(
            Fact(name="Network", value=costs),
            Fact(name="Base", value="; ".join(curve.base.source for curve in curves)),
        ),
        sections=(*parts, Section(title="Figures", name="figures", elements=_figures(names, curves))),
        command=command,
        kind="predict",
        place="predict",
        title=", ".join(names),
    )


def _sentence(curve: PredictedCurve) -> str:
    return (
        f"{curve.name} on {units.ranks(int(curve.frame['ranks'].iloc[-1]))} is "
        f"{units.significant(curve.speedup)} times as fast as on {units.ranks(curve.base.ranks)} "
        f"({units.ratio_span(curve.interval)} by the measured costs' intervals)"
    )


def _computed(first: str, *values: str) -> tuple[str | Cell, ...]:
    return first, *(Cell(text=value, computed=True) for value in values)


def _curve_table(name: str, frame: pd.DataFrame) -> Table:
    rows = []
    for row in frame.to_dict("records"):
        times = (units.seconds(row[part]) for part in _TIMES)
        epoch = units.seconds_span(Interval(low=row["epoch_low_s"], high=row["epoch_high_s"]))
        speedup = units.significant(row["speedup"])
        rows.append(_computed(units.count(row["ranks"]), *times, epoch, speedup, units.percent(row["efficiency"])))
    wide = (_HEADINGS.index("Computation"),)
    return Table(title=f"{name}, predicted", headings=_HEADINGS, rows=rows, texts=(), wide=wide)


def _data(curve: PredictedCurve) -> Mapping[str, object]:
    return {
        "workload": curve.base.workload.name,
        "sync": curve.base.workload.sync,
        "base": curve.base.source,
        "points": curve.frame.to_dict("records"),
    }


def _figures(names: Sequence[str], curves: Sequence[PredictedCurve]) -> list[PageFigure]:
    frames = [(name, curve.frame) for name, curve in zip(names, curves, strict=True)]
    counts = sorted({int(ranks) for _, frame in frames for ranks in frame["ranks"]})

    def paint(axes: Axes) -> None:
        logarithmic = rank_axis(axes, counts)
        ends = [counts[0], counts[-1]]
        axes.plot(ends, [end / ends[0] for end in ends], color=MUTED.light, linestyle=(0, (5, 3)), label="ideal")
        for number, (name, frame) in enumerate(frames, start=1):
            look = mark(number)
            axes.plot(frame["ranks"], frame["speedup"], color=look.colour, linestyle=look.dashes, label=name)
        speedup_axis(axes, "Predicted speedup", logarithmic=logarithmic)

    ends = (
        f"{name} {frame['speedup'].iloc[-1]:.2f} at {int(frame['ranks'].iloc[-1]):,} ranks" for name, frame in frames
    )
    speedups = PageFigure(
        picture=draw("predicted-speedup", "Predicted speedup against ranks", paint, numbers="; ".join(ends)),
        title="Predicted speedup",
        caption="Lines: predicted, no launch was made. Dashed: ideal.",
        table=pd.concat([frame.assign(workload=name) for name, frame in frames]),
    )
    return [speedups]


def extrapolation_table(series: Extrapolation, names: Mapping[str, str]) -> Table:
    """Return a predicted series: speedup with its band, and the parts of a step."""
    rows: list[tuple[str | Cell, ...]] = []
    for point in series.points:
        efficiency = Cell(
            text=units.percent(point.efficiency),
            note=units.percent_span(point.efficiency_interval),
            value=point.efficiency,
            computed=True,
        )
        rows.append(
            (
                str(point.ranks),
                names[point.layout],
                predicted_cell(point),
                efficiency,
                seconds_cell(point.seconds, point.seconds_interval, computed=True),
                seconds_cell(point.compute_s, computed=True),
                seconds_cell(point.straggler_s, computed=True),
                seconds_cell(point.allreduce_s, computed=True),
            )
        )
    return Table(
        title=f"Predicted {series.where}, not measured",
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
        note=" ".join(series.rests),
    )
