"""OpenMetrics text, which Prometheus and its push gateway read: https://prometheus.io/docs/specs/om/open_metrics_spec.

Every quantity is a gauge, ``harness_epoch_time_seconds``; the ends of its interval are gauges with ``_low`` and
``_high`` before the unit. Samples carry the time of their last launch.
"""

import math
import re
from collections.abc import Iterator

from harness.report.answer import Answer
from harness.report.exports import Reading
from harness.report.formats.format import Format

_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


def render(answer: Answer) -> str:
    """Return the readings of `answer` as gauges, those of one quantity together."""
    families: dict[str, list[str]] = {}
    heads: dict[str, list[str]] = {}
    for reading in answer.exports.readings:
        for family, what, value in _gauges(reading):
            heads[family] = [
                f"# TYPE {family} gauge",
                f"# UNIT {family} {reading.unit}",
                f"# HELP {family} {what}",
            ]
            labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in reading.labels.items())
            when = f" {reading.when.timestamp():.3f}" if reading.when else ""
            sample = f"{family}{{{labels}}} {float(value)!r}{when}"
            families.setdefault(family, []).append(sample)
    lines: list[str] = []
    for family, samples in families.items():
        lines += [*heads[family], *samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _gauges(reading: Reading) -> Iterator[tuple[str, str, float]]:
    """Yield the family, its meaning and the value of each gauge of `reading`."""
    if not math.isfinite(reading.value):
        return
    stem = f"harness_{re.sub(r'[^a-z0-9]+', '_', reading.quantity.lower())}"
    yield f"{stem}_{reading.unit}", reading.quantity, reading.value
    if reading.interval is not None:
        yield f"{stem}_low_{reading.unit}", f"{reading.quantity}, lower end of 95 %", reading.interval.low
        yield f"{stem}_high_{reading.unit}", f"{reading.quantity}, upper end of 95 %", reading.interval.high


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(sign, sign) for sign in text)


FORMAT = Format(
    name="openmetrics", commands=frozenset({"bench", "check", "explain", "history", "report", "sweep"}), render=render
)
