"""The network of one launch, with what its layers must know about the ranks."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf

from harness import models
from harness.base.errors import SharedError, UserError
from harness.comm.autotune import select
from harness.comm.reduction import Reduction, differentiable_sum
from harness.comm.world import World, needs_sync
from harness.models.ranks import BatchPart, divide_randomness, normalisations, row_means, synchronise
from harness.schema.sweep import Point
from harness.schema.workload import Workload
from harness.train.shard_data import RankData


def build_network(point: Point, data: RankData) -> keras.Model:
    """Return the workload's network, from the launch's seed.

    Raises:
        SharedError: the network does not have what the workload asks for; on every rank.
        UserError: it is unknown or does not suit the data.
    """
    workload = point.workload
    tf.keras.utils.set_random_seed(point.seed)
    model = models.build(
        workload.model,
        dataset=workload.dataset,
        features=data.record.features,
        classes=data.record.classes,
        init=workload.init,
        precision=workload.precision,
    )
    if workload.sync_bn and not normalisations(model):
        error = f"SYNC_BN=1, but {workload.model} has no batch normalisation: leave it out"
        raise SharedError(UserError(error))
    return model


def place_layers(world: World, workload: Workload, model: keras.Model) -> tuple[BatchPart, Reduction | None]:
    """Let dropout and synchronised batch normalisation treat this rank's rows as a part of the global batch.

    Return what tells them which part, and normalisation's reduction, None where it needs none: gradients have
    another, so that no two calls can cross.
    """
    part = BatchPart()
    divide_randomness(model, part, world.rank)
    if not workload.sync_bn or not needs_sync(world.size):
        return part, None
    floats = max(2 * layer.moving_mean.shape[0] + 1 for layer in normalisations(model))
    reduction = select(world, [floats * np.dtype(np.float64).itemsize])
    total = partial(differentiable_sum, reduction, label="batch normalisation")
    synchronise(model, row_means(total, part))
    return part, reduction


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
        own = np.asarray(layer.moving_mean)
        between[id(layer.moving_variance)] = mean(np.square(own - mean(own)))
    for variable in own_statistics(model):
        variable.assign(mean(np.asarray(variable)) + between.get(id(variable), 0.0))
