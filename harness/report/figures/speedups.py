"""Speedup, efficiency, absolute epoch time and throughput against ranks."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.analysis.scaling import PointScaling, Scaling
from harness.base.own_matplotlib import Axes, ticker
from harness.prediction.extrapolation import ExtrapolatedPoint, Extrapolation
from harness.report import captions, rank_axes, svg
from harness.report.answer import PageFigure
from harness.report.figures import SweepView, figure
from harness.report.sweep_sentences import speedup_label

_DOTS = "joined by straight lines; light dots: single launches, set beside them."
_Value = Callable[[PointScaling | ExtrapolatedPoint], float | None]
_Bounds = Callable[[PointScaling | ExtrapolatedPoint], Interval | None]
_MOST_THREADS = 21  # counts that are drawn: the looks of so many series differ
_PREDICTED = ((svg.PURPLE, "D"), (svg.ORANGE, "v"))  # the looks of predicted series: hollow, dotted, with a band
_COLUMNS: dict[str, tuple[_Value, _Bounds, Callable[[float], str]]] = {
    "speedup": (lambda p: p.speedup, lambda p: p.speedup_interval, lambda value: f"{value:.2f}"),
    "efficiency": (lambda p: p.efficiency, lambda p: p.efficiency_interval, units.percent),
    "seconds": (lambda p: p.seconds, lambda p: p.seconds_interval, units.seconds),
    "rows_per_second": (
        lambda p: p.rows_per_second,
        lambda p: p.rows_interval,
        lambda value: f"{units.significant(value)} samples/s",
    ),
}


@figure("scaling")
def against_ranks(view: SweepView) -> Iterator[PageFigure]:
    """Draw speedup and efficiency, but for a single point with nothing predicted; epoch time and samples per second."""
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
        yield _against_ranks(view, "efficiency", f"Efficiency of {subject}", "Efficiency", text)
    constant = "constant" if scaling.scaling == "weak" else "the base divided by the ratio of the ranks"
    ideal = "" if is_single else f" Dashed: ideal, {constant}."
    shows = f"Training time of one epoch of {subject}"
    yield _against_ranks(view, "seconds", shows, "Absolute time", f"{shows}, slowest rank, without evaluation.{ideal}")
    ideal = "" if is_single else " Dashed: ideal, the base times the ratio of the ranks."
    text = (
        f"Samples per second of {subject}, all ranks together: the samples of an epoch over its training time.{ideal}"
    )
    yield _against_ranks(view, "rows_per_second", f"Training throughput of {subject}", "Throughput", text)


def _against_ranks(view: SweepView, column: str, shows: str, title: str, text: str) -> PageFigure:
    name = {"seconds": "epoch-time", "rows_per_second": "throughput"}.get(column, column)
    plot = _Plot(view, column)
    hollow = f" {captions.foreseen(view.extrapolations)}" if view.extrapolations else ""
    conditions = captions.conditions_caption(view.scaling, view.runs)
    if column in ("seconds", "rows_per_second"):
        conditions += f" {captions.OF_THIS_SESSION}"
    return PageFigure(
        picture=svg.draw(name, shows, plot.paint, numbers=plot.spoken()),
        title=title,
        caption=f"{text} Markers: means of blocks, {_DOTS}{hollow} {plot.drawn}{conditions}",
        table=plot.table(),
    )


class _Plot:
    """One `column` of a sweep's points, launches and predicted points against ranks."""

    def __init__(self, view: SweepView, column: str) -> None:
        self._scaling = view.scaling
        self._launches = view.ratios
        self._points = _of_some_threads(view.scaling.points)
        self._extrapolations = view.extrapolations
        self._column = column
        self._value, self._interval, self._words = _COLUMNS[column]

    @property
    def drawn(self) -> str:
        """The sentence that not all thread counts are drawn, empty where they are."""
        drawn = len({point.threads for point in self._points})
        counts = len({point.threads for point in self._scaling.points})
        return f"{drawn} of {counts} counts of threads are drawn, all are in the CSV. " if counts > drawn else ""

    def table(self) -> pd.DataFrame:
        """Return the numbers of the figure: a row per point, launch and predicted point.

        The kind of a point is mean (over blocks).

        Columns: kind, layout, ranks, value, low, high (95 % CI, empty where there is none), launches, run. Where
        there are predicted points they have columns of their own: predicted, predicted_low, predicted_high, where.
        """
        column = self._column
        rows = []
        for point in self._scaling.points:
            bounds = self._interval(point)
            row: dict[str, object] = {"kind": "mean"}
            row |= {"layout": point.layout, "ranks": point.ranks, column: self._value(point)}
            row |= {"low": bounds.low if bounds else None, "high": bounds.high if bounds else None}
            rows.append(row | {"launches": point.launches})
        raw = self._launches[["layout", "ranks", column, "run"]].assign(kind="launch", launches=1)
        tables = [pd.DataFrame(rows), raw]
        predicted = self._predicted_rows()
        if predicted:
            tables.append(pd.DataFrame(predicted))
        predicted_columns = ["predicted", "predicted_low", "predicted_high", "where"] if predicted else []
        order = ["kind", "layout", "ranks", column, "low", "high", *predicted_columns, "launches", "run"]
        return pd.concat([table.astype(object) for table in tables]).reindex(columns=order)

    def _predicted_rows(self) -> list[dict[str, object]]:
        rows = []
        for series in self._extrapolations:
            for point in series.points:
                bounds = self._interval(point)
                if bounds is None:
                    continue
                row: dict[str, object] = {"kind": "predicted", "layout": point.layout, "ranks": point.ranks}
                row |= {"predicted": self._value(point), "predicted_low": bounds.low, "predicted_high": bounds.high}
                rows.append(row | {"launches": 0, "where": series.where})
        return rows

    def spoken(self) -> str:
        """Return the numbers for those who cannot see the picture."""
        spoken = []
        for point in self._scaling.points:
            value = self._value(point)
            bounds = self._interval(point)
            where = units.ranks(point.ranks)
            where += f" of {units.plural(point.threads, 'thread')}" if _several_threads(self._scaling) else ""
            span = f" ({self._words(bounds.low)} to {self._words(bounds.high)})" if bounds else ""
            spoken += [f"{where}: {self._words(value)}{span}"] if value is not None else []
        for series in self._extrapolations:
            last = series.points[-1]
            predicted = self._words(self._value(last) or 0.0)
            spoken.append(f"predicted, not measured: {units.ranks(last.ranks)} {series.where} {predicted}")
        return "; ".join(spoken)

    def paint(self, axes: Axes) -> None:
        """Draw the ideal, the launches, the points and what is predicted."""
        column = self._column
        ranks = [point.ranks for point in self._scaling.points]
        ranks += [point.ranks for series in self._extrapolations for point in series.points]
        logarithmic = rank_axes.rank_axis(axes, ranks)
        factor, unit = (1.0, "")
        if column == "seconds":
            factor, unit = rank_axes.time_unit(float(self._launches["seconds"].max()))
        self._ideal(axes, ranks, factor)
        launches = self._launches[self._launches["layout"].isin([point.layout for point in self._points])]
        scaled = launches.assign(**{column: launches[column] * factor})
        rank_axes.raw_launches(axes, scaled, column, logarithmic)
        sample = "mean of blocks"
        rank_axes.point_means(
            axes,
            self._points,
            lambda point: None if (value := self._value(point)) is None else value * factor,
            lambda point: bounds.scaled(factor) if (bounds := self._interval(point)) else None,
            f"measured: {sample}" if self._extrapolations else sample,
        )
        for (tone, marker), series in zip(_PREDICTED, self._extrapolations, strict=False):
            self._predicted(axes, series, factor, tone.light, marker)
        if column == "efficiency":
            axes.set_ylim(bottom=0, top=max(1.1, 1.05 * self._launches["efficiency"].max()))
            axes.yaxis.set_major_formatter(ticker.PercentFormatter(xmax=1, symbol=" %"))
            per_core = " per core" if _several_threads(self._scaling) else ""
            axes.set_ylabel(f"Efficiency{per_core}")
        else:
            self._value_axis(axes, unit, logarithmic=logarithmic)

    def _ideal(self, axes: Axes, ranks: Sequence[int], factor: float) -> None:
        """Draw what a point would be whose ranks did all that they could."""
        base = self._scaling.base
        ends = [min(ranks), max(ranks)]
        if self._column == "efficiency":
            axes.axhline(1, label="ideal", **svg.IDEAL)
        elif len(ranks) > 1 and self._column == "seconds":
            # The ideal is a curve (base time over ranks), drawn finely: a straight line between points would lie.
            fine = [ends[0] + (ends[1] - ends[0]) * step / 200 for step in range(201)]
            is_strong = self._scaling.scaling == "strong"
            seconds = [base.seconds * factor * (base.ranks / count if is_strong else 1) for count in fine]
            axes.plot(fine, seconds, label="ideal", **svg.IDEAL)
        elif len(ranks) > 1:
            base_value = base.rows_per_second if self._column == "rows_per_second" else 1
            axes.plot(ends, [base_value * end / base.ranks for end in ends], label="ideal", **svg.IDEAL)

    def _value_axis(self, axes: Axes, unit: str, *, logarithmic: bool) -> None:
        """Set the axis of speedups, times or samples per second; under weak scaling times are nearly equal: from 0."""
        column = self._column
        scaling = self._scaling
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
        labels = {"seconds": f"Training time of an epoch ({unit})", "rows_per_second": "Training samples per second"}
        axes.set_ylabel(labels.get(column, over))

    def _predicted(self, axes: Axes, series: Extrapolation, factor: float, colour: str, marker: str) -> None:
        """Draw a predicted series from the measured point that it goes on from: hollow, dotted, in its band."""
        measured = [point for point in self._scaling.points if self._value(point) is not None]
        start = next(point for point in measured if point.ranks == series.start)
        points: list[PointScaling | ExtrapolatedPoint] = [start, *series.points]
        ranks = [point.ranks for point in points]
        middles: list[float] = []
        lows: list[float] = []
        highs: list[float] = []
        for point in points:
            middle = self._value(point) or 0.0
            bounds = self._interval(point) or Interval(low=middle, high=middle)
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


def _of_some_threads(points: Sequence[PointScaling]) -> list[PointScaling]:
    """Return the points of at most `_MOST_THREADS` counts of threads, evenly chosen with the first and the last."""
    counts = sorted({point.threads for point in points})
    places: Sequence[int] = range(len(counts))
    if len(counts) > _MOST_THREADS:
        places = [round(place) for place in np.linspace(0, len(counts) - 1, _MOST_THREADS)]
    chosen = {counts[place] for place in places}
    return [point for point in points if point.threads in chosen]


def _several_threads(scaling: Scaling) -> bool:
    return len({point.threads for point in scaling.points}) > 1
