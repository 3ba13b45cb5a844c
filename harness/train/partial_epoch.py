"""How far a launch has come: whole epochs, and one rank's steps of the epoch under way."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.base.turns import clock
from harness.schema.record import EpochRecord
from harness.train.replica import Replica
from harness.train.step_table import Columns, per_step

Floats = npt.NDArray[np.float64]


@dataclass(kw_only=True, slots=True)
class PartialEpoch:
    """What one rank has of an epoch that is under way: a value for every step made, times in seconds.

    `losses` as `Epoch` returns them, `calls` [calls, 2] since the epoch's begin, `statistics` the seconds inside batch
    normalisation's calls, empty without them; `seconds` since the epoch's begin, `input_s` of them for the order.
    `before`: steps that were made earlier and have no value here.
    """

    losses: list[npt.NDArray[np.float32]] = field(default_factory=list)
    calls: list[Floats] = field(default_factory=list)
    statistics: list[Floats] = field(default_factory=list)
    seconds: float = 0.0
    input_s: float = 0.0
    before: int = 0

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self.before + sum(map(len, self.losses))

    def add(self, replica: Replica, begin: float, losses: tf.Tensor) -> None:
        """Add steps that have just been made; `begin` (s, clock) is the epoch's."""
        self.losses.append(losses.numpy())
        self.seconds = clock() - begin
        if replica.statistics:
            self.statistics.append(per_step(replica.statistics.take_calls(), len(losses)))
        self.calls.append(replica.reduction.take_calls() - begin)


@dataclass(kw_only=True, slots=True)
class Progress:
    """What a launch has done: records and columns of whole epochs, and its part of the current one."""

    epochs: list[EpochRecord] = field(default_factory=list)
    steps: list[Columns] = field(default_factory=list)
    part: PartialEpoch = field(default_factory=PartialEpoch)
    before: int = 0
    """Whole epochs that were trained on another number of ranks: they are in neither list."""

    @property
    def epoch(self) -> int:
        """The number of the epoch that comes next or is under way."""
        return self.before + len(self.epochs)
