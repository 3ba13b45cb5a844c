"""Numbers that a step reports: the same on every rank."""

import weakref
from typing import Any

import tensorflow as tf

from harness.transparent.collectives import Collectives


class Scalars:
    """Averages the scalars that come out of a step, and knows which are of all ranks already."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._global: dict[int, weakref.ref[Any]] = {}

    def mark(self, structure: Any) -> Any:
        """Note that the tensors in `structure` are the same on all ranks; return it."""
        for leaf in tf.nest.flatten(structure):
            if tf.is_tensor(leaf):
                self._remember(leaf)
        return structure

    def _remember(self, leaf: Any) -> None:
        key = id(leaf)  # graph tensors cannot be compared or hashed
        self._global[key] = weakref.ref(leaf, lambda _: self._global.pop(key, None))

    def average(self, structure: Any) -> Any:
        """Return `structure` with every floating scalar tensor in it as its mean over the ranks, weighted by rows."""
        leaves = tf.nest.flatten(structure)
        chosen = [
            i
            for i, leaf in enumerate(leaves)
            if tf.is_tensor(leaf)
            and isinstance(leaf, tf.Tensor)
            and leaf.shape.rank == 0
            and leaf.dtype.is_floating
            and id(leaf) not in self._global
        ]
        if not chosen:
            return structure
        means = self._collectives.mean([leaves[i] for i in chosen], "reported numbers")
        for i, mean in zip(chosen, means, strict=True):
            leaves[i] = mean
        return self.mark(tf.nest.pack_sequence_as(structure, leaves))
