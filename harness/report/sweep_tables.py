"""The tables of a sweep's page, each from the numbers that it shows. Predicted and computed values are set apart."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from harness.analysis import numbers
from harness.analysis.accuracy_times import TimeToAccuracy
from harness.analysis.inference import Interval
from harness.analysis.scaling import PointScaling, Scaling
from harness.analysis.scaling_laws import Fit
from harness.analysis.side_by_side import Side
from harness.prediction.extrapolation import NETWORK, ExtrapolatedPoint, Extrapolation
from harness.report import sweep_sentences
from harness.report.answer import Cell, Table
from harness.report.failed_ranks import SECTION as FAILED_RANKS
from harness.report.figures.breakdown import BarPart
from harness.report.sweep_sentences import speedup_label
from harness.why.known_causes import Finding
from harness.why.overheads import PointOverheads

Names = Mapping[str, str]
NOT_MEASURED = Cell(text=numbers.NONE, value="")


def seconds_cell(value: float | None, interval: Interval | None = None, *, computed: bool = False) -> Cell:
    """Return a duration in seconds, its 95 % interval below it; a dash for None."""
    if value is None:
        return NOT_MEASURED
    note = numbers.seconds_span(interval) if interval else ""
    return Cell(text=numbers.seconds(value), note=note, value=value, computed=computed)


def ratio_cell(value: float | None, interval: Interval | None = None, *, computed: bool = False) -> Cell:
    """Return a ratio such as a speedup, its 95 % interval below it; a dash for None."""
    if value is None:
        return NOT_MEASURED
    note = numbers.ratio_span(interval) if interval else ""
    return Cell(text=f"{value:.2f}", note=note, value=value, computed=computed)


def predicted_cell(point: ExtrapolatedPoint) -> Cell:
    """Return a predicted speedup in as many digits as it has, its band below it."""
    text, note = numbers.significant(point.speedup, 2), sweep_sentences.band_words(point)
    return Cell(text=text, note=note, value=point.speedup, computed=True)


def percent_cell(value: float | None, places: int = 0, interval: Interval | None = None) -> Cell:
    """Return a fraction in percent, its 95 % interval below it; a dash for None."""
    if value is None:
        return NOT_MEASURED
    note = numbers.percent_span(interval) if interval else ""
    return Cell(text=numbers.percent(value, places), note=note, value=value)


def equal_accuracy(target: TimeToAccuracy | None, note: str = "") -> tuple[Cell, Cell]:
    """Return the training time to an accuracy, the `note` below it, and the speedup to it; dashes without a target."""
    if target is None:
        return NOT_MEASURED, NOT_MEASURED
    text = "not reached" if target.seconds is None else numbers.seconds(target.seconds)
    soon = Cell(text=text, note=note, value="" if target.seconds is None else target.seconds)
    return soon, ratio_cell(target.speedup, target.interval)


def sides_table(first: str, sides: Sequence[tuple[Cell, Side]], goal: float | None, note: str = "") -> Table:
    """Return what was measured at equal samples, and to the test accuracy `goal` unless that is None.

    Each of the `sides` comes with what a reader calls its sweep, in the column `first`.
    """
    headings = [
        first,
        "Ranks",
        "Launches",
        "Epoch time",
        "Speedup at\nequal samples",
        "Test accuracy at\nequal samples",
    ]
    if goal is not None:
        shown = numbers.percent(goal, 1)
        headings += [f"Training time\nto {shown}", f"Speedup to\n{shown}"]
    rows: list[list[str | Cell]] = []
    for name, one in sides:
        span = f"{numbers.percent(one.accuracy_low, 2)} to {numbers.percent(one.accuracy_high, 2)}"
        reached = f"{one.target.reached} of {numbers.plural(one.target.launches, 'launch')}" if one.target else ""
        rows.append(
            [
                name,
                str(one.ranks),
                Cell(text=str(one.launches), note="" if one.point else "times not valid"),
                seconds_cell(one.point.seconds, one.point.seconds_interval) if one.point else NOT_MEASURED,
                ratio_cell(one.point.speedup, one.point.speedup_interval) if one.point else NOT_MEASURED,
                replace(percent_cell(one.accuracy, 2), note=span if one.launches > 1 else ""),
                *(() if goal is None else equal_accuracy(one.target, reached)),
            ]
        )
    title = "At equal samples and to equal accuracy"
    return Table(title=title, headings=headings, rows=rows, texts=(), note=note)


def terminal_table(scaling: Scaling, final: pd.DataFrame, beyond: Sequence[Extrapolation] = ()) -> Table:
    """Return what a terminal shows: a row for each point. `final` is `frames.final_frame` of the same launches.

    What is predicted has a column of its own for each series.
    """
    accuracy = final.set_index("layout")["test_accuracy"]
    turns = scaling.base.ran_seconds is not None
    rows = []
    for point in scaling.points:
        ranks = f"{point.ranks}" if point.threads == 1 else f"{point.ranks} x {point.threads} threads"
        rows.append(
            (
                ranks if point.nodes == point.ranks else f"{ranks} on {point.nodes} nodes",
                numbers.seconds(point.seconds),
                numbers.significant(point.speedup),
                numbers.ratio_span(point.speedup_interval),
                numbers.percent(point.efficiency),
                *([numbers.significant(point.ran_speedup)] if turns else []),
                numbers.percent(float(accuracy[point.layout]), 2),
                str(point.launches),
                *(numbers.NONE for _ in beyond),
            )
        )
    for count, cells in _by_ranks(beyond):
        said = (sweep_sentences.predicted_words(cell) if cell else numbers.NONE for cell in cells)
        rows.append((str(count), *(numbers.NONE for _ in range(5 + turns)), "0", *said))
    as_it_ran = ("Speedup as it ran",) if turns else ()
    headings = ("Ranks", "Epoch", "Speedup", "95 % interval", "Efficiency", *as_it_ran, "Test accuracy", "Launches")
    predicted = ("Predicted" if one.where != NETWORK else "Predicted, network" for one in beyond)
    return Table(title="", headings=(*headings, *predicted), rows=rows)


def _by_ranks(beyond: Sequence[Extrapolation]) -> list[tuple[int, list[ExtrapolatedPoint | None]]]:
    """Return what each series says of every predicted rank count."""
    counts = sorted({point.ranks for one in beyond for point in one.points})
    series = [{point.ranks: point for point in one.points} for one in beyond]
    return [(count, [one.get(count) for one in series]) for count in counts]


def scaling_table(scaling: Scaling, names: Names, note: str, beyond: Sequence[Extrapolation] = ()) -> Table:
    """Return every point over the base; what is predicted has columns of its own."""
    remarks = any(point.flags for point in scaling.points)
    turns = scaling.base.ran_seconds is not None
    rows: list[list[str | Cell]] = []
    for point in scaling.points:
        outliers = numbers.plural(point.outliers, "outlier") if point.outliers else ""
        excluded = f"+ {point.excluded} invalid" if point.excluded else ""
        within = f"({numbers.percent(point.within, 1)})"
        rows.append(
            [
                str(point.ranks),
                names[point.layout],
                Cell(
                    text=str(point.launches), note="; ".join(filter(None, [excluded, outliers])), value=point.launches
                ),
                *_ratios(point, scaling.base),
                *(NOT_MEASURED for _ in beyond),
                seconds_cell(point.seconds, point.seconds_interval),
                *(_as_it_ran(point, scaling.base) if turns else ()),
                seconds_cell(point.step_seconds, point.step_interval),
                Cell(text=numbers.significant(point.rows_per_second), value=point.rows_per_second),
                Cell(text=numbers.count(point.global_batch), value=point.global_batch),
                Cell(text=numbers.percent(point.between, 1), note=within, value=point.between or 0),
                *(["; ".join(point.flags)] if remarks else []),
            ]
        )
    for ranks, cells in _by_ranks(beyond):
        layout = next(cell.layout for cell in cells if cell)
        rows.append(
            [
                str(ranks),
                names[layout],
                Cell(text="0", note="predicted", value=0),
                NOT_MEASURED,
                NOT_MEASURED,
                *(predicted_cell(cell) if cell else NOT_MEASURED for cell in cells),
                *(NOT_MEASURED for _ in range(7 if turns else 5)),
                *(["predicted, not measured"] if remarks else []),
            ]
        )
    return Table(
        title="Scaling",
        headings=(
            "Ranks",
            "Layout",
            "Launches",
            f"{speedup_label(scaling)}\nover {numbers.ranks(scaling.base.ranks)}",
            "Efficiency",
            *(f"Predicted\n{one.where}" for one in beyond),
            "Epoch time",
            *(("As it ran:\nepoch time", "As it ran:\nspeedup") if turns else ()),
            "Step time",
            "Rows/s",
            "Global\nbatch",
            "Variation\n(within)",
            *(["Remarks"] if remarks else []),
        ),
        rows=rows,
        left=0,
        texts=(1, -1) if remarks else (1,),
        note=note,
    )


def _ratios(point: PointScaling, base: PointScaling) -> tuple[Cell, Cell]:
    if point is base:
        return Cell(text="1 (base)", value=1, tone="base"), Cell(text="100 % (base)", value=1, tone="base")
    if point.speedup is None or point.efficiency is None:
        return NOT_MEASURED, NOT_MEASURED
    efficiency = percent_cell(point.efficiency, interval=point.efficiency_interval)
    return ratio_cell(point.speedup, point.speedup_interval), efficiency


def _as_it_ran(point: PointScaling, base: PointScaling) -> tuple[Cell, Cell]:
    """Return the time of an epoch with what others took of the machine, and the speedup of these times."""
    seconds = seconds_cell(point.ran_seconds)
    if point is base:
        return seconds, Cell(text="1 (base)", value=1, tone="base")
    return seconds, ratio_cell(point.ran_speedup, point.ran_speedup_interval)


def overheads_table(points: Sequence[PointOverheads], scaling: Scaling, names: Names, sweep: str) -> Table:
    """Return what each part of an epoch takes beyond its ideal share."""
    share = "divided by the ratio of the ranks" if scaling.scaling == "strong" else "unchanged"
    return Table(
        title="Overheads of an epoch",
        headings=(
            "Ranks",
            "Layout",
            "Part",
            "Beyond its\nideal share",
            "Of the\nepoch",
            "Speedup without it,\nat most about",
        ),
        rows=[
            (
                str(point.ranks),
                names[point.layout],
                Cell(text=f"{one.cause.name} (largest)", tone="base") if one is point.largest else one.cause.name,
                seconds_cell(one.seconds),
                percent_cell(one.fraction, 1),
                ratio_cell(one.speedup_without, one.speedup_interval),
            )
            for point in points
            for one in point.costs
        ],
        left=0,
        texts=(1, 2),
        note=f"What each part of an epoch takes beyond its ideal share: the base's part {share}. The last column is "
        "about the most that the speedup could be if that part took its ideal share and nothing else changed, with its "
        f"interval (all rows together 95 %). {unequal_cores(scaling)}For the causes of each: "
        f"harness explain {sweep}.",
    )


def unequal_cores(scaling: Scaling) -> str:
    """Return what the slowest core costs, a sentence and a blank; an empty text where it is not known."""
    excess = scaling.unequal_cores
    if excess is None:
        return ""
    low, high = 100 * (excess.mean - excess.reach), 100 * (excess.mean + excess.reach)
    span = f"{low:.1f} to {numbers.percent(high / 100, 1)}"
    return (
        f"Cores of unequal speed: {numbers.percent(excess.mean, 1)} ({span}), by which one rank takes longer on its "
        "slowest core than on its cores on average; ranks in step wait for that core, so it is part of the above. "
    )


def parts_table(title: str, frame: pd.DataFrame, parts: Sequence[BarPart], names: Names, note: str = "") -> Table:
    """Return the `parts` of the time of each layout with their shares; `frame` is `time_parts.breakdown_frame`."""
    rows: list[list[str | Cell]] = []
    for row in rows_of(frame):
        whole = sum(row[part.column] for part in parts)
        cells = [
            Cell(
                text=numbers.seconds(row[part.column]),
                value=row[part.column],
                note=numbers.percent(row[part.column] / whole) if whole > 0 else "",
            )
            for part in parts
        ]
        rows.append([str(row["ranks"]), names[row["layout"]], *cells])
    headings = ("Ranks", "Layout", *(part.label.capitalize() for part in parts))
    return Table(title=title, headings=headings, rows=rows, left=0, texts=(1,), note=note)


def laws_table(fits: Sequence[Fit], scaling: Scaling) -> Table:
    """Return the laws that were fitted, with their coefficients and whether the measurements agree with them."""
    law = (
        "Amdahl: time = t1 (s + (1 - s)/p), with log2 p: + t1 c log2 p."
        if scaling.scaling == "strong"
        else "Gustafson: rate = r1 (p - s (p - 1)). Log2 p: time = t1 (1 + c log2 p)."
    )
    rows = []
    for fit in fits:
        coefficients = [f"{estimate.name} {numbers.significant(estimate.value)}" for estimate in fit.estimates]
        error = Cell(text=numbers.NONE)
        if fit.worst_error > 1e-9:
            error = Cell(text=numbers.percent(fit.worst_error, 1), note=f"at {numbers.ranks(fit.worst_ranks)}")
        rows.append((fit.law, "; ".join(coefficients), error, f"no: {fit.doubt}" if fit.doubt else "yes"))
    return Table(
        title="Laws",
        headings=("Law", "Coefficients", "Largest error\nof the fit", "Do the points agree with it?"),
        rows=rows,
        left=2,
        note=f"{law} USL (Gunther): rate = r1 p / (1 + a (p - 1) + b p (p - 1)), a contention, b coherency. Fitted "
        "by least squares of relative errors to geometric means over whole repeats of launches (with fewer than 6 of "
        "them to medians, untested), without points of another session than the base's. A law whose errors are beyond "
        "the noise of launches within their repeats (F test for lack of fit, 5 %) is refuted. Several laws can agree "
        "with the same points and differ beyond them, so none is drawn there.",
    )


_MOST_EPOCHS = 20


def epochs_table(curves: pd.DataFrame, names: Names) -> Table:
    """Return what a user's script trained on each layout, epoch by epoch; `curves` is `learning.curve_frame`."""
    at = {(row["epoch"], row["layout"]): row for row in rows_of(curves)}
    layouts, epochs = list(dict.fromkeys(curves["layout"])), sorted(set(curves["epoch"]))
    chosen = epochs[:: -(-len(epochs) // _MOST_EPOCHS)]

    def cell(epoch: int, layout: str) -> Cell:
        row = at.get((epoch, layout))
        if row is None:
            return NOT_MEASURED
        tested = numbers.significant(row["test_loss"]), numbers.percent(row["test_accuracy"], 2)
        note = ", ".join(text for text in tested if text != numbers.NONE)
        return Cell(text=numbers.significant(row["train_loss"]), note=note, value=row["train_loss"])

    return Table(
        title="Epoch by epoch",
        headings=("Timed epoch", *(names[layout] for layout in layouts)),
        rows=[(str(epoch + 1), *(cell(epoch, layout) for layout in layouts)) for epoch in chosen],
        texts=(),
        note="Training loss, below it test loss and accuracy; medians over launches. With the batch of all ranks the "
        "script trains on several ranks as on one: launches whose numbers differ from it by more than 5 % are invalid.",
    )


def learning_table(final: pd.DataFrame, names: Names) -> Table:
    """Return loss and accuracy after the last epoch; `final` is `frames.final_frame`."""

    def metric(row: Mapping[str, Any], name: str) -> Cell:
        words = (lambda value: numbers.percent(value, 2)) if name == "test_accuracy" else numbers.significant
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        spread = "" if low == high or row[name] != row[name] else f"{words(low)} to {words(high)}"
        return Cell(text=words(row[name]), note=spread)

    return Table(
        title="Loss and accuracy",
        headings=(
            "Layout",
            "Launches",
            "Epochs",
            "Training time",
            "Training loss",
            "Test loss",
            "Test accuracy",
            "Test AUC",
        ),
        rows=[
            (
                names[row["layout"]],
                str(row["launches"]),
                numbers.count(row["epochs"]),
                numbers.seconds(row["trained_s"]),
                *(metric(row, name) for name in ("train_loss", "test_loss", "test_accuracy", "test_auc")),
            )
            for row in rows_of(final)
        ],
        texts=(),
        note="After the last epoch, not the best one. Medians over launches, below them the least and the greatest.",
    )


def targets_table(targets: Sequence[TimeToAccuracy], scaling: Scaling, goal: float, names: Names) -> Table:
    """Return the training time to the test accuracy `goal`, beside the speedup at equal samples."""
    speedups = {point.layout: point.speedup for point in scaling.points}
    return Table(
        title=f"Time to {numbers.percent(goal, 1)} test accuracy",
        headings=(
            "Ranks",
            "Layout",
            "Launches\nthat reach it",
            "Training time\nto reach it",
            "Speedup to\nthe accuracy",
            "Speedup at\nequal samples",
        ),
        rows=[
            (
                str(one.ranks),
                names[one.layout],
                f"{one.reached} of {one.launches}",
                *equal_accuracy(one),
                ratio_cell(speedups.get(one.layout)),
            )
            for one in targets
        ],
        left=0,
        texts=(1,),
        note="The target is the base's final accuracy less one percentage point. A launch reaches it after the first "
        "epoch that has it; one that never does counts as infinitely long.",
    )


def causes_table(findings: Sequence[Finding], title: str, *, overheads: bool) -> Table:
    """Return the known causes that the records show; with `overheads` also the overhead that each is part of."""
    part = ["Part of"] if overheads else []
    explained = "" if overheads else " All overheads of an epoch: harness explain."
    return Table(
        title=title,
        headings=("Known cause", *part, "Costs of\nan epoch", "Launches", "Evidence", "What to do"),
        rows=[
            (
                one.cause,
                *([one.overhead or numbers.NONE] if overheads else []),
                percent_cell(one.cost, 1),
                Cell(text=f"{one.launches} of {one.of}", value=one.launches),
                one.evidence,
                one.fix,
            )
            for one in findings
        ],
        left=2 if overheads else 1,
        texts=(-2, -1),
        note="Known causes that the records show, with the evidence of the launch where each costs most; costs of "
        f"different causes may overlap.{explained}",
    )


def launches_table(launches: pd.DataFrame, folder: str, failed: Collection[str]) -> Table:
    """Return every launch; `folder` is the link to the sweep's, those with `failed` ranks lead to their timelines."""
    rows: list[tuple[str | Cell, ...]] = []
    turns = bool(launches["ran_seconds"].notna().any())
    recorded = "Its own epochs'\nmedian, with what\nothers took" if turns else "Epoch time"
    for row in rows_of(launches.sort_values(["ranks", "layout", "repeat"], kind="stable")):
        name = row["run"]
        far = ", an outlier: far from the other launches of its layout, and counted" if row["outlier"] else ""
        valid = Cell(text=f"yes{far}")
        if not row["valid"]:
            valid = Cell(text=f"no: {row['invalid']}", tone="bad", link=f"#{FAILED_RANKS}" if name in failed else "")
        rows.append(
            (
                Cell(text=name, link=f"{folder}/{name}", mark=f"run-{name}", tone="" if row["valid"] else "invalid"),
                str(row["ranks"]),
                str(row["repeat"] + 1),
                numbers.moment(row["started"]),
                *([seconds_cell(row["seconds"])] if turns else []),
                seconds_cell(row["recorded_seconds"]),
                percent_cell(row["sync_seconds"] / row["seconds"]),
                percent_cell(row["test_accuracy"], 2),
                valid,
            )
        )
    return Table(
        title="Launches",
        headings=(
            "Launch",
            "Ranks",
            "Repeat",
            "Started (UTC)",
            *(["Epoch time\nin turns"] if turns else []),
            recorded,
            "Synchro-\nnisation",
            "Test accuracy",
            "Valid",
        ),
        rows=rows,
        texts=(3, -1),
    )


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `frame`, by column."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
