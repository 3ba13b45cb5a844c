"""What one contender is asked to train in one launch, what it answers, and the record of all (``bench.json``)."""

from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from harness.base.provenance import Machine
from harness.schema.workload import Workload

BATCH_PER_RANK = 64
LEARNING_RATE = 0.1
WARM_UP_EPOCHS = 1
MIN_TIMED_EPOCHS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A network, its data and how long to train: plain SGD, one thread per rank.

    `rows` are training rows of the synthetic twin over all ranks; every rank trains on an equal part of them.
    `epochs` counts the timed ones, which follow `WARM_UP_EPOCHS`.
    """

    dataset: str
    model: str
    rows: int
    epochs: int
    batch_per_rank: int = BATCH_PER_RANK
    learning_rate: float = LEARNING_RATE
    seed: int = 0

    def workload(self, **changes: Any) -> Workload:
        """Return the harness's own description of this task, with `changes`: whole batches of the synthetic twin."""
        settings: dict[str, Any] = {
            "dataset": self.dataset,
            "model": self.model,
            "optimizer": "sgd",
            "learning_rate": self.learning_rate,
            "batch_per_rank": self.batch_per_rank,
            "drop_remainder": True,
            "epochs": WARM_UP_EPOCHS + self.epochs,
            "samples": self.rows,
            "seed": self.seed,
            "data": "synthetic",
        }
        return Workload(**(settings | changes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a contender's process runs: its number among `addresses`, the CPUs of its core, its limit in seconds.

    Without `cpus` it stays where its launcher has put it.

    `addresses` are the ``host:port`` of all processes of the launch, empty for a single one.
    """

    index: int
    cpus: tuple[int, ...]
    limit_s: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one process of a contender prints as one JSON line.

    `seconds` of every timed epoch; `loss`, the last one it saw, is a finite number if it trained at all;
    `weights`, the SHA-256 of the trained weights, is the same on all processes that kept in step.
    """

    seconds: tuple[float, ...]
    loss: float
    weights: str


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
