"""Sums over the ranks on reductions that are opened as calls need them."""

from collections.abc import Sequence

import tensorflow as tf

from harness.comm.hang import HangWatch
from harness.comm.native_library import find_library
from harness.comm.native_reduction import LARGEST_FUSED, NativeReduction
from harness.comm.reduction import Reduction
from harness.comm.reduction_choice import select
from harness.comm.world import World, needs_sync
from harness.schema.message_cost import Algorithm

_SMALLEST = 64 * 1024  # bytes; calls of less share one group


class GroupedSums:
    """Sums over the ranks of `world`; they all make the same calls in the same order."""

    def __init__(self, world: World, watch: HangWatch) -> None:
        self.world = world
        self.watch = watch
        self._groups: dict[int, Reduction] = {}
        self._own: NativeReduction | None = None
        if needs_sync(world.size):
            find_library()  # compiled where that is still to do, before others wait for this rank in an exchange

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """The reductions opened so far, the largest last."""
        return tuple(self._groups[size] for size in sorted(self._groups))

    def sum(
        self, tensors: Sequence[tf.Tensor], label: str, scale: float = 1.0, *, half: bool = False
    ) -> list[tf.Tensor]:
        """Return the sums over all ranks of scale * tensor; floating tensors of known shapes, any of them.

        With `half`, float16 travels as such where the native operation sums; as float32 otherwise.
        """
        results: list[tf.Tensor | None] = [None] * len(tensors)
        half = half and find_library().library is not None
        types = [
            tensor.dtype if tensor.dtype == tf.float64 or (half and tensor.dtype == tf.float16) else tf.float32
            for tensor in tensors
        ]
        for dtype in (tf.float32, tf.float64, tf.float16):
            chosen = [i for i, kind in enumerate(types) if kind == dtype]
            if not chosen:
                continue
            values = [tf.cast(tensors[i], dtype) for i in chosen]
            # What is not known yet may be larger than its group's memory: it then goes by messages.
            sizes = [dtype.size * (value.shape.num_elements() or 0) for value in values]
            self.watch.named(sum(sizes), label)
            sums = self._group(sizes).sum(values, scale, label)
            for i, total in zip(chosen, sums, strict=True):
                results[i] = tf.cast(total, tensors[i].dtype)
        return [result for result in results if result is not None]

    def sum_fused(self, tensors: Sequence[tf.Tensor], names: Sequence[str], label: str) -> list[tf.Tensor]:
        """Return the sums over all ranks of tensors of one dtype, in a graph: few calls for all sums of a step.

        Sums that do not wait for each other share a call, see `NativeReduction.sum_fused`, where the native operation
        sums.
        """
        values = list(tensors)
        size = sum(value.dtype.size * (value.shape.num_elements() or 0) for value in values)
        reduction = self._own_sums() or self._group([max(size, LARGEST_FUSED)])
        if not isinstance(reduction, NativeReduction):
            self.watch.named(size, label)
            return reduction.sum(values, label=label)
        if not all(value.shape.is_fully_defined() for value in values):
            return reduction.sum(values, label=label)
        return reduction.sum_fused(values, names, label)

    def _own_sums(self) -> NativeReduction | None:
        """Return what passes the values of a single rank on; None where there are several ranks, or no native part.

        Its operations stand where those of several ranks do: what follows a sum in a graph, as the update of a
        variable that another gradient still reads, waits as long there.
        """
        library = find_library().library
        if self.world.size > 1 or library is None:
            return None
        if self._own is None:
            with tf.init_scope():
                self._own = NativeReduction(self.world.comm, library, largest=0, algorithm=Algorithm.MESSAGES)
        return self._own

    def _group(self, sizes: list[int]) -> Reduction:
        """Return the reduction for calls of as many bytes as `sizes` together, in steps of powers of two.

        It is opened on first use, and its algorithm tried with tensors of these sizes. NCCL's has no memory of its own
        for values, so that one serves calls of all sizes.
        """
        nccl = next((group for group in self._groups.values() if group.algorithm is Algorithm.NCCL), None)
        if nccl is not None:
            return nccl
        room = max(_SMALLEST, 1 << (sum(sizes) - 1).bit_length())
        if room not in self._groups:
            with tf.init_scope(), self.watch.inside("opening a reduction", room):
                self._groups[room] = select(self.world, sizes, room=room, guard=True)
            self.watch.opened(self._groups[room])
        return self._groups[room]
