"""Dropout whose masks do not depend on the number of ranks."""

from typing import Any

import keras
import tensorflow as tf


class RowDropout(keras.layers.Layer):
    """Dropout that draws the mask of the whole global batch on every rank and uses the rank's own rows of it.

    So 1 and P ranks drop the same units of the same images. The masks follow from the seed and from `calls`,
    the number of training steps made: a weight, so that it is saved and restored with the others.
    """

    def __init__(self, rate: float, **options: Any) -> None:
        super().__init__(**options)
        self.rate = rate
        self._seed, self._first, self._total = 0, 0, 0

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the counter of steps."""
        self.calls = self.add_weight(name="calls", shape=(), dtype="int32", initializer="zeros", trainable=False)

    def place(self, *, seed: int, first: int, total: int) -> None:
        """Say that this replica's rows start at row `first` of a global batch of `total` rows."""
        self._seed, self._first, self._total = seed, first, total

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return `inputs` [rows, units] as they are, or in training about `rate` of them 0 and the others larger."""
        if not training:
            return inputs
        count = tf.shape(inputs)[0]
        total = tf.maximum(self._total, self._first + count)
        seed = tf.stack([tf.constant(self._seed, tf.int64), tf.cast(self.calls.value, tf.int64)])
        chances = tf.random.stateless_uniform([total, inputs.shape[-1]], seed)
        self.calls.assign_add(1)
        kept = chances[self._first : self._first + count] >= self.rate
        return tf.where(kept, inputs / tf.cast(1 - self.rate, inputs.dtype), tf.zeros_like(inputs))

    def get_config(self) -> dict[str, Any]:
        """Return what a copy needs."""
        return {**super().get_config(), "rate": self.rate}


def place_dropout(model: keras.Model, *, seed: int, first: int, total: int) -> None:
    """Tell every `RowDropout` of `model` which rows of the global batch are this replica's; see its `place`."""
    drops = [layer for layer in model._flatten_layers() if isinstance(layer, RowDropout)]
    for number, layer in enumerate(drops):
        layer.place(seed=seed * len(drops) + number, first=first, total=total)
