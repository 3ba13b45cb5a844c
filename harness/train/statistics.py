"""Batch normalisation's statistics, which are each rank's own while it trains."""

import keras
import numpy as np
import tensorflow as tf

from harness.comm.world import World
from harness.models.global_batch_layers import normalisations


def own_statistics(model: keras.Model) -> tuple[keras.Variable, ...]:
    """Return the floating-point weights of `model` that are not trained."""
    return tuple(variable for variable in model.non_trainable_variables if tf.as_dtype(variable.dtype).is_floating)


def average_statistics(world: World, model: keras.Model, weight: float) -> None:
    """Make every rank's `own_statistics` those of the rows of all ranks; `weight` is this rank's part of the rows.

    They become weighted means over the ranks. To batch normalisation's variances the variance between the ranks'
    means is added (the law of total variance), as one rank with all rows sees it.
    """
    if world.size == 1:
        return

    def mean(value: np.ndarray) -> np.ndarray:
        total = np.empty_like(value, np.float64)
        world.comm.Allreduce(np.array(value * np.float64(weight)), total)
        return total

    between = {}
    for layer in normalisations(model):
        rank_mean = np.asarray(layer.moving_mean)
        between[id(layer.moving_variance)] = mean(np.square(rank_mean - mean(rank_mean)))
    for variable in own_statistics(model):
        variable.assign(mean(np.asarray(variable)) + between.get(id(variable), 0.0))
