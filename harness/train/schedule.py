"""The learning rate over a run: warm-up, then constant, cosine or exponential."""

from typing import Any, TypeAlias

import keras
import tensorflow as tf

from harness.spec.workload import Workload

Rate: TypeAlias = "float | keras.optimizers.schedules.LearningRateSchedule"


def learning_rate(workload: Workload, *, steps_per_epoch: int, ranks: int) -> Rate:
    """Return the workload's learning rate by step.

    Linear scaling multiplies it by the ranks (Goyal et al. 2017, section 2.1: the batch grows with them). During
    warm-up it grows evenly from the unscaled rate (section 2.2); the schedule begins behind it.
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
        self.base, self.peak, self.steps, self.then = base, peak, steps, then

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the rate of step number `step` (from 0), a float32 scalar."""
        place = tf.cast(step, tf.float32)
        rising = self.base + (self.peak - self.base) * place / self.steps
        after = self.then(tf.maximum(place - self.steps, 0.0)) if callable(self.then) else self.then
        return tf.where(place < self.steps, rising, after)

    def get_config(self) -> dict[str, Any]:
        """Return what a copy needs."""
        return {"base": self.base, "peak": self.peak, "steps": self.steps, "then": self.then}
