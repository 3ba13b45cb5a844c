"""The tables of what is predicted or computed, set apart from what was measured, and of predictions scored since."""

from collections.abc import Mapping, Sequence

from harness.analysis import numbers
from harness.prediction.beyond import Beyond, BeyondScore
from harness.prediction.forecast import NetworkReference, Score
from harness.report.answer import Cell, Table
from harness.report.sweep_tables import NOT_MEASURED, predicted_cell, ratio_cell, seconds_cell


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


def reference_table(reference: NetworkReference) -> Table:
    """Return what a step would take by this machine's network, beside what was measured."""
    return Table(
        title="Reference by this machine's network",
        headings=(
            "Ranks", "Computation\nof a step", "Slowest\nrank", "Allreduce", "Reference of\na step", "Measured\nstep",
            "Reference of\nthe speedup", "Measured\nspeedup",
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
    )  # fmt: skip


def score_table(title: str, scores: Sequence[Score], note: str) -> Table:
    """Return a prediction that was made before beside what was measured since."""
    rows = []
    for one in scores:
        measured: list[str | Cell] = [NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, "not measured since"]
        if one.measured and one.error is not None:
            measured = [
                seconds_cell(one.measured.seconds, one.measured.seconds_interval),
                ratio_cell(one.measured.speedup),
                Cell(text=f"{100 * one.error:+.1f} %", value=one.error),
                "yes" if one.covered else "no",
            ]
        predicted = seconds_cell(one.predicted.epoch_s, one.interval, computed=True)
        rows.append([str(one.ranks), predicted, ratio_cell(one.predicted.speedup, computed=True), *measured])
    return Table(
        title=title,
        headings=(
            "Ranks", "Predicted\nepoch time", "Predicted\nspeedup", "Measured\nepoch time", "Measured\nspeedup",
            "Error of the\nprediction", "Within the\npredicted range",
        ),
        rows=rows,
        left=0,
        note=note,
    )  # fmt: skip
