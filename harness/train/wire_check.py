"""Compare 16-bit sums with float32's, before training relies on them and while it does."""

import numpy as np
import tensorflow as tf

from harness.comm.compression import WireReduction
from harness.train.image_stream import ImageFiles, image_dataset
from harness.train.load import RankData
from harness.train.step import TrainState, first_output, prepare_input, row_losses


def check_wire(
    rank: int, data: RankData, state: TrainState, reduction: WireReduction, *, seed: int, epoch: int
) -> None:
    """Have `reduction` compare the sums of the gradients of the first batch of `epoch`, under the weights as they are.

    Raises:
        SharedError: the 16-bit sums are too far off, on every rank.
    """
    inputs, labels = _first_batch(rank, data, seed, epoch)
    variables = state.model.trainable_variables
    values = [variable.value for variable in variables]
    if len(labels):
        with tf.GradientTape() as tape:
            # Not in training mode: batch normalisation must keep its statistics.
            logits = first_output(state.model(inputs, training=False))
            loss = tf.reduce_sum(row_losses(state.loss, labels, logits))
            loss = state.optimizer.scale_loss(loss / state.synchroniser.divisor(len(labels), data.shards.batch))
        gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    else:
        gradients = [tf.zeros_like(value) for value in values]
    reduction.check([tf.convert_to_tensor(gradient) for gradient in gradients], f"epoch {epoch + 1}'s first batch")
    reduction.take_calls()


def _first_batch(rank: int, data: RankData, seed: int, epoch: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the network's input and the labels of the rank's rows of the epoch's first batch."""
    order, partial = data.shards.order(rank, seed=seed, epoch=epoch)
    rows = order[0] if len(order) else partial
    if data.files is None or not len(rows):
        return prepare_input(tf.gather(data.train_x, rows), data.shift, data.factor), tf.gather(data.train_y, rows)
    images = image_dataset(
        ImageFiles(data.files), data.train_x, data.train_y, rows.astype(np.int64), batch=len(rows),
        size=data.record.features[0], threads=1, salt=None,
    )  # fmt: skip
    decoded, labels = next(iter(images))
    return prepare_input(decoded, data.shift, data.factor), labels
