"""How far an attempt has come while it trains: its steps, their seconds, and whether a step is under way."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.schema.record import Stretch
from harness.train.epoch_loop import Epoch
from harness.train.replica import Replica


def count_steps(replica: Replica) -> int:
    """Return how many steps the weights have made since training began."""
    return int(replica.state.optimizer.iterations.numpy())


@dataclass(kw_only=True, slots=True)
class AttemptClock:
    """The steps of one attempt, from its begin at `started` after `first_step` steps of the launch.

    `in_step`: a call of the compiled epoch is under way, which began at `entered` (s, perf_counter) after `call_first`
    steps of the launch. `training_s` are the seconds of all calls that have ended.
    """

    started: datetime
    first_step: int
    training_s: float = 0.0
    in_step: bool = False
    entered: float = 0.0
    call_first: int = 0

    def watched(self, replica: Replica) -> Epoch:
        """Return the replica's epoch, whose calls this clock counts."""

        def train(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
            self.call_first = count_steps(replica)
            self.in_step = True
            self.entered = time.perf_counter()
            losses = replica.epoch(order, partial, salt, last=last)
            self.training_s += time.perf_counter() - self.entered
            self.in_step = False
            return losses

        return train

    def interrupted(self, calls: npt.NDArray[np.float64]) -> int:
        """End a call that a failure has interrupted, after the sums `calls` (`Reduction.take_calls`).

        Returns:
            the steps that the launch has made then.
        """
        if len(calls):
            self.training_s += float(calls[-1, 1]) - self.entered
        return self.call_first + len(calls)

    def stretch(self, ranks: int, steps: int, ended: float | None) -> Stretch | None:
        """Return what `ranks` ranks trained up to step `steps` of the launch, None for nothing.

        `ended` (s, time.time) is when that ended, None for now.
        """
        if steps == self.first_step:
            return None
        return Stretch(
            ranks=ranks,
            first=self.first_step,
            steps=steps - self.first_step,
            started=self.started,
            ended=datetime.now(UTC) if ended is None else datetime.fromtimestamp(ended, UTC),
            training_s=self.training_s,
        )
