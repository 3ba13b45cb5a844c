"""Cells of tables: durations, ratios and percentages with their intervals; predicted values are set apart."""

from harness.analysis import units
from harness.analysis.confidence_intervals import Interval
from harness.prediction.extrapolation import ExtrapolatedPoint
from harness.report.answer import Cell
from harness.report.sweep_sentences import band_words

NOT_MEASURED = Cell(text=units.NONE, value="")


def seconds_cell(value: float | None, interval: Interval | None = None, *, computed: bool = False) -> Cell:
    """Return a duration in seconds, its 95 % CI below it; a dash for None."""
    if value is None:
        return NOT_MEASURED
    note = units.seconds_span(interval) if interval else ""
    return Cell(text=units.seconds(value), note=note, value=value, computed=computed)


def ratio_cell(value: float | None, interval: Interval | None = None, *, computed: bool = False) -> Cell:
    """Return a ratio such as a speedup, its 95 % CI below it; a dash for None."""
    if value is None:
        return NOT_MEASURED
    note = units.ratio_span(interval) if interval else ""
    return Cell(text=f"{value:.2f}", note=note, value=value, computed=computed)


def predicted_cell(point: ExtrapolatedPoint) -> Cell:
    """Return a predicted speedup in as many digits as it has, its band below it."""
    text = units.significant(point.speedup, 2)
    return Cell(text=text, note=band_words(point), value=point.speedup, computed=True)


def percent_cell(value: float | None, places: int = 0, interval: Interval | None = None) -> Cell:
    """Return a fraction in percent, its 95 % CI below it; a dash for None."""
    if value is None:
        return NOT_MEASURED
    note = units.percent_span(interval) if interval else ""
    return Cell(text=units.percent(value, places), note=note, value=value)
