"""The sync policies at the optimizer: gradients averaged before a step, or weights after it."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from harness.transparent.rows import own_variable
from harness.transparent.runtime import Runtime


class Synchroniser:
    """Averages what the settings say, weighted by rows."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._counters: dict[int, tf.Variable] = {}

    def gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients to apply, as the sync policy has it. None stays None.

        Sparse gradients (`tf.IndexedSlices`) come back dense: their indices differ from rank to rank.
        """
        self._runtime.synchronised = True
        policy = self._runtime.sync
        if not policy.shares_gradients:
            return policy.gradients(gradients, self._runtime.collectives.mean)
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if any(isinstance(gradients[i], tf.IndexedSlices) for i in present):
            self._runtime.note("sparse gradients are averaged as dense tensors")
        dense = [tf.ensure_shape(tf.convert_to_tensor(gradients[i]), variables[i].shape) for i in present]
        means = policy.gradients(dense, self._runtime.collectives.mean)
        found = dict(zip(present, means, strict=True))
        return [found.get(i) for i in range(len(gradients))]

    def after_step(self, owner: object, variables: Sequence[Any]) -> None:
        """Average the weights at the end of the sync policy's period; `owner` is the optimizer whose step it was."""
        period = self._runtime.sync.period
        if not period:
            return
        if id(owner) not in self._counters:
            self._counters[id(owner)] = own_variable(0, "harness_steps")
        due = tf.equal(self._counters[id(owner)].assign_add(1) % period, 0)
        if tf.executing_eagerly():
            if due:
                self._average(variables)
            return
        tf.cond(due, lambda: self._average(variables), lambda: tf.constant(0))

    def _average(self, variables: Sequence[Any]) -> tf.Tensor:
        with self._runtime.rows.given(None):
            values = [tf.convert_to_tensor(variable) for variable in variables]
            weights = self._runtime.sync.weights(values, self._runtime.collectives.mean)
        for variable, value in zip(variables, weights, strict=True):
            variable.assign(value)
        return tf.constant(0)
