"""All that the ranks of a script exchange, on the reductions of `harness.comm`."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from harness.comm.grouped_sums import GroupedSums
from harness.comm.hang import HangWatch
from harness.comm.world import World
from harness.transparent.gradient_probe import Trial
from harness.transparent.rows import Rows

_READS = ("ReadVariableOp", "VarHandleOp", "VariableV2", "Variable")  # stateful operations that only read variables


class Collectives(GroupedSums):
    """Sums and means over the ranks inside graphs, exchanges from Python outside of them.

    Every rank makes the same calls in the same order (`harness.comm.exchange_order`). `batch_rows`: the rows of all
    ranks of the batch that the last mean of some owner's was taken over, where it is `counting` them.
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

        Where the trial has found that the numbers of `owner` are sums over rows, their sums over the ranks.
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
        """Return what this rank's numbers count, and whether those of `owner` are sums, None where nobody asks."""
        rows = self.rows.now()
        if owner is None or not tf.compat.v1.executing_eagerly_outside_functions():
            return rows, None  # a session's trial is made before its first step, see `tf1`
        summed = self.trial.flag(owner)
        return tf.where(summed, tf.cast(rows > 0, rows.dtype), rows), summed

    def slices(self, gradient: tf.IndexedSlices, label: str, owner: object) -> tf.IndexedSlices:
        """Return the mean over all ranks of a sparse gradient, as one process would have it: the slices of all rows.

        What is looked up whatever the rows, positions say, has its slices once there: an optimizer may square them. It
        is so where all ranks look up the same, if a graph shows that this is not of a batch, or each but once.
        """
        if self.rows.even:
            weight = tf.constant(1.0 if self.trial.is_sum(owner) else 1 / self.world.size)
        else:
            weight, summed = self._weight(owner)
            total = self.sum([weight], f"{label}, rows")[0]
            weight = weight / total if summed is None else tf.where(summed, weight, weight / total)
        scaled = tf.math.multiply_no_nan(gradient.values, tf.cast(weight, gradient.values.dtype))
        values, indices = self.whole([scaled, gradient.indices], label)
        parts, count = self.world.size, tf.size(indices) // self.world.size
        varies = _varies(gradient.indices)

        def shared() -> tf.Tensor:
            each = tf.reshape(indices, [parts, -1])
            once = not varies or tf.equal(tf.size(tf.unique(each[0]).y), count)
            return tf.reduce_all(each == each[:1]) & once

        def added() -> list[tf.Tensor]:
            return [tf.reduce_sum(tf.reshape(values, [parts, count, *values.shape[1:]]), 0), indices[:count]]

        whole = tf.equal(count * parts, tf.size(indices))
        values, indices = tf.cond(tf.cond(whole, shared, lambda: tf.constant(False)), added, lambda: [values, indices])
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def differentiable_mean(self, tensors: Sequence[tf.Tensor], label: str, owner: object = None) -> list[tf.Tensor]:
        """Return `mean`; what each rank's loss owes to the means flows back to all ranks.

        With L the row-weighted mean of the ranks' losses, rank r's own gradient is weighted again by its rows n_r at
        the optimizer: it must be (sum over s of n_s dL_s/dmean) / N here, and so the weighted mean once more.
        """

        @tf.custom_gradient
        def forward(*values: tf.Tensor) -> Any:
            def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
                return self.mean(list(upstream), f"{label}, backward")

            return self.mean(list(values), label, owner), backward

        return list(forward(*tensors))

    def whole(self, tensors: Sequence[tf.Tensor], label: str) -> list[tf.Tensor]:
        """Return the rows of all ranks of each of `tensors`, whose first dimension is the rank's own rows.

        The result is the same on all ranks. What a loss of all rows owes to the own ones flows back to them, scaled
        so that the ranks' gradients averaged by rows are the loss's gradient.
        """
        rows = self.rows.now()
        own = tf.cast(tf.where(rows > 0, tf.shape(tensors[0])[0], 0), tf.int32)
        counts = tf.cast(
            self.sum([tf.one_hot(self.world.rank, self.world.size) * tf.cast(own, tf.float32)], "numbers of rows")[0],
            tf.int32,
        )
        begin, total = tf.reduce_sum(counts[: self.world.rank]), tf.reduce_sum(counts)

        def spread(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            padded = []
            for value in values:
                sides = tf.stack([begin, total - begin - own])
                padded.append(
                    tf.pad(value[:own], tf.concat([[sides], tf.zeros([len(value.shape) - 1, 2], tf.int32)], 0))
                )
            return padded

        exact = [value if value.dtype.is_floating else tf.cast(value, tf.float64) for value in tensors]

        @tf.custom_gradient
        def forward(*values: tf.Tensor) -> Any:
            def backward(*upstream: tf.Tensor) -> list[tf.Tensor]:
                # The optimizer weighs this rank by its own part of the rows.
                factor = tf.math.divide_no_nan(tf.cast(total, tf.float32), tf.cast(own, tf.float32))
                shown = tf.shape(values[0])[0]
                return [
                    tf.pad(
                        part[begin : begin + own] * tf.cast(factor, part.dtype),
                        tf.concat([[[0, shown - own]], tf.zeros([len(part.shape) - 1, 2], tf.int32)], 0),
                    )
                    for part in upstream
                ]

            return self.sum(spread(values), label), backward

        found = forward(*exact)
        found = found if isinstance(found, (list, tuple)) else [found]
        results = [tf.cast(part, value.dtype) for part, value in zip(found, tensors, strict=True)]
        return [tf.ensure_shape(part, [None, *value.shape[1:]]) for part, value in zip(results, tensors, strict=True)]

    def broadcast(self, array: "np.ndarray[Any, Any]", label: str) -> None:
        """Overwrite `array` (contiguous) on every rank with rank 0's. From Python, outside of graphs."""
        with self.watch.inside(f"broadcast of {label}", array.nbytes):
            self.world.comm.Bcast(array, root=0)

    def gather(self, value: object, label: str) -> list[Any]:
        """Return every rank's `value`, in order of ranks. From Python, seldom: it pickles."""
        with self.watch.inside(label, 0):
            return list(self.world.comm.allgather(value))


class Scalars:
    """Makes numbers of all ranks of the scalars that come out of a step, and knows which are of all ranks already."""

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
        """Return what a `step` of a `training` reports with every floating scalar that of all ranks' rows."""
        if not isinstance(logs, dict):
            return logs
        trial, chosen = (
            self._collectives.trial,
            [
                name
                for name, leaf in logs.items()
                if _is_number(leaf) and leaf.dtype.is_floating and id(leaf) not in self._global
            ],
        )
        sums = [name for name in chosen if trial.is_sum(trial.position(training, (step, name)))]
        for names in (sums, [name for name in chosen if name not in sums]):
            owner = trial.position(training, (step, names[0])) if names else None
            found = self._collectives.mean([logs[name] for name in names], "reported numbers", owner)
            logs = {**logs, **dict(zip(names, found, strict=True))}
        return self.mark(logs)

    def combine(self, structure: Any, function: object) -> Any:
        """Return what a compiled step `function` returned, eagerly, with its scalars those of all ranks' rows.

        Each is a mean or a sum over rows, whichever the trial has found; a whole number is a mean only if it is equal
        on all ranks, and stays.
        """
        collectives, trial = self._collectives, self._collectives.trial
        leaves = tf.nest.flatten(structure)
        chosen = [i for i, leaf in enumerate(leaves) if _is_number(leaf)]
        if not chosen:
            return structure
        rows = tf.cast(collectives.rows.now(), tf.float64)
        owners = [trial.position(function, i) for i in chosen]
        values = [tf.cast(leaves[i], tf.float64) for i in chosen]
        weights = [tf.cast(rows > 0, rows.dtype) if trial.is_sum(owner) else rows for owner in owners]
        scaled = [tf.math.multiply_no_nan(value, weight) for value, weight in zip(values, weights, strict=True)]
        *sums, total = collectives.sum([*scaled, rows], "reported numbers")
        for i, owner, value, part in zip(chosen, owners, values, sums, strict=True):
            found = part if trial.is_sum(owner) else part / total
            trial.observe(owner, "reported numbers", [value], [found])
            if leaves[i].dtype.is_floating or trial.is_sum(owner):
                leaves[i] = tf.cast(found, leaves[i].dtype)
        return tf.nest.pack_sequence_as(structure, leaves)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.shape.rank == 0 and (leaf.dtype.is_floating or leaf.dtype.is_integer)


def upstream(ops: Sequence[Any]) -> list[Any]:
    """Return `ops` and everything that they wait for."""
    waiting, seen = list(ops), {op.name: op for op in ops}
    while waiting:
        current = waiting.pop()
        for other in [*(tensor.op for tensor in current.inputs), *current.control_inputs]:
            if other.name not in seen:
                seen[other.name] = other
                waiting.append(other)
    return list(seen.values())


def _varies(tensor: Any) -> bool:
    """Tell whether `tensor` may follow from a batch, or be drawn; also where no graph shows it."""
    if tf.executing_eagerly():
        return True
    held = {inner.op.name for _, inner in getattr(tensor.graph, "captures", ())}
    return any(
        op.type.startswith("Placeholder") or (op.op_def.is_stateful and op.type not in _READS)
        for op in upstream([tensor.op])
        if op.name not in held
    )
