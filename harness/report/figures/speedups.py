"""Speedup, efficiency, absolute epoch time and throughput against ranks."""

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.analysis.scaling import PointScaling, Scaling
from harness.base.own_matplotlib import Axes, ticker
from harness.prediction.extrapolation import ExtrapolatedPoint, Extrapolation
from harness.report import captions, rank_axes, svg
from harness.report.answer import PageFigure
from harness.report.figures import SweepView, figure
from harness.report.sweep_sentences import in_turns, speedup_label

_DOTS = "joined by straight lines; light dots: single launches, set beside them."
_Value = Callable[[PointScaling | ExtrapolatedPoint], float | None]
_Bounds = Callable[[PointScaling | ExtrapolatedPoint], Interval | None]
_PREDICTED = ((svg.PURPLE, "D"), (svg.ORANGE, "v"))  # the looks of predicted series: hollow, dotted, with a band
_COLUMNS: dict[str, tuple[_Value, _Bounds, Callable[[float], str]]] = {
    "speedup": (lambda p: p.speedup, lambda p: p.speedup_interval, lambda value: f"{value:.2f}"),
    "efficiency": (lambda p: p.efficiency, lambda p: p.efficiency_interval, units.percent),
    "seconds": (lambda p: p.seconds, lambda p: p.seconds_interval, units.seconds),
    "rows_per_second": (
        lambda p: p.rows_per_second,
        lambda p: p.rows_interval,
        lambda value: f"{units.significant(value)} rows/s",
    ),
}


@figure("scaling")
def against_ranks(view: SweepView) -> Iterator[PageFigure]:
    """Draw speedup and efficiency, but for a single point with nothing predicted; epoch time and rows per second."""
    scaling = view.scaling
    subject = view.subject
    is_single = len(scaling.points) == 1 and not view.extrapolations
    name = speedup_label(scaling)
    base = units.ranks(scaling.base.ranks)
    if not is_single:
        text = f"{name} of {subject} over {base}. Dashed: ideal, the ratio of the ranks."
        yield _against_ranks(view, "speedup", f"Speedup of {subject} over {base}", name, text)
        noun = "cores" if _several_threads(scaling) else "ranks"
        over = f"{name.lower()} over {base} divided by the ratio of the {noun}"
        text = f"Efficiency of {subject}: {over}. Dashed: ideal."
        yield _against_ranks(view, "efficiency", f"Parallel efficiency of {subject}", "Parallel efficiency", text)
    constant = "constant" if scaling.scaling == "weak" else "the base divided by the ratio of the ranks"
    ideal = "" if is_single else f" Dashed: ideal, {constant}."
    shows = f"Training time of one epoch of {subject}"
    yield _against_ranks(view, "seconds", shows, "Absolute time", f"{shows}, slowest rank, without evaluation.{ideal}")
    ideal = "" if is_single else " Dashed: ideal, the base times the ratio of the ranks."
    text = f"Rows per second of {subject}, all ranks together: the rows of an epoch over its training time.{ideal}"
    yield _against_ranks(view, "rows_per_second", f"Training throughput of {subject}", "Throughput", text)


def _against_ranks(view: SweepView, column: str, shows: str, title: str, text: str) -> PageFigure:
    name = {"seconds": "epoch-time", "rows_per_second": "throughput"}.get(column, column)
    hollow = f" {captions.foreseen(view.extrapolations)}" if view.extrapolations else ""
    markers = f"Markers: {_statistic(view.scaling)}, {_DOTS}{hollow}"
    return PageFigure(
        picture=scaling_picture(name, shows, column, view.scaling, view.ratios, view.extrapolations),
        title=title,
        caption=f"{text} {markers} {captions.conditions_caption(view.scaling, view.runs)}",
        table=series_table(view.scaling, view.ratios, column, view.extrapolations),
    )


def _statistic(scaling: Scaling) -> str:
    return "means of blocks" if in_turns(scaling) else "medians of launches"


