"""What an answer has for other tools' formats: measured values, tests, benchmark lines and scaling points, all typed.

The modules of `harness.report.formats` write them; nothing here is worded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.confidence_intervals import Interval


class Unit(StrEnum):
    """The unit of a value, as OpenMetrics names it."""

    SECONDS = "seconds"
    RATIO = "ratio"
    ROWS_PER_SECOND = "rows_per_second"


class CaseOutcome(StrEnum):
    """What became of a test."""

    PASSED = "passed"
    FAILED = "failed"  # what was tested is not so, or a launch failed
    ERROR = "error"  # it could not be read
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One value: `quantity` of `subject`, such as ``epoch time`` of ``mnist-dnn, 2 ranks``.

    `interval` is the 95 % interval in the same unit, None where launches lack. `smaller_is_better` is None for what is
    neither. `labels` distinguish readings of one quantity, `when` is an aware time of the last launch.
    """

    subject: str
    quantity: str
    unit: Unit
    value: float
    interval: "Interval | None" = None
    smaller_is_better: bool | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    when: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """One test: `name` in a `group`, how long it took in seconds, and the `reason` for an outcome other than passed.

    `output` is what else was said.
    """

    group: str
    name: str
    outcome: CaseOutcome
    seconds: float = 0.0
    reason: str = ""
    output: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkLine:
    """One launch as a line of a benchmark table. `energy_wh` is for one device in Wh, None where nobody measured it.

    A device is a GPU, or a rank without one; `tasks_per_node` are ranks, `runtime_s` is the whole launch's.
    """

    job: str
    system: str
    version: str
    queue: str
    runtime_s: float
    model: str
    dataset: str
    nodes: int
    devices: int
    tasks_per_node: int
    threads_per_task: int
    global_batch: int
    batch_per_device: int
    rows_per_second: float
    energy_wh: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPoint:
    """What the valid launches of a `layout` measured, for models of scaling.

    `seconds` has, for ``epoch`` and each of its parts (``epoch->wire``), one value of every launch: the median over its
    epochs.
    """

    layout: str
    ranks: int
    threads: int
    seconds: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exports:
    """All of it; `name` is that of the sweep or the check."""

    name: str = ""
    readings: Sequence[Reading] = ()
    cases: Sequence[CaseResult] = ()
    lines: Sequence[BenchmarkLine] = ()
    points: Sequence[ScalingPoint] = ()


def joined(parts: Sequence[Exports]) -> Exports:
    """Return several exports as one."""
    names = dict.fromkeys(part.name for part in parts)
    whole = Exports(name=", ".join(names))
    for part in parts:
        whole = replace(
            whole,
            readings=(*whole.readings, *part.readings),
            cases=(*whole.cases, *part.cases),
            lines=(*whole.lines, *part.lines),
            points=(*whole.points, *part.points),
        )
    return whole
