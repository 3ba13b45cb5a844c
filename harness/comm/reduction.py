"""Sums of tensors over all ranks, inside a TensorFlow graph."""

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import tensorflow as tf

    from harness.comm.world import World


class Reduction(Protocol):
    """One grouped allreduce: all tensors of a step in one call, so that no two calls can cross."""

    name: str

    def sum(self, tensors: "list[tf.Tensor]") -> "list[tf.Tensor]":
        """Return the element-wise sums over all ranks; shapes and dtypes as given. For use in a graph."""

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return float64 [calls, 2]: entry and exit (s, perf_counter) of every call since the last take."""


def select(world: "World") -> Reduction:
    """Return the reduction to use on `world`."""
    from harness.comm.bridge import BridgeReduction

    return BridgeReduction(world.comm)
