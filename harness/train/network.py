"""The network of one launch, with what it must know about the ranks."""

import keras
import tensorflow as tf

from harness import models
from harness.base.errors import SharedError, UserError
from harness.comm.autotune import select
from harness.comm.reduction import Reduction, differentiable_sum
from harness.comm.world import World, needs_sync
from harness.models.batch_norm import normalisations, synchronised
from harness.models.dropout import place_dropout
from harness.schema.point import Point
from harness.train.load import RankData


def build_network(world: World, point: Point, data: RankData) -> keras.Model:
    """Return the workload's network as this rank trains it, from the workload's seed.

    Raises:
        SharedError: the network does not have what the workload asks for; on every rank.
        UserError: it is unknown or does not suit the data.
    """
    workload, shards = point.workload, data.shards
    tf.keras.utils.set_random_seed(workload.seed)
    model = models.build(
        workload.model,
        dataset=workload.dataset,
        features=data.record.features,
        classes=data.record.classes,
        init=workload.init,
        precision=workload.precision,
    )
    if workload.sync_bn:
        model = synchronised(model)
        if not normalisations(model):
            error = f"SYNC_BN=1, but {workload.model} has no batch normalisation: leave it out"
            raise SharedError(UserError(error))
    place_dropout(model, seed=workload.seed, first=shards.lanes(world.rank).start, total=shards.batch)
    return model


def connect_normalisation(world: World, model: keras.Model) -> Reduction | None:
    """Give the synchronised normalisations a reduction of their own: gradients have the other one."""
    layers = normalisations(model)
    if not layers or not needs_sync(world.size):
        return None
    floats = max(2 * layer.moving_mean.shape[0] + 1 for layer in layers)
    reduction = select(world, largest=floats * 4)
    for layer in layers:
        layer.connect(lambda moments: differentiable_sum(reduction, moments, "batch normalisation"))
    return reduction
