"""What a bench launches: workloads, rows, epochs and order. Pure."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from harness.base.errors import UserError, unknown
from harness.bench.sample import BATCH_PER_RANK, MIN_TIMED_EPOCHS, Task

# Rows of an epoch divide by this, so that one and two ranks both make whole batches only.
_GRAIN = 2 * BATCH_PER_RANK
_TARGET_S, _SHORT_S, _LONG_S = 2.5, 1.3, 7.0
_QUICK_PART = 4  # a quick bench trains on a quarter of the rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Exercise:
    """One of the paper's workloads as the bench trains it.

    `rows` (all ranks together) are about the data set's own number, or fewer where a network is so slow that
    an epoch would last longer than a second. `guess` is rows per second and rank of a fast contender; it only
    chooses the number of epochs, and a first launch that shows it wrong is repeated.
    """

    dataset: str
    model: str
    rows: int
    guess: float

    @property
    def name(self) -> str:
        """The workload's name, ``mnist-dnn``."""
        return f"{self.dataset}-{self.model}"


EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for exercise in (
        Exercise(dataset="adult", model="dnn", rows=32_512, guess=300_000),
        Exercise(dataset="acoustic", model="dnn", rows=51_200, guess=300_000),
        Exercise(dataset="mnist", model="dnn", rows=51_200, guess=200_000),
        Exercise(dataset="mnist", model="cnn", rows=2_048, guess=1_700),
        Exercise(dataset="cifar10", model="dnn", rows=25_600, guess=40_000),
        Exercise(dataset="cifar10", model="cnn", rows=1_024, guess=1_200),
        Exercise(dataset="higgs", model="dnn", rows=51_200, guess=300_000),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the user asked for. `rows` replaces every workload's own number, None keeps it."""

    workloads: tuple[str, ...]
    rounds: int = 3
    rows: int | None = None
    quick: bool = False
    force: bool = False
    limit_s: int = 180
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.workloads:
            if name not in EXERCISES:
                raise unknown("WORKLOADS", name, EXERCISES)
        if self.rounds < 1:
            raise UserError(f"ROUNDS={self.rounds} is too small: use at least 1")
        if self.rows is not None and self.rows < _GRAIN:
            raise UserError(f"ROWS={self.rows} is too small: use at least {_GRAIN}, one batch on each of two ranks")
        if self.limit_s < 1:
            raise UserError(f"limit {self.limit_s} s is too small: use at least 1")

    def task(self, workload: str) -> Task:
        """Return the task of `workload` with the fewest epochs."""
        exercise = EXERCISES[workload]
        rows = self.rows or (exercise.rows // _QUICK_PART if self.quick else exercise.rows)
        return Task(
            dataset=exercise.dataset,
            model=exercise.model,
            rows=rows // _GRAIN * _GRAIN,
            epochs=MIN_TIMED_EPOCHS,
            seed=self.seed,
        )


def guess_epochs(task: Task, *, ranks: int, fast: bool) -> int:
    """Return the timed epochs to try first, before a contender's speed on this machine is known."""
    if not fast:
        return MIN_TIMED_EPOCHS
    return fit_epochs(task.rows / (EXERCISES[f"{task.dataset}-{task.model}"].guess * ranks))


def fit_epochs(epoch_s: float) -> int:
    """Return how many epochs of `epoch_s` seconds last about 2.5 s; at least the fewest that give a median."""
    return max(MIN_TIMED_EPOCHS, math.ceil(_TARGET_S / max(epoch_s, 1e-6)))


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
