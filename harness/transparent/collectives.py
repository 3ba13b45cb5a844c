"""All that the ranks of a script exchange, on the reductions of `harness.comm`."""

import math
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from harness.comm.autotune import select
from harness.comm.reduction import Reduction
from harness.comm.world import World
from harness.transparent.rows import Rows

_SMALLEST = 64 * 1024  # bytes; calls of less share one group


class Watch(Protocol):
    """What is told of collectives so that one which never ends can be explained."""

    def opened(self, reduction: Reduction) -> None:
        """Take note of a reduction whose calls are to be watched."""

    def named(self, size: int, label: str) -> None:
        """Take note that in-graph calls of `size` bytes are called `label`."""

    def inside(self, label: str, size: int) -> AbstractContextManager[None]:
        """Watch one exchange that is made from Python."""


class Collectives:
    """Sums and means over the ranks inside graphs, exchanges from Python outside of them.

    Every rank makes the same calls in the same order (`harness.comm.reduction.in_sequence`).
    """

    def __init__(self, world: World, rows: Rows, watch: Watch) -> None:
        self.world = world
        self.rows = rows
        self.watch = watch
        self._groups: dict[int, Reduction] = {}

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """The reductions opened so far, the largest last."""
        return tuple(self._groups[size] for size in sorted(self._groups))

    def sum(self, tensors: Sequence[tf.Tensor], label: str, scale: float = 1.0) -> list[tf.Tensor]:
        """Return the sums over all ranks of scale * tensor; floating tensors of known shapes, any of them."""
        results: list[tf.Tensor | None] = [None] * len(tensors)
        for wide in (False, True):
            chosen = [i for i, tensor in enumerate(tensors) if (tensor.dtype == tf.float64) == wide]
            if not chosen:
                continue
            dtype = tf.float64 if wide else tf.float32
            sums = self._sum([tf.cast(tensors[i], dtype) for i in chosen], label, scale)
            for i, total in zip(chosen, sums, strict=True):
                results[i] = tf.cast(total, tensors[i].dtype)
        return [result for result in results if result is not None]

    def mean(self, tensors: Sequence[tf.Tensor], label: str) -> list[tf.Tensor]:
        """Return the means over all ranks, weighted by the rows of their batches."""
        if not tensors:
            return []
        if self.rows.even:
            return self.sum(tensors, label, scale=1 / self.world.size)
        rows = self.rows.now()
        if tensors[0].dtype == tf.float64:  # batch normalisation's: all in one call
            rows = tf.cast(rows, tf.float64)
        # A rank without rows may hold anything, even infinities: multiply_no_nan makes zeros of it.
        scaled = [tf.math.multiply_no_nan(tensor, tf.cast(rows, tensor.dtype)) for tensor in tensors]
        *sums, total = self.sum([*scaled, rows], label)
        return [part / tf.cast(total, part.dtype) for part in sums]

    def broadcast(self, array: "np.ndarray[Any, Any]", label: str) -> None:
        """Overwrite `array` (contiguous) on every rank with rank 0's. From Python, outside of graphs."""
        with self.watch.inside(f"broadcast of {label}", array.nbytes):
            self.world.comm.Bcast(array, root=0)

    def total(self, array: "np.ndarray[Any, Any]", label: str) -> "np.ndarray[Any, Any]":
        """Return the element-wise sum of every rank's `array` (contiguous). From Python, outside of graphs."""
        result = np.empty_like(array)
        with self.watch.inside(label, array.nbytes):
            self.world.comm.Allreduce(array, result)
        return result

    def gather(self, value: object, label: str) -> list[Any]:
        """Return every rank's `value`, in order of ranks. From Python, seldom: it pickles."""
        with self.watch.inside(label, 0):
            return list(self.world.comm.allgather(value))

    def _sum(self, tensors: list[tf.Tensor], label: str, scale: float) -> list[tf.Tensor]:
        size = sum(tensor.dtype.size * math.prod(tensor.shape) for tensor in tensors)
        self.watch.named(size, label)
        return self._group(size).sum(tensors, scale, label)

    def _group(self, size: int) -> Reduction:
        """Return the reduction for calls of up to `size` bytes, in steps of powers of two; opened on first use."""
        room = max(_SMALLEST, 1 << (size - 1).bit_length())
        if room not in self._groups:
            with tf.init_scope(), self.watch.inside("opening a reduction", room):
                self._groups[room] = select(self.world, [room], guard=True)
            self.watch.opened(self._groups[room])
        return self._groups[room]


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
