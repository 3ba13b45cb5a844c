"""Losses per row, from logits."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Floats = npt.NDArray[np.float32]


def row_losses(loss: str, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return float32 [rows]: ``cross-entropy``, or ``squared-error`` of the softmax, summed over classes.

    `labels` int32 [rows], `logits` float32 [rows, classes].
    """
    if loss == "cross-entropy":
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    target = tf.one_hot(labels, logits.shape[-1])
    return tf.reduce_sum(tf.square(tf.nn.softmax(logits) - target), axis=-1)


def smooth(rows: tf.Tensor, logits: tf.Tensor, part: float) -> tf.Tensor:
    """Return cross-entropies `rows` [rows] with `part` of each label spread over all classes.

    As in Szegedy et al. 2016 ("Rethinking the Inception Architecture"), section 7.
    """
    spread = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
    return (1 - part) * rows + part * spread


def prepare_input(rows: tf.Tensor, shift: Floats | None, factor: Floats | None) -> tf.Tensor:
    """Return the network's input float32: `rows` as they are, or (rows - shift) * factor for uint8 images."""
    if shift is None or factor is None:
        return rows
    if shift.size == 1:  # one pass over the batch instead of three, which a small network feels
        low, high = (float((value - shift.item()) * factor.item()) for value in (0, 255))
        return tf.quantization.dequantize(tf.bitcast(rows, tf.quint8), low, high, mode="MIN_COMBINED")
    return (tf.cast(rows, tf.float32) - shift) * factor
