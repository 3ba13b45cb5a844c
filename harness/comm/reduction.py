"""Sums of tensors over all ranks, inside a TensorFlow graph: what a reduction can do, through Python and natively."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from harness.schema.message_cost import Algorithm
from harness.schema.record_notes import Note

if TYPE_CHECKING:
    import keras


class Reduction(Protocol):
    """One grouped allreduce: all tensors of a step in one call.

    `name` says what it is in the run record; `notes` why it is not what was wanted, and what it was chosen by.
    `overlapped`: sums go on while later gradients are computed.
    """

    algorithm: Algorithm
    overlapped: bool
    name: str
    notes: tuple[Note, ...]

    def sum(self, tensors: "list[tf.Tensor]", scale: float = 1.0, label: str = "sum") -> "list[tf.Tensor]":
        """Return the element-wise sums over all ranks of scale * tensor, for use in a graph.

        All tensors are of one dtype, float32 or float64, and of known shapes; `scale` is this rank's own. `label`
        says what is summed: ranks that meet in sums of another label, size or dtype are ended with a sentence.
        """

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 2]: entry and exit (s, perf_counter) of every call since the last take."""

    def recent(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 4]: number, bytes, entry and exit of the last calls, oldest first.

        The exit is 0 while the call goes on. Any thread may ask at any time.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """One step of an optimizer, after `steps` (int64) steps: `rule` is sgd, momentum or adam.

    `first` and `second` are its own values for every variable: velocities, or the two moments. `decay1` is momentum or
    Adam's beta_1, `decay2` its beta_2; `rate` a scalar.
    """

    rule: str
    rate: "tf.Tensor"
    steps: "tf.Tensor"
    first: "Sequence[keras.Variable]" = ()
    second: "Sequence[keras.Variable]" = ()
    decay1: float = 0.0
    decay2: float = 0.0
    epsilon: float = 0.0


@runtime_checkable
class Updater(Protocol):
    """What a reduction has besides when it can update weights in the same pass."""

    def update(
        self, step: Descent, variables: "list[keras.Variable]", gradients: "list[tf.Tensor]", label: str
    ) -> None:
        """Make `step` on the variables by the sums over all ranks of the gradients, in one operation."""


def differentiable_sum(reduction: Reduction, vector: tf.Tensor, label: str) -> tf.Tensor:
    """Return the sum over all ranks of `vector`, for a network's layers: its gradient is summed over all ranks too."""

    @tf.custom_gradient
    def summed(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return reduction.sum([values], label=label)[0], lambda upstream: reduction.sum(
            [upstream], label=f"{label}, backward"
        )[0]

    return summed(vector)


RECENT_CALLS = 32  # calls, as Group::kRecent
