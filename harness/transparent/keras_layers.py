"""Keras layers that look beyond one row: batch normalisation over all ranks, dropout different on each."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from harness.base.errors import UserError
from harness.transparent.collectives import Collectives
from harness.transparent.patch import replace
from harness.transparent.runtime import Runtime

_STRIDE = 1_000_003  # between the ranks' seeds


def install(runtime: Runtime) -> None:
    """Replace batch normalisation's moments, and the draw of a seed for a random layer."""
    from keras.src.layers.normalization.batch_normalization import BatchNormalization
    from keras.src.random.seed_generator import SeedGenerator

    def make_next(original: Callable[..., Any]) -> Callable[..., Any]:
        def next_seed(generator: Any, *args: Any, **kwargs: Any) -> Any:
            seed = original(generator, *args, **kwargs)
            if runtime.quiet:
                return seed
            return seed + tf.cast([runtime.world.rank * _STRIDE, 0], seed.dtype)

        return next_seed

    def make_moments(original: Callable[..., Any]) -> Callable[..., Any]:
        def moments(layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None) -> Any:
            if runtime.quiet or runtime.sync.what != "gradients":
                return original(layer, inputs, mask)
            if mask is not None:
                raise UserError(
                    f"batch normalisation '{layer.name}' with a mask has other statistics on every rank: "
                    "leave the mask out or use LayerNormalization"
                )
            mean, variance = original(layer, inputs, mask)
            pivot = tf.cast(tf.stop_gradient(tf.convert_to_tensor(layer.moving_mean)), mean.dtype)
            return _global_moments(runtime.collectives, mean, variance, pivot)

        return moments

    replace(SeedGenerator, "next", ("self", "ordered"), make_next)
    replace(BatchNormalization, "_moments", ("self", "inputs", "mask"), make_moments)


def _global_moments(collectives: Collectives, mean: tf.Tensor, variance: tf.Tensor, pivot: tf.Tensor) -> Any:
    """Return mean and variance over the rows of all ranks, from each rank's own.

    The means are taken around `pivot`, equal on all ranks, so that no digits are lost where they are large.
    """
    shift = mean - pivot
    first, second = _differentiable_mean(collectives, shift, variance + tf.square(shift))
    return first + pivot, second - tf.square(first)


def _differentiable_mean(collectives: Collectives, *values: tf.Tensor) -> list[tf.Tensor]:
    """Return row-weighted means over the ranks; what each rank's loss owes to them flows back to all ranks.

    With L the row-weighted mean of the ranks' losses, rank r's own gradient is weighted again by its rows n_r at
    the optimizer: it must be (sum over s of n_s dL_s/dmean) / N here, and so the weighted mean once more.
    """

    @tf.custom_gradient
    def forward(*tensors: tf.Tensor) -> Any:
        def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
            return collectives.mean(list(upstream), "batch normalisation, backward")

        return collectives.mean(list(tensors), "batch normalisation"), backward

    return list(forward(*values))
