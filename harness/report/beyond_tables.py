"""The tables of what is predicted beyond a machine: each series, and what was predicted and measured since."""

from collections.abc import Mapping, Sequence

from harness.analysis import numbers
from harness.prediction.beyond import Beyond, BeyondScore
from harness.report.answer import Cell, Table
from harness.report.sweep_tables import predicted_cell, ratio_cell, seconds_cell


def beyond_table(one: Beyond, names: Mapping[str, str]) -> Table:
    """Return a predicted series: speedup with its band, and the parts of a step."""
    rows: list[tuple[str | Cell, ...]] = [
        (
            str(point.ranks),
            names[point.layout],
            predicted_cell(point),
            Cell(text=numbers.percent(point.efficiency), note=numbers.percent_span(point.efficiency_interval),
                 value=point.efficiency, computed=True),
            seconds_cell(point.seconds, point.seconds_interval, computed=True),
            *(seconds_cell(part, computed=True) for part in (point.compute_s, point.straggler_s, point.allreduce_s)),
        )
        for point in one.points
    ]  # fmt: skip
    return Table(
        title=f"Predicted {one.where}, not measured",
        headings=("Ranks", "Layout", "Predicted\nspeedup", "Predicted\nefficiency", "Predicted\nepoch time",
                  "Computation\nof a step", "Wait for the\nslowest", "Sums"),
        rows=rows,
        left=0,
        texts=(1,),
        note=" ".join(one.rests),
    )  # fmt: skip


def beyond_scores(scores: Sequence[BeyondScore]) -> Table:
    """Return what was predicted beyond the machine beside what was measured since."""
    inside = sum(one.covered for one in scores)
    return Table(
        title="Predicted beyond the machine, measured since",
        headings=(
            "Ranks", "Where", "Predicted\nspeedup", "Measured\nspeedup", "Error of the\nprediction", "Within the\nband",
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
    )  # fmt: skip
