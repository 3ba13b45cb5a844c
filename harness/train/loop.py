"""An epoch as one compiled graph: all steps, the optimizer and the synchronisation; no Python per step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import keras
import tensorflow as tf

from harness.comm.policies import SyncPolicy
from harness.train.augment import flip
from harness.train.load import RankData
from harness.train.loss import prepare_input, row_losses
from harness.train.optimizer import update

Epoch = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainee:
    """What one rank trains: the replica, its optimizer, the loss and the policy that keeps it in step.

    `mirror` has every second image flipped at random (`harness.train.augment`).
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    loss: str
    policy: SyncPolicy
    mirror: bool


def compile_epoch(trainee: Trainee, data: RankData, *, rank: int, drop_remainder: bool) -> Epoch:
    """Return a function that trains one epoch on the rank's rows, which it keeps resident on the device.

    The function takes the order of an epoch (`Shards.order`: int32 [steps, batch] and int32 [partial]) and its
    `flip_salt` (uint32), and returns float32 [steps + 1 if there is a partial batch]: the rank's summed row
    losses of every step.
    """
    x, y = tf.constant(data.train_x), tf.constant(data.train_y)
    batch = len(data.shards.lanes(rank))
    first = data.shards.own_rows(rank).start
    partial_rows = 0 if drop_remainder else data.shards.remainder

    def step(rows: tf.Tensor, salt: tf.Tensor, local_rows: int, global_rows: int) -> tf.Tensor:
        values = tf.gather(x, rows)
        if trainee.mirror:
            values = flip(values, rows + first, salt)
        inputs = prepare_input(values, data.shift, data.factor)
        return _train_step(trainee, inputs, tf.gather(y, rows), local_rows, global_rows)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, batch], tf.int32),
            tf.TensorSpec([_partial(data, rank)], tf.int32),
            tf.TensorSpec([], tf.uint32),
        ]
    )
    def epoch(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
        steps = tf.shape(order)[0]
        losses = tf.TensorArray(tf.float32, size=steps)
        variables = trainee.model.trainable_variables
        period = trainee.policy.period
        whole = tf.constant(0)
        if period:
            whole = steps // period * period
            for block in tf.range(steps // period):
                for index in tf.range(block * period, (block + 1) * period):
                    losses = losses.write(index, step(order[index], salt, batch, data.shards.batch))
                trainee.policy.average(variables)
        for index in tf.range(whole, steps):
            losses = losses.write(index, step(order[index], salt, batch, data.shards.batch))
        result = losses.stack()
        if partial_rows:
            result = tf.concat([result, [step(partial, salt, partial.shape[0], partial_rows)]], axis=0)
        if period is None or (period and partial_rows):
            trainee.policy.average(variables)
        elif period:
            if whole < steps:  # a condition of the graph, not of Python: the steps are not known when it is built
                trainee.policy.average(variables)
        return result

    return cast(Epoch, epoch)


def _partial(data: RankData, rank: int) -> int:
    """Return how many rows of the epoch's partial batch are the rank's."""
    lanes = data.shards.lanes(rank)
    return len(data.shards.own_rows(rank)) - data.shards.full_steps * len(lanes)


def _train_step(trainee: Trainee, inputs: tf.Tensor, labels: tf.Tensor, local_rows: int, global_rows: int) -> tf.Tensor:
    model, policy = trainee.model, trainee.policy
    divisor = float(policy.divisor(local_rows, global_rows))
    variables = model.trainable_variables
    values = [variable.value for variable in variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(row_losses(trainee.loss, labels, model(inputs, training=True)))
        objective = loss / divisor
        if model.losses:  # a user's regularisers count once per global batch
            objective += tf.add_n(model.losses) * (local_rows / divisor)
    gradients = tape.gradient(objective, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    update(trainee.optimizer, policy, dense, variables)
    return loss
