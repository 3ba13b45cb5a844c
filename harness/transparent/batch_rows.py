"""This rank's part of a batch, and how many rows of it the rank stands for."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import tensorflow as tf

from harness.transparent.patch import OwnRows


class BatchShare(NamedTuple):
    """Some rows of a batch and how many they count for: 0 where a row had to stand in because there were too few.

    `place`: the number of the first of them in the batch of all ranks, and that batch's rows. Both fields are None
    where every rank has as many.
    """

    data: Any
    rows: Any = None
    place: Any = None


class Place(NamedTuple):
    """Where this rank's rows are in the batch of all ranks: the number of the first, how many, and the batch's rows.

    Integers or scalar tensors, 0 where the batch is not divided. `static_rows` is `rows` if it is known when the graph
    is built, else None.
    """

    first: Any = 0
    rows: Any = 0
    total: Any = 0
    static_rows: int | None = 0


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
        if has_rows(leaf):
            return leaf
    raise ValueError("the batch has no tensor with rows")


def has_rows(leaf: Any) -> bool:
    """Tell whether a part of a batch has a first dimension."""
    return isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) and leaf.shape.rank != 0


def together(batches: Sequence[Any]) -> Any:
    """Return the rows of all `batches`, eagerly; what has no rows is the first's."""

    def joined(*leaves: Any) -> Any:
        if not has_rows(leaves[0]):
            return leaves[0]
        if isinstance(leaves[0], tf.SparseTensor):
            return tf.sparse.concat(0, list(leaves))
        return tf.concat(leaves, axis=0)

    return tf.nest.map_structure(joined, *batches, expand_composites=False)


def in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return `dataset` with its elements in one order: the ranks divide the same batches only if all see that."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def length(tensor: Any) -> Any:
    """Return the number of rows: an int where it is known, else an int64 scalar."""
    static_rows = tensor.shape.as_list()[0] if tensor.shape.rank is not None else None  # not the Dimensions of TF 1
    if static_rows is not None:
        return int(static_rows)
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape[0]
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows(out_type=tf.int64)
    return tf.shape(tensor, out_type=tf.int64)[0]


def divide(structure: Any, rank: int, size: int) -> BatchShare:
    """Return `rank`'s rows of a batch, at least one: a row with weight 0 where there are fewer rows than ranks."""
    total = length(leading(structure))
    begin, count = bounds(total, rank, size)
    if isinstance(total, int):
        present_rows = max(count, 1)
        start = min(begin, total - 1)
    else:
        present_rows = tf.maximum(count, tf.ones_like(count))
        start = tf.minimum(begin, total - 1)
    data = some(structure, start, present_rows)
    if isinstance(total, int) and total % size == 0:
        return BatchShare(data)
    return BatchShare(data, tf.cast(count, tf.float32), tf.cast(tf.stack([start, total]), tf.int64))


def some(structure: Any, start: Any, count: Any) -> Any:
    """Return `count` rows of a batch from number `start` on."""
    from keras import tree

    return tree.map_structure(lambda leaf: _rows(leaf, start, count), structure)


def _rows(leaf: Any, start: Any, count: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(leaf.dense_shape[1:])], 0)
        return tf.sparse.slice(leaf, begin, tf.concat([[tf.cast(count, tf.int64)], leaf.dense_shape[1:]], 0))
    if not has_rows(leaf):
        return leaf  # None, an absent optional, a scalar that goes with the whole batch
    return leaf[start : start + count]


_PLACEHOLDER = "harness_rows"
PLACE = "harness_place"


class StepRows(NamedTuple):
    """The rows of a batch while a step of Keras's is built or run.

    `weight`: a float32 scalar, the rows that this rank stands for, None where all ranks have equally many. `present`:
    the rows that its tensors have, an integer or a scalar tensor, 0 if unknown. `place`: the number of its first row in
    the batch of all ranks, and that batch's rows: two integers or an int64 tensor [2].
    """

    weight: tf.Tensor | None
    present: Any
    place: Any


