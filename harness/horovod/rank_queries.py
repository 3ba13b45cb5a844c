"""Which ranks there are, as TensorFlow operations."""

from collections.abc import Callable

import tensorflow as tf

from harness.horovod.process_sets import (
    asked_for,
    current_ranks,
    local_rank,
    local_size,
    rank,
)


def _asks(value: Callable[[], int]) -> Callable[..., tf.Tensor]:
    return lambda name=None: asked_for(value)


rank_op = _asks(rank)
local_rank_op = _asks(local_rank)
local_size_op = _asks(local_size)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return the number of ranks of a set, int32."""
    return asked_for(lambda: len(current_ranks().sets[process_set_id].ranks or ()))


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return 1 where this rank is in the set, else 0; int32."""
    return asked_for(lambda: int(rank() in (current_ranks().sets[process_set_id].ranks or ())))
