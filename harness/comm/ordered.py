"""Several sums over ranks in one graph, always made in the same order on every rank."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

if TYPE_CHECKING:
    from harness.comm.reduction import Reduction


class OrderedReduction:
    """A reduction whose calls in one graph wait for each other in the order in which they were traced.

    TensorFlow runs independent operations in any order: two ranks would meet in different calls. The sums have
    a gradient, the sum over all ranks of the incoming gradients, so that a network may call it in its layers.
    """

    def __init__(self, reduction: "Reduction") -> None:
        self.name, self.note = reduction.name, reduction.note
        self._reduction = reduction
        self._last: Any = None

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Return the sum over all ranks of `vector`, float32 or float64 of known shape."""

        @tf.custom_gradient
        def summed(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return self._sum(values), self._sum

        return summed(vector)

    def take_calls(self) -> npt.NDArray[np.float64]:
        """Return entry and exit (s, perf_counter) of every call since the last take."""
        return self._reduction.take_calls()

    def _sum(self, values: tf.Tensor) -> tf.Tensor:
        before = self._last
        here = before is not None and before.graph is tf.compat.v1.get_default_graph()
        with tf.control_dependencies([before] if here else []):
            result = self._reduction.sum([values])[0]
        self._last = result.op
        return result