class Rows:
    """The rows of the current batch.

    A step of Keras gets them together with the batch (`batch_of`). Hand-written loops have a variable instead. Until a
    batch has been divided it says that rank 0 stands for all rows and the others for none: what every rank computes
    alike counts once.
    """

    def __init__(self, rank: int, size: int, own_rows: OwnRows) -> None:
        self._rank = rank
        self._size = size
        self._own_rows = own_rows
        self._step_rows: ContextVar[StepRows | None] = ContextVar("rows of a step", default=None)
        self._variable: tf.Variable | None = None
        self.present_rows = 0  # rows of the batch that a hand-written loop has taken last
        self._is_loop_divided = False  # whether the batch of a hand-written loop is

    @property
    def even(self) -> bool:
        """Whether all ranks are known to have the same number of rows, above 0."""
        step_rows = self._step_rows.get()
        return step_rows is not None and step_rows.weight is None

    @property
    def is_divided(self) -> bool:
        """Whether the current batch is this rank's part of another."""
        step_rows = self._step_rows.get()
        if step_rows is None:
            return self._is_loop_divided
        if isinstance(step_rows.place, tuple):
            return step_rows.place[1] is not None and bool(tf.get_static_value(step_rows.place[1]) != 0)
        return True

    @contextlib.contextmanager
    def batch_of(self, weight: tf.Tensor | None, present: Any = 0, place: Any = None) -> Iterator[None]:
        """Within the block the current batch has these rows, see `StepRows`.

        Without a `place` all ranks have equally many rows, in the order of the ranks.
        """
        if place is None:
            place = (present * self._rank, present * self._size)
        token = self._step_rows.set(StepRows(weight, present, place))
        try:
            yield
        finally:
            self._step_rows.reset(token)

    def count(self) -> tf.Tensor:
        """Return how many rows of the current batch this rank has, a float32 scalar; 0 where that is unknown."""
        step_rows = self._step_rows.get()
        if step_rows is not None and step_rows.weight is None:
            return tf.cast(step_rows.present, tf.float32)
        return self.weight()

    def place(self) -> Place:
        """Return where the rows of the current batch are in the batch of all ranks."""
        step_rows = self._step_rows.get()
        if step_rows is not None:
            place = step_rows.place  # a tensor in a graph cannot be unpacked
            present = step_rows.present
            return Place(place[0], present, place[1], present if isinstance(present, int) else None)
        if not tf.compat.v1.executing_eagerly_outside_functions():
            first, total = tf.unstack(placeholder(tf.compat.v1.get_default_graph(), [0, 0], PLACE))
            return Place(first, tf.maximum(self.weight(), 1), total, None)
        if not self.present_rows:
            return Place()
        rows, first, total = tf.unstack(self._shared().read_value())
        return Place(first, tf.maximum(rows, 1), total, self.present_rows)

    def weight(self) -> tf.Tensor:
        """Return the rows that this rank stands for in a mean, a float32 scalar, for the graph that is being built.

        1 where all ranks have equally many.
        """
        step_rows = self._step_rows.get()
        if step_rows is not None:
            return tf.constant(1.0) if step_rows.weight is None else step_rows.weight
        if not tf.compat.v1.executing_eagerly_outside_functions():
            return placeholder(tf.compat.v1.get_default_graph(), self.default)
        return self._shared().read_value()[0]

    def set(self, rows: int, place: Any = (0, 0)) -> None:
        """Note that this rank has `rows` rows at `place` of the batch that a hand-written loop takes."""
        self._is_loop_divided = place[1] > 0
        self._shared().assign([float(number) for number in (rows, *place)])

    @contextlib.contextmanager
    def numbers_of(self, rows: int | None) -> Iterator[None]:
        """Within the block, eagerly, numbers are of arrays of `rows` rows: divided only if the current batch is.

        None where the number is unknown.
        """
        variable = self._variable
        in_step = self._step_rows.get() is not None
        if rows is None or variable is None or in_step or rows == max(1, int(variable[0])):
            yield
            return
        with self.batch_of(tf.constant(self.default)):
            yield

    @contextlib.contextmanager
    def counted_once(self, total: int) -> Iterator[None]:
        """Within the block, eagerly, every rank has all of a batch of `total` rows: they count as rank 0's."""
        present_rows = self.present_rows
        values = self._shared().numpy()
        self.set(total * (self._rank == 0))
        self.present_rows = total
        try:
            yield
        finally:
            self.present_rows = present_rows
            self._shared().assign(values)

    def set_undivided(self) -> None:
        """Note that the next batch is not divided."""
        if self._variable is not None:
            self.set(int(self.default))

    @property
    def default(self) -> float:
        """What this rank's rows count where nothing was divided: rank 0's for all, or every rank's own alike."""
        return float(self._rank == 0 or self._own_rows.present)

    def _shared(self) -> tf.Variable:
        """Return the variable of float32 [3]: how many rows this rank has, and their place, as a loop has noted it."""
        if self._variable is None:
            self._variable = own_variable([self.default, 0.0, 0.0], "harness_rows")
        return self._variable


def own_variable(value: Any, name: str) -> tf.Variable:
    """Return a new variable in host memory and outside of all graphs, also in the trace of a `tf.function`."""
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    with tf.init_scope(), tf.device("CPU:0"):
        return ResourceVariable(value, trainable=False, name=name)


def placeholder(graph: tf.Graph, default: Any, name: str = _PLACEHOLDER) -> tf.Tensor:
    """Return the tensor that takes the rows, or their place, of a run of a TensorFlow-1 `graph`; made on first use."""
    try:
        return graph.get_tensor_by_name(f"{name}:0")
    except KeyError:
        with graph.as_default(), tf.name_scope(""), tf.control_dependencies(None):
            value = tf.constant(default)
            return tf.compat.v1.placeholder_with_default(value, value.shape, name=name)
