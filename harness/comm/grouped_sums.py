"""Sums over the ranks inside graphs, on reductions that are opened by need, and who watches them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import tensorflow as tf

from harness.comm.autotune import native_operations, open_as, prepare, select
from harness.comm.reduction import Reduction
from harness.comm.world import World

_SMALLEST = 64 * 1024  # bytes; calls of less share one group


class Watch(Protocol):
    """What is told of collectives so that one which never ends can be explained."""

    def opened(self, reduction: Reduction) -> None:
        """Take note of a reduction whose calls are to be watched."""

    def named(self, size: int, label: str) -> None:
        """Take note that in-graph calls of `size` bytes are called `label`."""

    def inside(self, label: str, size: int) -> AbstractContextManager[None]:
        """Watch one exchange that is made from Python."""


class GroupedSums:
    """Sums over the ranks of `world`; they all make the same calls in the same order."""

    def __init__(self, world: World, watch: Watch) -> None:
        self.world = world
        self.watch = watch
        self._groups: dict[int, Reduction] = {}
        prepare(world)

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """The reductions opened so far, the largest last."""
        return tuple(self._groups[size] for size in sorted(self._groups))

    def reopen(self, world: World) -> None:
        """Sum over the ranks of `world`, some of today's, in graphs that are built already too; on all of them."""
        self.world = world
        own = {room: group.way for room, group in self._groups.items()}
        # A failure may have kept a group from being opened on some.
        ways = {room: way for each in world.comm.allgather(own) for room, way in each.items()}
        for room, way in sorted(ways.items()):
            if room in self._groups:
                self._groups[room].reopen(world.comm)
            else:
                self._groups[room] = open_as(world, room, way)
                self.watch.opened(self._groups[room])

    def sum(
        self, tensors: Sequence[tf.Tensor], label: str, scale: float = 1.0, *, half: bool = False
    ) -> list[tf.Tensor]:
        """Return the sums over all ranks of scale * tensor; floating tensors of known shapes, any of them.

        With `half`, float16 travels as such where the native operation sums; as float32 otherwise.
        """
        results: list[tf.Tensor | None] = [None] * len(tensors)
        half = half and native_operations() is not None
        types = [
            tensor.dtype if tensor.dtype == tf.float64 or (half and tensor.dtype == tf.float16) else tf.float32
            for tensor in tensors
        ]
        for dtype in (tf.float32, tf.float64, tf.float16):
            chosen = [i for i, kind in enumerate(types) if kind == dtype]
            if not chosen:
                continue
            sums = self._sum([tf.cast(tensors[i], dtype) for i in chosen], label, scale)
            for i, total in zip(chosen, sums, strict=True):
                results[i] = tf.cast(total, tensors[i].dtype)
        return [result for result in results if result is not None]

    def _sum(self, tensors: list[tf.Tensor], label: str, scale: float) -> list[tf.Tensor]:
        # What is not known while the graph is built may be larger than its group's memory: it then goes by messages.
        sizes = [tensor.dtype.size * (tensor.shape.num_elements() or 0) for tensor in tensors]
        self.watch.named(sum(sizes), label)
        return self._group(sizes).sum(tensors, scale, label)

    def _group(self, sizes: list[int]) -> Reduction:
        """Return the reduction for calls of as many bytes as `sizes` together, in steps of powers of two.

        It is opened on first use, and the way that it takes tried with tensors of these sizes.
        """
        room = max(_SMALLEST, 1 << (sum(sizes) - 1).bit_length())
        if room not in self._groups:
            with tf.init_scope(), self.watch.inside("opening a reduction", room):
                self._groups[room] = select(self.world, sizes, room=room, guard=True)
            self.watch.opened(self._groups[room])
        return self._groups[room]