def series_table(
    scaling: Scaling, launches: pd.DataFrame, column: str, extrapolations: Sequence[Extrapolation] = ()
) -> pd.DataFrame:
    """Return the numbers drawn in a figure of `column`: a row per point, launch and predicted point.

    The kind of a point is mean (over blocks, in turns) or median (of launches one after the other).

    Columns: kind, layout, ranks, value, low, high (95 % interval, empty where there is none), launches, run. Where
    there are predicted points they have columns of their own: predicted, predicted_low, predicted_high, where.
    """
    value, interval, _ = _COLUMNS[column]
    rows = []
    for point in scaling.points:
        bounds = interval(point)
        row: dict[str, object] = {"kind": "mean" if in_turns(scaling) else "median"}
        row |= {"layout": point.layout, "ranks": point.ranks, column: value(point)}
        row |= {"low": bounds.low if bounds else None, "high": bounds.high if bounds else None}
        rows.append(row | {"launches": point.launches})
    raw = launches[["layout", "ranks", column, "run"]].assign(kind="launch", launches=1)
    tables = [pd.DataFrame(rows), raw]
    predicted = _predicted_rows(column, extrapolations)
    if predicted:
        tables.append(pd.DataFrame(predicted))
    predicted_columns = ["predicted", "predicted_low", "predicted_high", "where"] if predicted else []
    order = ["kind", "layout", "ranks", column, "low", "high", *predicted_columns, "launches", "run"]
    return pd.concat([table.astype(object) for table in tables]).reindex(columns=order)


def _predicted_rows(column: str, extrapolations: Sequence[Extrapolation]) -> list[dict[str, object]]:
    value, interval, _ = _COLUMNS[column]
    rows = []
    for series in extrapolations:
        for point in series.points:
            bounds = interval(point)
            if bounds is None:
                continue
            row: dict[str, object] = {"kind": "predicted", "layout": point.layout, "ranks": point.ranks, "launches": 0}
            row |= {"predicted": value(point), "predicted_low": bounds.low, "predicted_high": bounds.high}
            rows.append(row | {"where": series.where})
    return rows


def scaling_picture(
    name: str,
    shows: str,
    column: str,
    scaling: Scaling,
    launches: pd.DataFrame,
    extrapolations: Sequence[Extrapolation] = (),
) -> svg.Picture:
    """Return the picture, called `name`, of `column` of `launches` (`scaling.ratios_frame`) against ranks."""
    value, interval, words = _COLUMNS[column]
    spoken = []
    for point in scaling.points:
        median = value(point)
        bounds = interval(point)
        where = units.ranks(point.ranks)
        where += f" of {units.plural(point.threads, 'thread')}" if _several_threads(scaling) else ""
        span = f" ({words(bounds.low)} to {words(bounds.high)})" if bounds else ""
        spoken += [f"{where}: {words(median)}{span}"] if median is not None else []
    for series in extrapolations:
        last = series.points[-1]
        predicted = words(value(last) or 0.0)
        spoken.append(f"predicted, not measured: {units.ranks(last.ranks)} {series.where} {predicted}")
    return svg.draw(
        name, shows, lambda axes: _paint(axes, column, scaling, launches, extrapolations), numbers="; ".join(spoken)
    )


def _several_threads(scaling: Scaling) -> bool:
    return len({point.threads for point in scaling.points}) > 1


