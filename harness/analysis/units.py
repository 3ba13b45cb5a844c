"""Numbers with their units as text: three digits, no false precision."""

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.confidence_intervals import Interval  # which needs SciPy, and most who ask for units do not

NONE = "–"
_S = "\u00a0"  # a number and its unit stay on one line


def seconds(value: float) -> str:
    """Return a duration in the unit that fits it: ``312 ms``, ``4.21 s``, ``2 min 05 s``, ``1 h 04 min``.

    What is below a nanosecond is nothing that a clock has seen: ``< 1 ns``.
    """
    if not math.isfinite(value):
        return NONE
    if value == 0:
        return f"0{_S}s"
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 1e-9:
        return f"<{_S}1{_S}ns"
    for limit, scale, unit in ((1e-7, 1e9, "ns"), (1e-3, 1e6, "µs"), (1, 1e3, "ms"), (60, 1, "s")):
        if value < limit:
            return f"{significant(value * scale)}{_S}{unit}"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}{_S}min{_S}{whole % 60:02d}{_S}s"
    return f"{whole // 3600}{_S}h{_S}{whole % 3600 // 60:02d}{_S}min"


def significant(value: float | None, digits: int = 3) -> str:
    """Return `value` with at least `digits` significant digits, whole digits never rounded to zeros."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return f"{value:.{digits - 1}e}" if len(text) > 12 and abs(value) < 1 else text


def percent(fraction: float | None, places: int = 0) -> str:
    """Return ``86 %`` for 0.86."""
    return NONE if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{places}f}{_S}%"


def count(value: float) -> str:
    """Return a whole number with separators: ``60,000``."""
    return f"{value:,.0f}" if math.isfinite(value) else NONE


def memory(value: float) -> str:
    """Return bytes as ``1.5 GiB`` or ``600 MiB``."""
    return f"{value / 2**30:.1f}{_S}GiB" if value >= 2**30 else f"{value / 2**20:.0f}{_S}MiB"


def ranks(value: int) -> str:
    """Return ``1 rank`` or ``2 ranks``."""
    return plural(value, "rank")


def plural(value: int, noun: str) -> str:
    """Return `value` with its noun: ``1 launch``, ``3 launches``, ``2 ranks``."""
    if value == 1:
        return f"{value:,}{_S}{noun}"
    return f"{value:,}{_S}{noun}{'es' if noun.endswith('nch') else 's'}"


def span(low: float, high: float, unit: str = "") -> str:
    """Return ``64`` where both are equal, else ``64 to 128``."""
    text = count(low) if low == high else f"{count(low)} to {count(high)}"
    return f"{text} {unit}".strip()


def ratio_span(interval: "Interval | None") -> str:
    """Return the interval of a ratio: ``1.68 to 1.74``, a dash where there is none."""
    return NONE if interval is None else f"{interval.low:.2f} to {interval.high:.2f}"


def percent_span(interval: "Interval | None") -> str:
    """Return the interval of a fraction: ``84 to 87 %``."""
    return NONE if interval is None else f"{100 * interval.low:.0f} to {percent(interval.high)}"


def seconds_span(interval: "Interval | None") -> str:
    """Return the interval of a duration, each end with its unit where they differ: ``98.1 to 102 ms``."""
    if interval is None:
        return NONE
    low = seconds(interval.low)
    high = seconds(interval.high)
    value, _, unit = low.partition(_S)
    return f"{value if _S not in unit and high.partition(_S)[2] == unit else low} to {high}"


def moment(when: datetime) -> str:
    """Return an aware time as ``2026-01-05 12:00:00`` in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
