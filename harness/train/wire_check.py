"""Compare 16-bit sums with float32's before training relies on them."""

import numpy as np
import tensorflow as tf

from harness.comm.compression import WireReduction
from harness.comm.world import World
from harness.schema.point import Point
from harness.train.load import RankData
from harness.train.step import TrainState, first_output, row_losses

_MOST_ROWS = 64


def check_wire(world: World, point: Point, data: RankData, state: TrainState, reduction: WireReduction) -> None:
    """Have `reduction` compare the sums of a batch's gradients; the rows are random, of the data's shape and spread.

    Raises:
        SharedError: the 16-bit sums are too far off, on every rank.
    """
    rows = min(_MOST_ROWS, max(1, len(data.shards.lanes(world.rank))))
    generator = np.random.default_rng([point.workload.seed, world.rank])
    inputs = tf.constant(generator.standard_normal((rows, *data.record.features)), tf.float32)
    labels = tf.constant(generator.integers(0, data.record.classes, rows), tf.int32)
    variables = state.model.trainable_variables
    values = [variable.value for variable in variables]
    with tf.GradientTape() as tape:
        # Not in training mode: batch normalisation must keep its statistics.
        logits = first_output(state.model(inputs, training=False))
        loss = tf.reduce_sum(row_losses(state.loss, labels, logits))
        loss /= float(rows * world.size)
    gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    reduction.check([tf.convert_to_tensor(gradient) for gradient in gradients])
    reduction.take_calls()
