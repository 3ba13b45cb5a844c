"""Keras's optimizers, by the names users write; SGD and Adam update with TensorFlow's fused kernels."""

import keras
import tensorflow as tf

from harness.comm.policies import SyncPolicy
from harness.spec.workload import Workload

_MOMENTUM = 0.9


def build_optimizer(workload: Workload, total_steps: int) -> keras.optimizers.Optimizer:
    """Return the workload's optimizer; a cosine schedule falls to zero over `total_steps` steps."""
    rate: float | keras.optimizers.schedules.LearningRateSchedule = workload.learning_rate
    if workload.schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(workload.learning_rate, decay_steps=total_steps)
    match workload.optimizer:
        case "sgd":
            return FusedSGD(rate)
        case "momentum":
            return keras.optimizers.SGD(rate, momentum=_MOMENTUM)
        case "adagrad":
            return keras.optimizers.Adagrad(rate)
        case "adam":
            return FusedAdam(rate)
    raise AssertionError(workload.optimizer)


def update(
    optimizer: keras.optimizers.Optimizer,
    policy: SyncPolicy,
    gradients: list[tf.Tensor],
    variables: list[keras.Variable],
) -> None:
    """Apply what the policy makes of this rank's gradients; plain SGD is left to the reduction where it can do it."""
    if policy.descends and isinstance(optimizer, FusedSGD):
        policy.descend(gradients, variables, optimizer.learning_rate)
        optimizer.iterations.assign_add(1)
    else:
        optimizer.apply(policy.gradients(gradients), variables)


class FusedSGD(keras.optimizers.SGD):
    """Keras's SGD without momentum, each variable updated by one operation instead of two."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Subtract learning_rate * gradient."""
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=tf.cast(learning_rate, gradient.dtype), delta=gradient
        )


class FusedAdam(keras.optimizers.Adam):
    """Keras's Adam, each variable updated by one operation instead of about a dozen; the same formula."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update the moments and the variable (Kingma and Ba 2015, the efficient form at the end of section 2)."""
        kind = gradient.dtype
        step = tf.cast(self.iterations.value + 1, kind)
        index = self._get_variable_index(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(tf.constant(self.beta_1, kind), step),
            beta2_power=tf.pow(tf.constant(self.beta_2, kind), step),
            lr=tf.cast(learning_rate, kind),
            beta1=tf.constant(self.beta_1, kind),
            beta2=tf.constant(self.beta_2, kind),
            epsilon=tf.constant(self.epsilon, kind),
            grad=gradient,
        )
