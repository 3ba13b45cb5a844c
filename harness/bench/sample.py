"""Sample: one launch of one contender, and the record that holds them all (``bench.json``)."""

from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from harness.spec.record import Machine

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One launch. `seconds` of every timed epoch are the slowest rank's; `rows` are those of an epoch, all ranks.

    `other_load` is the cores that other processes kept busy during the launch, `wall_s` the launch's seconds
    with start and end. `failed` says why there is no time; `invalid` why the times must not be used.
    `calibration` marks a launch that only served to choose the number of epochs.
    """

    workload: str
    contender: str
    round: int
    rows: int
    started: datetime
    wall_s: float
    other_load: float
    seconds: tuple[float, ...] = ()
    failed: str = ""
    invalid: tuple[str, ...] = ()
    calibration: bool = False
    details: dict[str, str] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        """Rows per second of the median epoch; not for a launch that failed."""
        return self.rows / median(self.seconds)

    def counts(self, *, forced: bool) -> bool:
        """Tell whether the launch enters the table: it has times, and they are valid or the user insists."""
        return not self.failed and not self.calibration and (forced or not self.invalid)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRecord:
    """A whole bench: where, with what, and every launch in the order they were made.

    `forced` measured on a busy machine too, `quick` on few rows: neither is good for a verdict.
    """

    schema: int
    started: datetime
    machine: Machine
    versions: dict[str, str]
    commit: str
    dirty: bool
    workloads: tuple[str, ...]
    rounds: int
    seed: int
    forced: bool
    quick: bool
    samples: tuple[Sample, ...]
