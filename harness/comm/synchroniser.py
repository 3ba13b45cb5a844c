"""The synchroniser of a launch: carries out its sync policy, so that the replicas stay in step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.comm.native_reduction import NativeReduction
from harness.comm.reduction import Reduction, Updater
from harness.comm.reduction_choice import open_own_updates
from harness.comm.world import World, needs_sync
from harness.schema.sync_policies import Gradients, Mean, NoSync, SyncPolicy

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True, slots=True)
class Synchroniser:
    """What keeps a rank in step; `weight` is its part of all training rows.

    `own_updates` updates weights by this rank's own gradients, for policies that do not share them. `state` is what the
    policy keeps beside the weights.
    """

    policy: SyncPolicy
    reduction: Reduction
    weight: float
    own_updates: NativeReduction | None = None
    state: "tuple[keras.Variable, ...]" = ()

    @property
    def updater(self) -> Updater | None:
        """What does in one operation what `gradients` and the optimizer do in two, None without it."""
        if not self.policy.shares_gradients:
            return self.own_updates
        return self.reduction if isinstance(self.policy, Gradients) and isinstance(self.reduction, Updater) else None

    @property
    def changes_no_gradients(self) -> bool:
        """Whether each rank applies its own gradients as they are."""
        return not self.policy.shares_gradients and type(self.policy).gradients is SyncPolicy.gradients

    def divisor(self, local_rows: int, global_rows: int) -> int:
        """Return what a rank divides its summed loss by: sums of shared gradients are then means over all rows."""
        return global_rows if self.policy.shares_gradients else max(local_rows, 1)

    def gradients(self, gradients: "list[tf.Tensor]") -> "list[tf.Tensor]":
        """Return the gradients to apply on this rank; `gradients` are of the loss divided by `divisor`."""
        return self.policy.gradients(gradients, self._mean(1.0), *self._policy_state())

    def average(self, variables: "list[keras.Variable]") -> None:
        """Set the `variables` to what the policy makes of them at the end of a period."""
        values = [variable.value for variable in variables]
        weights = self.policy.weights(values, self._mean(self.weight), *self._policy_state())
        for variable, value in zip(variables, weights, strict=True):
            variable.assign(value)

    def _mean(self, scale: float) -> Mean:
        return lambda values, label: self.reduction.sum(list(values), scale, label)

    def _policy_state(self) -> "list[tuple[keras.Variable, ...]]":
        return [self.state] if self.state else []  # policies of users' own without a state take none


def synchroniser(
    world: World, policy: SyncPolicy, *, weight: float, reduction: Reduction, weights: "Sequence[keras.Variable]" = ()
) -> Synchroniser:
    """Return what keeps this rank's `weights` in step; one rank alone needs nothing.

    Its weights are updated in the same way all the same: a speedup must not have a faster update in it.
    """
    import keras

    used_policy = policy if needs_sync(world.size) else NoSync()
    own_updates = None if used_policy.shares_gradients else open_own_updates(world, reduction)
    first_values = used_policy.state([variable.numpy() for variable in weights])
    state = tuple(
        keras.Variable(value, dtype=value.dtype.name, trainable=False, name="policy_state") for value in first_values
    )
    return Synchroniser(policy=used_policy, reduction=reduction, weight=weight, own_updates=own_updates, state=state)
