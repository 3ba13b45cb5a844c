"""Arrays of a `fit` whose rows are gathered inside the compiled loop: the order of an epoch, and this rank's part."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from harness.transparent.batch_rows import BatchShare, bounds
from harness.transparent.divided_keras_data import ArrayPartAdapter

Numbers = npt.NDArray[np.int32]


def row_orders(samples: int, batch: int, shuffle: object) -> tf.data.Dataset | None:
    """Return a data set of one element, int64 [samples]: the order of the rows in an epoch of Keras's own adapter.

    It is the part of the adapter's data set that draws it. None where Keras shuffles within batches (``"batch"``), or
    this release has no such part.
    """
    if shuffle == "batch":
        return None
    numbers = ArrayDataAdapter(np.arange(samples), batch_size=batch, shuffle=shuffle).get_tf_dataset()
    waiting = [numbers]
    while waiting:
        dataset = waiting.pop()
        inputs = dataset._inputs()
        drawn = [type(source).__name__ for source in inputs] == ["_RangeDataset"]
        if drawn and dataset.element_spec == tf.TensorSpec([samples], tf.int64):
            return dataset
        waiting += inputs
    return None


def is_repeated(orders: tf.data.Dataset) -> bool:
    """Tell whether every iterator of `orders` (`row_orders`) draws the same order.

    TensorFlow makes a data set's function anew for each of its iterators, so that a shuffle with a seed begins again
    from its seed: it has one wherever `tf.random.set_seed` has been called. Without a shuffle nothing is drawn.
    """
    nodes = orders._map_func.function.graph.as_graph_def().node
    shuffles = [node for node in nodes if node.op == "RandomShuffle"]
    return all(node.attr["seed"].i or node.attr["seed2"].i for node in shuffles)


class FusedArrays:
    """The arrays of one `fit` on one rank: batches of `batch` rows of all ranks, of which this one has its part.

    `sources` are tensors in the structure of a batch. `order` is a variable, int64 [samples], which both ways to make
    steps read: Keras's, by `index_batches`, and the compiled loop, by `stretches`. Unless they are `even`, single steps
    weigh each batch by its rows, and so does the loop: the sums then round alike.
    """

    def __init__(
        self,
        sources: Any,
        orders: tf.data.Dataset,
        samples: int,
        batch: int,
        rank: int,
        size: int,
        *,
        even: bool = True,
    ) -> None:
        self.sources = sources
        self._even = even
        self.samples, self.batch = samples, batch
        self._rank, self._size = rank, size
        self._orders = orders
        self._is_drawn = False
        self._is_repeated = is_repeated(orders)
        self._numbers = np.arange(samples)
        with tf.device("CPU:0"):
            self.order = tf.Variable(self._numbers, trainable=False, name="harness_order")

    @property
    def steps(self) -> int:
        """The batches of an epoch, the last of which may have fewer rows."""
        return -(-self.samples // self.batch)

    def shuffle(self) -> None:
        """Draw the order of the next epoch, as Keras does when it starts an iterator, where it may be another."""
        if self._is_drawn and self._is_repeated:
            return
        self._is_drawn = True
        drawn = next(iter(self._orders))
        self._numbers = drawn.numpy()
        self.order.assign(drawn)

    def index_batches(self) -> tf.data.Dataset:
        """Return a data set of the row numbers of each batch of all ranks, int64 [rows]."""

        @tf.autograph.experimental.do_not_convert
        def numbers(step: tf.Tensor) -> tf.Tensor:
            end = tf.minimum((step + 1) * self.batch, self.samples)
            return self.order.read_value()[step * self.batch : end]

        return tf.data.Dataset.range(self.steps).map(numbers)

    def stretches(self, first: int, count: int) -> "Iterator[tuple[Numbers, BatchShare]]":
        """Yield the row numbers, int32 [steps, rows], of this rank in up to `count` steps from number `first` on.

        With each comes what its batches are of all ranks', as a `BatchShare` without data. A last batch with fewer
        rows is a stretch of its own.
        """
        whole = self.samples // self.batch
        end = min(first + count, self.steps)
        if first < min(end, whole):
            rows = self._numbers[first * self.batch : min(end, whole) * self.batch]
            yield self._share(rows.reshape(-1, self.batch))
        if end > whole:
            yield self._share(self._numbers[whole * self.batch :][np.newaxis])

    def batch_at(self, step: int) -> Any:
        """Return this rank's part of the batch of a `step` of the epoch."""
        numbers, _ = next(self.stretches(step, 1))
        return gathered(self.sources, tf.constant(numbers[0]))

    def _share(self, numbers: npt.NDArray[np.int64]) -> tuple[Numbers, BatchShare]:
        """Return this rank's columns of the row `numbers` of some batches: at least one, as `divide` has it."""
        total = numbers.shape[1]
        begin, count = bounds(total, self._rank, self._size)
        start = min(begin, total - 1)
        columns = np.ascontiguousarray(numbers[:, start : start + max(count, 1)], np.int32)
        if self._even and total % self._size == 0:
            return columns, BatchShare(None)
        return columns, BatchShare(None, float(count), (start, total))


def share_order(adapter: ArrayPartAdapter) -> FusedArrays | None:
    """Have the single steps of `adapter` and a compiled loop read one order of rows; None where that is impossible."""
    samples = adapter.source._num_samples
    orders = row_orders(samples, adapter.batch, adapter.source._shuffle)
    if orders is None or not all_dense(adapter.arrays):
        return None
    even = adapter.even or adapter.ranks == 1
    arrays = FusedArrays(adapter.arrays, orders, samples, adapter.batch, adapter.rank, adapter.ranks, even=even)
    adapter.row_numbers = arrays.index_batches()
    return arrays


def gathered(sources: Any, numbers: tf.Tensor) -> Any:
    """Return the rows `numbers`, int32 [rows], of every tensor in `sources`."""
    return tree.map_structure(lambda source: tf.gather(source, numbers, axis=0), sources)


def all_dense(sources: Any) -> bool:
    """Tell whether `sources` are nothing but dense tensors in host memory."""
    dense = all(isinstance(leaf, tf.Tensor) for leaf in tree.flatten(sources))
    return dense and not tf.config.list_logical_devices("GPU")