def _paint(
    axes: Axes, column: str, scaling: Scaling, launches: pd.DataFrame, extrapolations: Sequence[Extrapolation]
) -> None:
    value, interval, _ = _COLUMNS[column]
    ranks = [point.ranks for point in scaling.points]
    ranks += [point.ranks for series in extrapolations for point in series.points]
    logarithmic = rank_axes.rank_axis(axes, ranks)
    factor, unit = rank_axes.time_unit(float(launches["seconds"].max())) if column == "seconds" else (1.0, "")
    _ideal(axes, column, scaling, ranks, factor)
    scaled = launches.assign(**{column: launches[column] * factor})
    rank_axes.raw_launches(axes, scaled, column, logarithmic)
    sample = "mean of blocks" if in_turns(scaling) else "median of launches"
    rank_axes.medians(
        axes,
        scaling.points,
        lambda point: _scaled(value(point), factor),
        lambda point: bounds.scaled(factor) if (bounds := interval(point)) else None,
        f"measured: {sample}" if extrapolations else sample,
    )
    for (tone, marker), series in zip(_PREDICTED, extrapolations, strict=False):
        _paint_predicted(axes, column, scaling, series, factor, tone.light, marker)
    if column == "efficiency":
        _efficiency_axis(axes, scaling, launches)
    else:
        _value_axis(axes, column, scaling, unit, logarithmic=logarithmic)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _ideal(axes: Axes, column: str, scaling: Scaling, ranks: Sequence[int], factor: float) -> None:
    """Draw what a point would be whose ranks did all that they could."""
    base = scaling.base
    ends = [min(ranks), max(ranks)]
    if column == "efficiency":
        axes.axhline(1, label="ideal", **svg.IDEAL)
    elif len(ranks) > 1 and column == "seconds":
        # The ideal is a curve (base time over ranks), drawn finely: a straight line between points would lie.
        fine = [ends[0] + (ends[1] - ends[0]) * step / 200 for step in range(201)]
        is_strong = scaling.scaling == "strong"
        seconds = [base.seconds * factor * (base.ranks / count if is_strong else 1) for count in fine]
        axes.plot(fine, seconds, label="ideal", **svg.IDEAL)
    elif len(ranks) > 1:
        base_value = base.rows_per_second if column == "rows_per_second" else 1
        axes.plot(ends, [base_value * end / base.ranks for end in ends], label="ideal", **svg.IDEAL)


def _efficiency_axis(axes: Axes, scaling: Scaling, launches: pd.DataFrame) -> None:
    axes.set_ylim(bottom=0, top=max(1.1, 1.05 * launches["efficiency"].max()))
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(xmax=1, symbol=" %"))
    axes.set_ylabel("Parallel efficiency per core" if _several_threads(scaling) else "Parallel efficiency")


def _value_axis(axes: Axes, column: str, scaling: Scaling, unit: str, *, logarithmic: bool) -> None:
    """Set the axis of speedups, times or rows per second; times under weak scaling from 0, which are nearly equal."""
    if not logarithmic or (column == "seconds" and scaling.scaling == "weak"):
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])  # with room above the highest marker
    elif column == "speedup":
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    if column == "rows_per_second":
        axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    over = f"{speedup_label(scaling)} over {units.ranks(scaling.base.ranks)}"
    labels = {"seconds": f"Training time of an epoch ({unit})", "rows_per_second": "Training rows per second"}
    axes.set_ylabel(labels.get(column, over))


def _paint_predicted(
    axes: Axes, column: str, scaling: Scaling, series: Extrapolation, factor: float, colour: str, marker: str
) -> None:
    """Draw a predicted series from the measured point that it goes on from: hollow, dotted, in its band."""
    value, interval, _ = _COLUMNS[column]
    start = next(point for point in scaling.points if point.ranks == series.start and value(point) is not None)
    points: list[PointScaling | ExtrapolatedPoint] = [start, *series.points]
    ranks = [point.ranks for point in points]
    middles: list[float] = []
    lows: list[float] = []
    highs: list[float] = []
    for point in points:
        middle = value(point) or 0.0
        bounds = interval(point) or Interval(low=middle, high=middle)
        middles.append(middle * factor)
        lows.append(bounds.low * factor)
        highs.append(bounds.high * factor)
    axes.fill_between(ranks, lows, highs, color=colour, alpha=0.15, linewidth=0, zorder=1)
    dots = (0, (1, 1.5))
    axes.plot(ranks[:2], middles[:2], color=colour, linestyle=dots, zorder=2)
    axes.plot(
        ranks[1:],
        middles[1:],
        label=f"predicted, {series.where}",
        color=colour,
        linestyle=dots,
        marker=marker,
        markerfacecolor=svg.PAPER.light,
        zorder=2,
    )
