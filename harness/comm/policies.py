"""Sync policies: what keeps the replicas in step, and the proof that it did."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.base.errors import RunError, SharedError
from harness.comm.grouped_sums import open_alone
from harness.comm.reduction import NativeReduction, Reduction, Updater
from harness.comm.world import World, needs_sync
from harness.schema.sync import Gradients, Mean, NoSync, SyncPolicy

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclass(frozen=True, kw_only=True, slots=True)
class Synchroniser:
    """What keeps a rank in step; `weight` is its part of all training rows.

    `alone` updates weights by this rank's own gradients, for policies that do not share them. `state` is what the
    policy keeps beside the weights.
    """

    policy: SyncPolicy
    reduction: Reduction
    weight: float
    alone: NativeReduction | None = None
    state: "tuple[keras.Variable, ...]" = ()

    @property
    def updater(self) -> Updater | None:
        """What does in one operation what `gradients` and the optimizer do in two, None without it."""
        if not self.policy.shares_gradients:
            return self.alone
        return self.reduction if isinstance(self.policy, Gradients) and isinstance(self.reduction, Updater) else None

    def divisor(self, local_rows: int, global_rows: int) -> int:
        """Return what a rank divides its summed loss by: sums of shared gradients are then means over all rows."""
        return global_rows if self.policy.shares_gradients else max(local_rows, 1)

    def gradients(self, gradients: "list[tf.Tensor]") -> "list[tf.Tensor]":
        """Return the gradients to apply on this rank; `gradients` are of the loss divided by `divisor`."""
        return self.policy.gradients(gradients, self._mean(1.0), *self._given())

    def average(self, variables: "list[keras.Variable]") -> None:
        """Set the `variables` to what the policy makes of them at the end of a period."""
        weights = self.policy.weights([one.value for one in variables], self._mean(self.weight), *self._given())
        for variable, value in zip(variables, weights, strict=True):
            variable.assign(value)

    def _mean(self, scale: float) -> Mean:
        return lambda values, label: self.reduction.sum(list(values), scale, label)

    def _given(self) -> "list[tuple[keras.Variable, ...]]":
        return [self.state] if self.state else []  # policies of users' own without a state take none


def synchroniser(
    world: World, policy: SyncPolicy, *, weight: float, reduction: Reduction, weights: "Sequence[keras.Variable]" = ()
) -> Synchroniser:
    """Return what keeps this rank's `weights` in step; one rank alone needs nothing.

    Its weights are updated in the same way all the same: a speedup must not have a faster update in it.
    """
    import keras

    kept = policy if needs_sync(world.size) else NoSync()
    alone = None if kept.shares_gradients else open_alone(world, reduction)
    first = kept.state([variable.numpy() for variable in weights])
    state = tuple(keras.Variable(one, dtype=one.dtype.name, trainable=False, name="policy_state") for one in first)
    return Synchroniser(policy=kept, reduction=reduction, weight=weight, alone=alone, state=state)


def broadcast_weights(world: World, variables: "list[keras.Variable]") -> None:
    """Set every variable on every rank to rank 0's value."""
    for variable in variables:
        value = np.array(variable.numpy(), order="C")  # of the same shape, also for a scalar
        world.comm.Bcast(value, root=0)
        if world.rank:
            variable.assign(value)


def hash_weights(variables: "list[keras.Variable]") -> str:
    """Return the SHA-256 of all values in order, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()


def verify_replicas(world: World, variables: "list[keras.Variable]") -> str:
    """Return the weight hash that all ranks share.

    Raises:
        SharedError: a RunError on every rank, naming the first variable that differs and the ranks.
    """
    own = hash_weights(variables)
    hashes = world.comm.allgather(own)
    if len(set(hashes)) == 1:
        return own
    parts = world.comm.allgather([hash_weights([variable]) for variable in variables])
    for index, variable in enumerate(variables):
        odd = [rank for rank in range(world.size) if parts[rank][index] != parts[0][index]]
        if odd:
            ranks = ", ".join(map(str, odd))
            name = getattr(variable, "path", variable.name)  # TensorFlow's own has no path
            raise SharedError(RunError(f"replicas differ: variable '{name}' of rank {ranks} is not that of rank 0"))
    raise AssertionError("the hashes of all weights differ, but no variable's does")
