"""Sync policies: what keeps the replicas in step, and when. All methods are for use inside a graph."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from harness.comm.world import needs_sync
from harness.schema.workload import SyncSpec

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from harness.comm.reduction import FusedSgd, Reduction


class SyncPolicy(Protocol):
    """How the ranks of one launch stay in step.

    `period` is the number of steps after which `average` is due, counted anew in every epoch, at whose end it
    is due too; None for at the end of an epoch only, 0 for never.
    """

    @property
    def period(self) -> int | None: ...

    @property
    def fused(self) -> "FusedSgd | None":
        """What does in one operation what `gradients` and plain gradient descent do in two, None without it."""

    def divisor(self, local_rows: int, global_rows: int) -> int:
        """Return what a rank divides its summed loss by, so that reduced gradients are row-weighted means."""

    def gradients(self, gradients: "list[tf.Tensor]") -> "list[tf.Tensor]":
        """Return the gradients to apply on this rank."""

    def average(self, variables: "list[keras.Variable]") -> None:
        """Average the weights over the ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """No synchronisation: one rank, or ranks side by side to measure the machine's limit."""

    period: int | None = 0
    fused: None = None

    def divisor(self, local_rows: int, global_rows: int) -> int:
        """Return the rank's own rows."""
        return max(local_rows, 1)

    def gradients(self, gradients: "list[tf.Tensor]") -> "list[tf.Tensor]":
        """Return them as they are."""
        return gradients

    def average(self, variables: "list[keras.Variable]") -> None:
        """Leave the weights alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """Sum the gradients of every step over the ranks; each is of the rank's loss over the global batch."""

    reduction: "Reduction"
    period: int | None = 0

    @property
    def fused(self) -> "FusedSgd | None":
        """The reduction, where it can."""
        from harness.comm.reduction import FusedSgd

        return self.reduction if isinstance(self.reduction, FusedSgd) else None

    def divisor(self, local_rows: int, global_rows: int) -> int:
        """Return the rows of the global batch: the sum over ranks is then the mean over all its rows."""
        return global_rows

    def gradients(self, gradients: "list[tf.Tensor]") -> "list[tf.Tensor]":
        """Return the sum over the ranks."""
        return self.reduction.sum(gradients, label="gradients")

    def average(self, variables: "list[keras.Variable]") -> None:
        """Leave the weights alone: equal gradients keep them equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Train locally and average the weights over the ranks every `period` steps (paper A).

    `weight` is this rank's part of all training rows. Optimizer state (momentum, accumulators) stays local,
    as in the papers' scripts.
    """

    reduction: "Reduction"
    period: int | None
    weight: float
    fused: None = None

    def divisor(self, local_rows: int, global_rows: int) -> int:
        """Return the rank's own rows."""
        return max(local_rows, 1)

    def gradients(self, gradients: "list[tf.Tensor]") -> "list[tf.Tensor]":
        """Return them as they are."""
        return gradients

    def average(self, variables: "list[keras.Variable]") -> None:
        """Replace every variable by its mean over the ranks, weighted by training rows."""
        means = self.reduction.sum([variable.value for variable in variables], self.weight, "weights")
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)


def build_policy(text: str, *, ranks: int, weight: float, reduction: "Reduction") -> SyncPolicy:
    """Return the policy that `text` (`SyncSpec`'s form) names for `ranks` ranks; one rank needs none.

    Raises:
        UserError: the text names no policy.
    """
    spec = SyncSpec.parse(text)
    if not needs_sync(ranks) or spec.what == "none":
        return Alone()
    if spec.what == "gradients":
        return Gradients(reduction=reduction)
    return Weights(reduction=reduction, period=spec.every, weight=weight)
