"""What a contender is, what it is asked to train (`Task`) and answers, and the record of a bench (``bench.json``)."""

import abc
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from harness.base.provenance import Machine
from harness.schema.presets import resolve
from harness.schema.workload import Workload

RECORD = "bench.json"  # reports/bench/bench.json
BATCH_PER_RANK = 64
LEARNING_RATE = 0.1
WARM_UP_EPOCHS = 1
MIN_TIMED_EPOCHS = 3
LOSS_EPOCH = WARM_UP_EPOCHS + MIN_TIMED_EPOCHS
"""The epoch whose training loss is shown: the last one that all contenders make, however fast they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A network, its data and how long to train, one thread per rank: plain SGD, or as the harness does by default.

    `shipped` takes the optimizer, its rate and schedule, weight decay and augmentation of the preset ``default``.
    `rows` are synthetic training rows over all ranks; every rank trains on an equal part of them. `epochs` counts the
    timed ones, which follow `WARM_UP_EPOCHS`.
    """

    dataset: str
    model: str
    rows: int
    epochs: int
    batch_per_rank: int = BATCH_PER_RANK
    learning_rate: float = LEARNING_RATE
    shipped: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        """The workload's name, ``mnist-dnn``."""
        return f"{self.dataset}-{self.model}"

    def workload(self, **changes: Any) -> Workload:
        """Return the harness's own description of this task, with `changes`: whole batches of synthetic rows."""
        settings: dict[str, Any] = {
            "dataset": self.dataset,
            "model": self.model,
            "batch_per_rank": self.batch_per_rank,
            "drop_remainder": True,
            "epochs": WARM_UP_EPOCHS + self.epochs,
            "samples": self.rows,
            "seed": self.seed,
            "data": "synthetic",
        }
        if self.shipped:
            return resolve(**(settings | changes))
        return Workload(**(settings | {"optimizer": "sgd", "learning_rate": self.learning_rate} | changes))


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessPlace:
    """Where a contender's process runs: its number among `addresses`, the CPUs of its core, its limit in seconds.

    Without `cpus` it stays where its launcher has put it. `addresses` are the ``host:port`` of all processes of the
    launch, empty for a single one.
    """

    index: int
    cpus: tuple[int, ...]
    limit_s: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ContenderOutput:
    """What one process of a contender prints as one JSON line.

    `seconds` and `losses` (means over the rows it saw) are of every epoch, those of warm-up first, `losses` of none if
    it trained nothing; `weights`, the SHA-256 of the trained weights, is the same on all processes that kept in step;
    `versions` of what trained, where that is not the harness's own.
    """

    seconds: tuple[float, ...]
    losses: tuple[float, ...] = ()
    weights: str = ""
    versions: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """What a launch found: seconds of every timed epoch (slowest rank), the mean training loss of epoch `LOSS_EPOCH`.

    `invalid` says why the times must not be used, `details` are facts for the page.
    """

    seconds: tuple[float, ...]
    loss: float | None = None
    invalid: tuple[str, ...] = ()
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Contender(abc.ABC):
    """One way to train: its `name` in records, the `title` of its column, and how many `ranks` train, one on each core.

    A `fast` one runs at about the speed that `Experiment.bench_rate` says. `package` is what it needs beyond the
    harness's own packages.
    """

    name: str
    title: str
    ranks: int
    fast: bool = False
    package: str = ""

    @abc.abstractmethod
    def launch(self, task: Task, *, limit_s: int) -> Timing:
        """Train `task` once.

        Raises:
            RunError: it could not be started, failed, or was not done within `limit_s` seconds.
        """


SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ContenderSample:
    """One launch. `seconds` of every timed epoch are the slowest rank's; `rows` are those of an epoch, all ranks.

    `other_load` is the cores that other processes kept busy during the launch, `wall_s` the launch's seconds
    with start and end. `loss` is the mean training loss of epoch `LOSS_EPOCH`, None where nothing is trained.
    `failed` says why there is no time; `invalid` why the times must not be used.
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
    loss: float | None = None
    failed: str = ""
    invalid: tuple[str, ...] = ()
    calibration: bool = False
    details: dict[str, str] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        """Rows per second of the median epoch; not for a launch that failed."""
        return self.rows / median(self.seconds)

    def counts(self, *, forced: bool) -> bool:
        """Return whether the launch enters the table: it has times, and they are valid or the bench is `forced`."""
        return not self.failed and not self.calibration and (forced or not self.invalid)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRecord:
    """A whole bench: where, with what, and every launch in the order they were made.

    `forced` measured on a busy machine too, `quick` on few rows: no verdict is based on either.
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
    samples: tuple[ContenderSample, ...]
