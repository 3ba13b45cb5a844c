"""Everything that the ranks of a script exchange, on the reductions of `harness.comm`."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from harness.comm.grouped_sums import GroupedSums
from harness.comm.hang import HangWatch
from harness.comm.world import World
from harness.transparent.batch_rows import Rows
from harness.transparent.probe import Trial

_READS = ("ReadVariableOp", "VarHandleOp", "VariableV2", "Variable")  # stateful operations that only read variables


class Collectives(GroupedSums):
    """Sums and means over the ranks inside graphs, exchanges from Python outside of them.

    Every rank makes the same calls in the same order (`harness.comm.reduction`). `batch_rows`: how many rows all
    ranks together have in the batch of the last mean, where the collectives are `counting` them.
    """

    def __init__(self, world: World, rows: Rows, watch: HangWatch) -> None:
        super().__init__(world, watch)
        self.rows = rows
        self.trial = Trial()
        self.counting = False
        self.batch_rows: tf.Tensor | None = None

    def sum(
        self, tensors: Sequence[tf.Tensor], label: str, scale: float = 1.0, *, half: bool = False
    ) -> list[tf.Tensor]:
        """Return the sums over all ranks of scale * tensor, see `GroupedSums`."""
        if self.world.size > 1:
            return super().sum(tensors, label, scale, half=half)
        return [tensor * tf.cast(scale, tensor.dtype) for tensor in tensors]

    def mean(self, tensors: Sequence[tf.Tensor], label: str, owner: object = None) -> list[tf.Tensor]:
        """Return the means over all ranks, weighted by the rows of their batches.

        Where the trial has found that the numbers of `owner` are sums over rows, return their sums over the ranks.
        """
        if not tensors:
            return []
        counted = [self.rows.count()] if self.counting and owner is not None else []
        if self.rows.even:
            scale = 1.0 if self.trial.is_sum(owner) else 1 / self.world.size
            sums = self.sum([*tensors, *counted], label, scale)
            self.batch_rows = sums.pop() / scale if counted else None
            return sums
        weight, summed = self._weight(owner)
        if tensors[0].dtype == tf.float64:  # batch normalisation's: all in one call
            weight = tf.cast(weight, tf.float64)
        # A rank without rows may hold anything, even infinities: multiply_no_nan makes zeros of it.
        scaled = [tf.math.multiply_no_nan(tensor, tf.cast(weight, tensor.dtype)) for tensor in tensors]
        *sums, total = self.sum([*scaled, *counted, weight], label)
        self.batch_rows = sums.pop() if counted else None
        divisor = total if summed is None else tf.where(summed, tf.ones_like(total), total)
        means = [part / tf.cast(divisor, part.dtype) for part in sums]
        if owner is not None and tf.executing_eagerly():
            self.trial.observe(owner, label, tensors, means)
        return means

    def _weight(self, owner: object) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return the weight of this rank's numbers, and whether those of `owner` are sums; None without an owner."""
        rows = self.rows.weight()
        if owner is None or not tf.compat.v1.executing_eagerly_outside_functions():
            return rows, None  # a session's trial is made before its first step, see `tf1`
        summed = self.trial.flag(owner)
        return tf.where(summed, tf.cast(rows > 0, rows.dtype), rows), summed

    def slices(self, gradient: tf.IndexedSlices, label: str, owner: object) -> tf.IndexedSlices:
        """Return the mean over all ranks of a sparse gradient, as one process would have it: the slices of all rows.

        Positions and the like are looked up whatever the rows are. Their slices must come once and not once for each
        rank, as an optimizer may square them. That is so where all ranks look up the same indices, and either the graph
        shows that these do not follow from a batch, or no index comes twice.
        """
        if self.rows.even:
            weight = tf.constant(1.0 if self.trial.is_sum(owner) else 1 / self.world.size)
        else:
            weight, summed = self._weight(owner)
            total = self.sum([weight], f"{label}, rows")[0]
            weight = weight / total if summed is None else tf.where(summed, weight, weight / total)
        scaled = tf.math.multiply_no_nan(gradient.values, tf.cast(weight, gradient.values.dtype))
        values, indices = self.gather_rows([scaled, gradient.indices], label)
        size = self.world.size
        count = tf.size(indices) // size
        varies = _varies(gradient.indices)

        def are_shared() -> tf.Tensor:
            rank_indices = tf.reshape(indices, [size, -1])
            come_once = not varies or tf.equal(tf.size(tf.unique(rank_indices[0]).y), count)
            return tf.reduce_all(rank_indices == rank_indices[:1]) & come_once

        def added() -> list[tf.Tensor]:
            return [tf.reduce_sum(tf.reshape(values, [size, count, *values.shape[1:]]), 0), indices[:count]]

        equal_counts = tf.equal(count * size, tf.size(indices))
        shared = tf.cond(equal_counts, are_shared, lambda: tf.constant(False))
        values, indices = tf.cond(shared, added, lambda: [values, indices])
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def differentiable_mean(self, tensors: Sequence[tf.Tensor], label: str, owner: object = None) -> list[tf.Tensor]:
        """Return `mean`; the gradient of each rank's loss by the means flows back to all ranks.

        With L the row-weighted mean of the ranks' losses, rank r's own gradient is weighted again by its rows n_r at
        the optimizer: it must be (sum over s of n_s dL_s/dmean) / N here, and so the weighted mean once more.
        """

        @tf.custom_gradient
        def forward(*values: tf.Tensor) -> Any:
            def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
                return self.mean(list(upstream), f"{label}, backward")

            return self.mean(list(values), label, owner), backward

        return list(forward(*tensors))

    def gather_rows(self, tensors: Sequence[tf.Tensor], label: str) -> list[tf.Tensor]:
        """Return the rows of all ranks of each of `tensors`, whose first dimension is this rank's rows.

        The result is the same on all ranks. The gradient of a loss of all rows flows back to this rank's rows. It is
        scaled so that the ranks' gradients, averaged by rows, are the gradient of the loss.
        """
        has_rows = self.rows.weight() > 0
        count = tf.cast(tf.where(has_rows, tf.shape(tensors[0])[0], 0), tf.int32)
        mine = tf.one_hot(self.world.rank, self.world.size) * tf.cast(count, tf.float32)
        counts = tf.cast(self.sum([mine], "numbers of rows")[0], tf.int32)
        begin = tf.reduce_sum(counts[: self.world.rank])
        total = tf.reduce_sum(counts)

        def spread(value: tf.Tensor) -> tf.Tensor:
            """Return this rank's rows at their place among those of all ranks, with zeros around them."""
            return tf.pad(value[:count], _padding(begin, total - begin - count, value))

        exact = [value if value.dtype.is_floating else tf.cast(value, tf.float64) for value in tensors]

        @tf.custom_gradient
        def forward(*values: tf.Tensor) -> Any:
            def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
                # The optimizer weighs this rank by its own part of the rows.
                factor = tf.math.divide_no_nan(tf.cast(total, tf.float32), tf.cast(count, tf.float32))
                present_rows = tf.shape(values[0])[0]
                return [
                    tf.pad(
                        part[begin : begin + count] * tf.cast(factor, part.dtype),
                        _padding(0, present_rows - count, part),
                    )
                    for part in upstream
                ]

            return self.sum([spread(value) for value in values], label), backward

        sums = forward(*exact)
        sums = sums if isinstance(sums, (list, tuple)) else [sums]
        results = [tf.cast(part, value.dtype) for part, value in zip(sums, tensors, strict=True)]
        return [tf.ensure_shape(part, [None, *value.shape[1:]]) for part, value in zip(results, tensors, strict=True)]

    def broadcast(self, array: "np.ndarray[Any, Any]", label: str) -> None:
        """Overwrite `array` (contiguous) on every rank with rank 0's. From Python, outside of graphs."""
        with self.watch.inside(f"broadcast of {label}", array.nbytes):
            self.world.comm.Bcast(array, root=0)

    def gather(self, value: object, label: str) -> list[Any]:
        """Return every rank's `value`, in order of ranks. From Python, and rarely: it pickles."""
        with self.watch.inside(label, 0):
            return list(self.world.comm.allgather(value))


