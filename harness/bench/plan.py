"""What a bench launches, what one contender is asked to train and answers, and the record of all (``bench.json``)."""

import math
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from harness.base.errors import UserError, unknown
from harness.base.provenance import Machine
from harness.schema.claim import EXPERIMENTS
from harness.schema.presets import resolve
from harness.schema.workload import Workload

BATCH_PER_RANK = 64
LEARNING_RATE = 0.1
WARM_UP_EPOCHS = 1
MIN_TIMED_EPOCHS = 3
LOSS_EPOCH = WARM_UP_EPOCHS + MIN_TIMED_EPOCHS
"""The epoch whose training loss is shown: the last one that all contenders make, however fast they are."""

# Rows of an epoch divide by this, so that one and two ranks both make whole batches only.
_GRAIN = 2 * BATCH_PER_RANK
_TARGET_S, _SHORT_S, _LONG_S = 2.5, 1.3, 7.0
_MOST_EPOCHS = 1000  # what takes no time, as recording does, needs no more
_QUICK_PART = 4  # a quick bench trains on a quarter of the rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A network, its data and how long to train, one thread per rank: plain SGD, or as the harness does by default.

    `shipped` takes the optimizer, its rate and schedule, weight decay and augmentation of the preset ``default``.

    `rows` are training rows of the synthetic twin over all ranks; every rank trains on an equal part of them.
    `epochs` counts the timed ones, which follow `WARM_UP_EPOCHS`.
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
        """Return the harness's own description of this task, with `changes`: whole batches of the synthetic twin."""
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

    Without `cpus` it stays where its launcher has put it.

    `addresses` are the ``host:port`` of all processes of the launch, empty for a single one.
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
    samples: tuple[ContenderSample, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """What the user asked for. `rows` replaces every workload's own number, None keeps it; no `contenders` are all.

    `pythons` are programs, by the contender that has one of its own.
    """

    workloads: tuple[str, ...]
    contenders: tuple[str, ...] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 3
    rows: int | None = None
    quick: bool = False
    force: bool = False
    limit_s: int = 180
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in EXPERIMENTS:
                raise unknown("WORKLOADS", name, EXPERIMENTS)
        for name, python in self.pythons.items():
            if shutil.which(python) is None:
                raise UserError(f"the Python of {name}, '{python}', is no program: give one that has its package")
        if self.rounds < 1:
            raise UserError(f"ROUNDS={self.rounds} is too small: use at least 1")
        if self.rows is not None and self.rows < _GRAIN:
            raise UserError(f"ROWS={self.rows} is too small: use at least {_GRAIN}, one batch on each of two ranks")
        if self.limit_s < 1:
            raise UserError(f"limit {self.limit_s} s is too small: use at least 1")

    def task(self, workload: str) -> Task:
        """Return the task of `workload` with the fewest epochs."""
        experiment = EXPERIMENTS[workload]
        rows = self.rows or (experiment.bench_rows // _QUICK_PART if self.quick else experiment.bench_rows)
        return Task(
            dataset=experiment.dataset,
            model=experiment.model,
            rows=rows // _GRAIN * _GRAIN,
            epochs=MIN_TIMED_EPOCHS,
            seed=self.seed,
        )


def guess_epochs(task: Task, *, ranks: int, fast: bool) -> int:
    """Return the timed epochs to try first, before a contender's speed on this machine is known."""
    if not fast:
        return MIN_TIMED_EPOCHS
    return fit_epochs(task.rows / (EXPERIMENTS[task.name].bench_rate * ranks))


def fit_epochs(epoch_s: float) -> int:
    """Return how many epochs of `epoch_s` seconds last about 2.5 s; enough for a median, and no more than 1,000."""
    return min(max(MIN_TIMED_EPOCHS, math.ceil(_TARGET_S / max(epoch_s, 1e-6))), _MOST_EPOCHS)


def correct_epochs(seconds: Sequence[float]) -> int | None:
    """Return a better number of epochs when timed ones, `seconds` each, were far too short or too long together.

    None when the launch is good as it is.
    """
    better = fit_epochs(median(seconds))
    if better == len(seconds) or _SHORT_S <= sum(seconds) <= _LONG_S:
        return None
    return better


def shuffled(names: Iterable[str], *, seed: int, workload: str, number: int) -> list[str]:
    """Return `names` in the order of round `number` of `workload`: random, and the same for the same seed.

    So drift of the machine, and what one contender leaves behind for the next, falls on all alike.
    """
    order = list(names)
    random.Random(f"{seed}/{workload}/{number}").shuffle(order)
    return order
