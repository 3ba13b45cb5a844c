"""JSON of github-action-benchmark, for its tool ``customSmallerIsBetter``.

Each entry has name, unit and value, and as range half of the 95 % interval; what is better when it is larger is left
out. See https://github.com/benchmark-action/github-action-benchmark.
"""

import json
import math

from harness.report.answer import Answer
from harness.report.formats.format import Format


def render(answer: Answer) -> str:
    """Return the readings of `answer` of which less is better."""
    entries = []
    for reading in answer.exports.readings:
        if reading.smaller_is_better and math.isfinite(reading.value):
            entry: dict[str, str | float] = {
                "name": f"{reading.subject}: {reading.quantity}",
                "unit": str(reading.unit),
                "value": reading.value,
            }
            if reading.interval is not None:
                half = (reading.interval.high - reading.interval.low) / 2
                entry["range"] = f"± {half:.4g}"
            if reading.labels:
                entry["extra"] = "\n".join(f"{name}: {value}" for name, value in reading.labels.items())
            entries.append(entry)
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


FORMAT = Format(
    name="github-action-benchmark",
    commands=frozenset({"check", "report", "sweep"}),
    render=render,
)
