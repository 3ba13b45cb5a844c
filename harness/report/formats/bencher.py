"""Bencher Metric Format (BMF): https://bencher.dev/docs/reference/bencher-metric-format, read by its adapter `json`.

A benchmark is a subject, a measure a quantity; lower and upper value are the ends of the 95 % interval.
"""

import json
import math

from harness.report.answer import Answer
from harness.report.formats.format import Format


def render(answer: Answer) -> str:
    """Return the readings of `answer` by benchmark and measure."""
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for reading in answer.exports.readings:
        if math.isfinite(reading.value):
            measures = benchmarks.setdefault(reading.subject, {})
            metric = {"value": reading.value}
            if reading.interval is not None:
                metric["lower_value"] = reading.interval.low
                metric["upper_value"] = reading.interval.high
            measures[reading.quantity.replace(" ", "-")] = metric
    return json.dumps(benchmarks, indent=1) + "\n"


FORMAT = Format(name="bencher", commands=frozenset({"bench", "check", "explain", "report", "sweep"}), render=render)
