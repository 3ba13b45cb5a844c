"""Batch normalisation over the rows of all ranks."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Keras's batch normalisation with the moments of the global batch: one reduction forward, one backward.

    With it P ranks compute what one rank computes on the same global batch (Zhang et al. 2018, "Context Encoding
    for Semantic Segmentation", section 3). `connect` comes before the first training step.
    """

    _total: Callable[[tf.Tensor], tf.Tensor] | None = None

    def connect(self, total: Callable[[tf.Tensor], tf.Tensor] | None) -> None:
        """Take moments through `total`, the sum of a vector over all ranks; None where one rank has all rows."""
        self._total = total

    def _moments(self, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance [channels] over all rows of all ranks, float32."""
        axes = list(self._reduction_axes)
        channels = inputs.shape[self.axis]
        count = tf.cast(tf.size(inputs), tf.float32) / channels
        local = tf.concat([tf.reduce_sum(inputs, axes), tf.reduce_sum(tf.square(inputs), axes), [count]], axis=0)
        total = local if self._total is None else self._total(local)
        mean = total[:channels] / total[-1]
        # Rounding may bring the difference below zero where a channel hardly varies.
        return mean, tf.maximum(total[channels:-1] / total[-1] - tf.square(mean), 0.0)


def synchronised(model: keras.Model) -> keras.Model:
    """Return a copy of `model`, with new weights, in which batch normalisation is `SyncBatchNormalization`."""

    def copy(layer: keras.Layer) -> keras.Layer:
        kind = type(layer)
        if kind is keras.layers.BatchNormalization:
            return SyncBatchNormalization.from_config(layer.get_config())
        return kind.from_config(layer.get_config())

    return keras.models.clone_model(model, clone_function=copy)


def normalisations(model: keras.Model) -> list[SyncBatchNormalization]:
    """Return the layers of `model` that take their moments over all ranks."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, SyncBatchNormalization)]