class Scalars:
    """Makes the scalars that come out of a step numbers of all ranks, and knows which of them are so already."""

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

    def average(self, logs: Any, training: object, step: str) -> Any:
        """Return the `logs` of a `step` of a `training`, with every floating scalar made one of all ranks' rows."""
        if not isinstance(logs, dict):
            return logs
        trial = self._collectives.trial
        floats = [name for name, leaf in logs.items() if _is_number(leaf) and leaf.dtype.is_floating]
        chosen = [name for name in floats if id(logs[name]) not in self._global]
        sums = [name for name in chosen if trial.is_sum(trial.position(training, (step, name)))]
        for names in (sums, [name for name in chosen if name not in sums]):
            owner = trial.position(training, (step, names[0])) if names else None
            numbers = self._collectives.mean([logs[name] for name in names], "reported numbers", owner)
            logs = {**logs, **dict(zip(names, numbers, strict=True))}
        return self.mark(logs)

    def combine(self, structure: Any, function: object) -> Any:
        """Return what a compiled step `function` has returned, eagerly, with its scalars made those of all ranks' rows.

        Each is a mean or a sum over rows, as the trial has found. An integer stays as it is where it is no sum.
        """
        collectives = self._collectives
        trial = collectives.trial
        leaves = tf.nest.flatten(structure)
        chosen = [i for i, leaf in enumerate(leaves) if _is_number(leaf)]
        if not chosen:
            return structure
        rows = tf.cast(collectives.rows.weight(), tf.float64)
        owners = [trial.position(function, i) for i in chosen]
        values = [tf.cast(leaves[i], tf.float64) for i in chosen]
        weights = [tf.cast(rows > 0, rows.dtype) if trial.is_sum(owner) else rows for owner in owners]
        scaled = [tf.math.multiply_no_nan(value, weight) for value, weight in zip(values, weights, strict=True)]
        *sums, total = collectives.sum([*scaled, rows], "reported numbers")
        for i, owner, value, part in zip(chosen, owners, values, sums, strict=True):
            number = part if trial.is_sum(owner) else part / total
            trial.observe(owner, "reported numbers", [value], [number])
            if leaves[i].dtype.is_floating or trial.is_sum(owner):
                leaves[i] = tf.cast(number, leaves[i].dtype)
        return tf.nest.pack_sequence_as(structure, leaves)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.shape.rank == 0 and (leaf.dtype.is_floating or leaf.dtype.is_integer)


def _padding(before: Any, after: Any, value: tf.Tensor) -> tf.Tensor:
    """Return paddings that add rows `before` and `after` those of `value`."""
    other_axes = tf.zeros([len(value.shape) - 1, 2], tf.int32)
    return tf.concat([[tf.stack([before, after])], other_axes], 0)


def upstream(ops: Sequence[Any]) -> list[Any]:
    """Return `ops` and all operations of their graph that they depend on."""
    open_ops = list(ops)
    seen = {op.name: op for op in ops}
    while open_ops:
        current = open_ops.pop()
        for dependency in [*(tensor.op for tensor in current.inputs), *current.control_inputs]:
            if dependency.name not in seen:
                seen[dependency.name] = dependency
                open_ops.append(dependency)
    return list(seen.values())


def _varies(tensor: Any) -> bool:
    """Tell whether `tensor` may follow from a batch or from random numbers; True where no graph shows it."""
    if tf.executing_eagerly():
        return True
    captured = {inner.op.name for _, inner in getattr(tensor.graph, "captures", ())}
    return any(
        op.type.startswith("Placeholder") or (op.op_def.is_stateful and op.type not in _READS)
        for op in upstream([tensor.op])
        if op.name not in captured
    )
