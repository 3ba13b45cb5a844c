"""Keras layers that look beyond one row: batch normalisation over all ranks, dropout different on each."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from harness.models.ranks import batch_moments, rank_seed
from harness.transparent.collectives import Collectives
from harness.transparent.patch import replace
from harness.transparent.runtime import Runtime


def install(runtime: Runtime) -> None:
    """Replace batch normalisation's moments, and the draw of a seed for a random layer."""
    from keras.src.layers.normalization.batch_normalization import BatchNormalization
    from keras.src.random.seed_generator import SeedGenerator

    def make_next(original: Callable[..., Any]) -> Callable[..., Any]:
        def next_seed(generator: Any, *args: Any, **kwargs: Any) -> Any:
            seed = original(generator, *args, **kwargs)
            if runtime.quiet:
                return seed
            return rank_seed(seed, runtime.world.rank)

        return next_seed

    def make_moments(original: Callable[..., Any]) -> Callable[..., Any]:
        def moments(layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None) -> Any:
            if runtime.quiet or not runtime.sync.shares_gradients:
                return original(layer, inputs, mask)
            return batch_moments(layer, original, partial(_differentiable_means, runtime.collectives), inputs, mask)

        return moments

    replace(SeedGenerator, "next", ("self", "ordered"), make_next)
    replace(BatchNormalization, "_moments", ("self", "inputs", "mask"), make_moments)


def _differentiable_means(collectives: Collectives, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
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
