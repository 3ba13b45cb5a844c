"""What one contender is asked to train in one launch, and what it answers."""

from dataclasses import dataclass
from typing import Any

from harness.spec.workload import Workload

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
