"""Keras's optimizers, by the names users write; SGD, momentum and Adam update with TensorFlow's fused kernels."""

from typing import Any, TypeAlias, TypeGuard

import keras
import tensorflow as tf

from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.comm.reduction import Descent
from harness.schema.own_code import import_own
from harness.schema.workload import OPTIMIZERS, Workload

Rate: TypeAlias = "float | keras.optimizers.schedules.LearningRateSchedule"


def learning_rate(workload: Workload, *, steps_per_epoch: int, ranks: int) -> Rate:
    """Return the workload's learning rate by step.

    Linear scaling multiplies it by the ranks (Goyal et al. 2017, section 2.1: the batch grows with them). During
    warm-up it grows evenly from the unscaled rate (section 2.2); the schedule begins after it.
    """
    base = workload.learning_rate
    peak = base * ranks if workload.rate_scaling == "linear" else base
    warm_up = workload.warmup_epochs * steps_per_epoch if peak != base else 0
    total = workload.epochs * steps_per_epoch - warm_up
    rate: Rate = peak
    if workload.schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(peak, decay_steps=max(1, total))
    elif workload.schedule == "exponential":
        rate = keras.optimizers.schedules.ExponentialDecay(peak, decay_steps=1, decay_rate=workload.decay)
    return WarmUp(base=base, peak=peak, steps=warm_up, then=rate) if warm_up else rate


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Rise evenly from `base` to `peak` over `steps` steps, then follow `then`, which counts from there."""

    def __init__(self, *, base: float, peak: float, steps: int, then: Rate) -> None:
        self.base = base
        self.peak = peak
        self.steps = steps
        self.then = then

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the rate of step number `step` (from 0), a float32 scalar."""
        place = tf.cast(step, tf.float32)
        rising = self.base + (self.peak - self.base) * place / self.steps
        after = self.then(tf.maximum(place - self.steps, 0.0)) if callable(self.then) else self.then
        return tf.where(place < self.steps, rising, after)

    def get_config(self) -> dict[str, Any]:
        """Return what a copy needs."""
        return {"base": self.base, "peak": self.peak, "steps": self.steps, "then": self.then}


_MOMENTUM = 0.9


def build_optimizer(workload: Workload, *, steps_per_epoch: int, ranks: int) -> keras.optimizers.Optimizer:
    """Return the workload's optimizer; under mixed_float16 its loss is scaled so that small gradients survive.

    Raises:
        UserError: it is the user's own, and cannot be imported or is no Keras optimizer.
    """
    name = workload.optimizer
    rate = learning_rate(workload, steps_per_epoch=steps_per_epoch, ranks=ranks)
    optimizer = import_own("optimizer", OPTIMIZERS.get(name, name))(rate)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UserError(
            f"{setting('optimizer', name)} returned {type(optimizer).__name__}: it must return a Keras optimizer"
        )
    if workload.precision == "mixed_float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def only_steps(
    optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]
) -> TypeGuard["FusedSGD | FusedMomentum | FusedAdam"]:
    """Return whether Keras's `apply` would only make the steps: no clipping, averaging, constraint or the like."""
    besides = (
        optimizer.clipnorm,
        optimizer.clipvalue,
        optimizer.global_clipnorm,
        optimizer.weight_decay,
        optimizer.loss_scale_factor,
        optimizer.gradient_accumulation_steps,
    )
    return (
        type(optimizer) in (FusedSGD, FusedMomentum, FusedAdam)  # one that is derived may have a step of its own
        and all(setting is None for setting in besides)
        and not optimizer.use_ema
        and not any(variable.constraint or variable.overwrite_with_gradient for variable in variables)
        and all(variable.dtype in ("float32", "float64") for variable in variables)
    )


class FusedSGD(keras.optimizers.SGD):
    """Keras's SGD without momentum, each variable updated by one operation instead of two."""

    def descent(self, variables: list[keras.Variable]) -> Descent:
        """Return the step of `variables` that comes next."""
        return Descent(rule="sgd", rate=self.learning_rate, steps=self.iterations.value)

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Subtract learning_rate * gradient."""
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=tf.cast(learning_rate, gradient.dtype), delta=gradient
        )


class FusedMomentum(keras.optimizers.SGD):
    """Keras's SGD with momentum 0.9, each variable updated by one operation instead of about six; the same formula."""

    def __init__(self, learning_rate: Rate) -> None:
        super().__init__(learning_rate, momentum=_MOMENTUM)

    def descent(self, variables: list[keras.Variable]) -> Descent:
        """Return the step of `variables` that comes next."""
        return Descent(
            rule="momentum",
            rate=self.learning_rate,
            steps=self.iterations.value,
            first=[self.momentums[self._get_variable_index(variable)] for variable in variables],
            decay1=self.momentum,
        )

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Set the velocity to momentum * velocity - learning_rate * gradient and add it to the variable."""
        kind = gradient.dtype
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self.momentums[self._get_variable_index(variable)].value.handle,
            lr=tf.cast(learning_rate, kind),
            grad=gradient,
            momentum=tf.constant(self.momentum, kind),
        )


class FusedAdam(keras.optimizers.Adam):
    """Keras's Adam, each variable updated by one operation instead of about a dozen; the same formula."""

    def descent(self, variables: list[keras.Variable]) -> Descent:
        """Return the step of `variables` that comes next."""
        indices = list(map(self._get_variable_index, variables))
        return Descent(
            rule="adam",
            rate=self.learning_rate,
            steps=self.iterations.value,
            first=[self._momentums[index] for index in indices],
            second=[self._velocities[index] for index in indices],
            decay1=self.beta_1,
            decay2=self.beta_2,
            epsilon=self.epsilon,
        )

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update the moments and the variable (Kingma and Ba 2015, the efficient form at the end of section 2)."""
        kind = gradient.dtype
        step = tf.cast(self.iterations + 1, kind)
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
