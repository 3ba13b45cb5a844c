"""Keras layers that look beyond one row: batch normalisation over all ranks, dropout different on each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from harness.models.ranks import batch_moments, rank_seed
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
            means = partial(runtime.collectives.differentiable_mean, label="batch normalisation")
            return batch_moments(layer, original, means, inputs, mask)

        return moments

    replace(SeedGenerator, "next", ("self", "ordered"), make_next)
    replace(BatchNormalization, "_moments", ("self", "inputs", "mask"), make_moments)
