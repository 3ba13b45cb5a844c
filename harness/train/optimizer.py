"""Keras's optimizers, by the names users write."""

import keras

from harness.spec.workload import Workload

_MOMENTUM = 0.9


def build_optimizer(workload: Workload, total_steps: int) -> keras.optimizers.Optimizer:
    """Return the workload's optimizer; a cosine schedule falls to zero over `total_steps` steps."""
    rate: float | keras.optimizers.schedules.LearningRateSchedule = workload.learning_rate
    if workload.schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(workload.learning_rate, decay_steps=total_steps)
    match workload.optimizer:
        case "sgd":
            return keras.optimizers.SGD(rate)
        case "momentum":
            return keras.optimizers.SGD(rate, momentum=_MOMENTUM)
        case "adagrad":
            return keras.optimizers.Adagrad(rate)
        case "adam":
            return keras.optimizers.Adam(rate)
    raise AssertionError(workload.optimizer)
