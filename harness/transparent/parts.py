"""This rank's part of a batch."""

from typing import Any, NamedTuple

import tensorflow as tf


class Part(NamedTuple):
    """Some rows of a batch and how many they count for: 0 where a row had to stand in because there were too few."""

    data: Any
    rows: Any


class EvenPart(NamedTuple):
    """As many rows of a batch as every other rank has."""

    data: Any


def bounds(total: Any, rank: int, size: int) -> tuple[Any, Any]:
    """Return first row and number of rows of `rank`'s part of `total` rows; integers or integer tensors.

    The parts cover the rows exactly once and differ by one row at most.
    """
    begin = rank * total // size
    return begin, (rank + 1) * total // size - begin


def leading(structure: Any) -> Any:
    """Return the first tensor of a batch: its length is the batch's number of rows."""
    from keras import tree

    for leaf in tree.flatten(structure):
        if isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) and leaf.shape.rank != 0:
            return leaf
    raise ValueError("the batch has no tensor with rows")


def length(tensor: Any) -> Any:
    """Return the number of rows: an int where it is known, else an int64 scalar."""
    if tensor.shape.rank is not None and tensor.shape[0] is not None:
        return int(tensor.shape[0])
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape[0]
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows(out_type=tf.int64)
    return tf.shape(tensor, out_type=tf.int64)[0]


def divide(structure: Any, rank: int, size: int) -> Part | EvenPart:
    """Return `rank`'s rows of a batch, at least one: a row with weight 0 where there are fewer rows than ranks."""
    from keras import tree

    total = length(leading(structure))
    begin, count = bounds(total, rank, size)
    if isinstance(total, int):
        shown, start = max(count, 1), min(begin, total - 1)
    else:
        shown, start = tf.maximum(count, tf.ones_like(count)), tf.minimum(begin, total - 1)
    data = tree.map_structure(lambda leaf: _rows(leaf, start, shown), structure)
    if isinstance(total, int) and total % size == 0:
        return EvenPart(data)
    return Part(data, tf.cast(count, tf.float32))


def _rows(leaf: Any, start: Any, count: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(leaf.dense_shape[1:])], 0)
        return tf.sparse.slice(leaf, begin, tf.concat([[tf.cast(count, tf.int64)], leaf.dense_shape[1:]], 0))
    if not isinstance(leaf, (tf.Tensor, tf.RaggedTensor)) or leaf.shape.rank == 0:
        return leaf  # None, an absent optional, a scalar that goes with the whole batch
    return leaf[start : start + count]
