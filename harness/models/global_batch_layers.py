"""Layers that look beyond one row, made to see the whole global batch although a rank has a part of it only."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import keras
import tensorflow as tf

from harness.base.errors import UserError

Means: TypeAlias = Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]
"""From each rank's tensors to their means over the ranks, weighted by rows; with a gradient."""


@dataclass(kw_only=True, slots=True)
class BatchPart:
    """Which rows of the global batch a rank's step trains on: `rows` of them from number `first`.

    Layers read it while a step is traced, so that steps of whole and of partial batches differ.
    """

    first: int = 0
    rows: int = 0


def normalisations(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Return the batch normalisations anywhere in `model`."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


def synchronise(model: keras.Model, means: Means) -> None:
    """Let every batch normalisation of `model` take the moments of the global batch; its weights stay.

    With it P ranks compute what one rank computes on the same global batch (Zhang et al. 2018, "Context Encoding
    for Semantic Segmentation", section 3): one reduction forward, one backward.
    """
    for layer in normalisations(model):
        layer._moments = partial(batch_moments, layer, type(layer)._moments, means)


def batch_moments(
    layer: keras.layers.BatchNormalization,
    own_moments: Callable[..., tuple[tf.Tensor, tf.Tensor]],
    means: Means,
    inputs: tf.Tensor,
    mask: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance [channels] over the rows of all ranks; `own_moments` are Keras's, of this rank's.

    In float64, which keeps the digits that the difference of two large squares loses in float32.

    Raises:
        UserError: there is a mask.
    """
    if mask is not None:
        raise UserError(
            f"batch normalisation '{layer.name}' with a mask has other statistics on every rank: "
            "leave the mask out or use LayerNormalization"
        )
    rank_mean, rank_variance = own_moments(layer, inputs, mask)
    mean = tf.cast(rank_mean, tf.float64)
    variance = tf.cast(rank_variance, tf.float64)
    first_moment, second_moment = means([mean, variance + tf.square(mean)])
    variance_of_all = tf.maximum(second_moment - tf.square(first_moment), 0.0)
    return tf.cast(first_moment, rank_mean.dtype), tf.cast(variance_of_all, rank_variance.dtype)


def row_means(total: Callable[[tf.Tensor], tf.Tensor], part: BatchPart) -> Means:
    """Return the means over the ranks by `total`, a vector's differentiable sum over all ranks.

    A rank without rows (`part`) takes part in the sum and adds nothing, whatever it holds.
    """

    def means(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        rows = tf.constant([part.rows], tensors[0].dtype)
        flat = [tf.math.multiply_no_nan(tf.reshape(tensor, [-1]), rows) for tensor in tensors]
        sizes = [math.prod(tensor.shape) for tensor in tensors]
        *sums, all_rows = tf.split(total(tf.concat([*flat, rows], 0)), [*sizes, 1])
        return [tf.reshape(part / all_rows, tensor.shape) for part, tensor in zip(sums, tensors, strict=True)]

    return means


_RANK_STRIDE = 1_000_003


def divide_randomness(model: keras.Model, part: BatchPart, rank: int) -> None:
    """Let the random layers of `model` treat the rank's rows as rows of the global batch.

    `keras.layers.Dropout` drops the same units of the same rows at any number of ranks (`row_mask`). Other random
    layers draw different numbers on every rank: their draws have no place for a row's number.
    """
    for layer in model._flatten_layers():
        if type(layer) is keras.layers.Dropout and layer.rate > 0 and layer.noise_shape is None:
            layer.call = partial(_dropout, layer, part)
        else:
            for generator in layer._seed_generators:
                seed = generator.state.value
                generator.state.assign(seed + tf.cast([rank * _RANK_STRIDE, 0], seed.dtype))


def _dropout(layer: keras.layers.Dropout, part: BatchPart, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    if not training:
        return inputs
    is_unit_used = row_mask(layer.rate, layer.seed_generator.next(), part.first, inputs)
    return tf.where(is_unit_used, inputs / tf.cast(1 - layer.rate, inputs.dtype), tf.zeros_like(inputs))


_PHILOX = 1  # tf.random.Algorithm
_WORDS = 4  # 32-bit numbers of one step of Philox's counter


def row_mask(rate: float, seed: tf.Tensor, first: int, inputs: tf.Tensor) -> tf.Tensor:
    """Return bool of the shape of `inputs` [rows, *units], False for about `rate` of them.

    Whether a unit is dropped follows only from `seed` (uint32 [2]: the layer's seed and its step), from the row's
    number in the global batch, counted from `first`, and from the unit. The counter of the generator (Salmon et al.
    2011, "Parallel random numbers: as easy as 1, 2, 3") is set to the rank's first row. Nothing is drawn for other
    ranks' rows.
    """
    units = math.prod(inputs.shape[1:])
    steps = -(-units // _WORDS)  # of the counter, for a row
    key, step = tf.split(tf.cast(seed, tf.uint64), 2)
    chances = tf.raw_ops.StatelessRandomUniformV2(
        shape=tf.stack([tf.shape(inputs)[0], steps * _WORDS]),
        key=key,
        counter=tf.concat([tf.constant([first * steps], tf.uint64), step], 0),
        alg=_PHILOX,
    )
    return tf.reshape(chances[:, :units], tf.shape(inputs)) >= rate
