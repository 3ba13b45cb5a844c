"""Keras's data adapters: each batch becomes this rank's part of it, whatever the batches come from."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from harness.base.errors import UserError
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.batch_rows import BatchShare, divide, in_order, leading, length
from harness.transparent.patch import replace
from harness.transparent.preflight import check_rows
from harness.transparent.runtime import Runtime


def divide_adapters(runtime: Runtime) -> None:
    """Wrap the adapter that Keras makes of arrays, `tf.data`, generators or `PyDataset`, and scale the steps.

    `get_data_adapter` is the only place where `fit` and `evaluate` get their data. With a batch per rank the global
    batch is as many times larger as there are ranks, and an epoch of a given number of steps has fewer of them by the
    same factor.
    """
    size = runtime.ranks
    grows = runtime.settings.batch == "per-rank"

    def get_data_adapter(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        adapter = original(*args, **kwargs)
        if runtime.quiet or (runtime.witness.is_witness and not grows):  # as alone, so that Keras traces no step anew
            return adapter
        if runtime.own_rows.present:
            return _own_adapter(adapter, runtime, kwargs.get("steps_per_epoch"))
        if runtime.undivided.get():
            batches = _counted(adapter.get_tf_dataset(), int(runtime.world.rank == 0))
            return PartAdapter(adapter, untuned(batches), adapter.num_batches)
        return _part_of(adapter, runtime, size if grows else 1)

    def init(original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> None:
        original(iterator, *args, **kwargs)
        factor = getattr(iterator.data_adapter, "harness_factor", 1)
        if iterator.steps_per_epoch and factor > 1:
            iterator.steps_per_epoch = -(-iterator.steps_per_epoch // factor)

    data = ("x", "y", "sample_weight", "batch_size", "steps_per_epoch")
    replace(data_adapters, "get_data_adapter", data, get_data_adapter)
    replace(EpochIterator, "__init__", ("self", *data), init)


def _part_of(adapter: Any, runtime: Runtime, factor: int) -> Any:
    """Return an adapter that yields this rank's part of batches `factor` times as large as `adapter`'s."""
    rank, size = runtime.world.rank, runtime.world.size
    if isinstance(adapter, ArrayDataAdapter):
        check_rows(runtime, adapter._inputs)
        batch = adapter._batch_size * factor
        runtime.uneven |= adapter._num_samples % batch > 0 or batch % size > 0
        return ArrayPartAdapter(adapter, batch, rank, size, even=not runtime.uneven, factor=factor)
    batch = rows_per_batch(adapter) if factor > 1 else None
    if factor > 1 and batch is None:
        runtime.note(Note(code=NoteCode.BATCHES_OF_UNKNOWN_SIZE))
        factor = 1
    whole = in_order(adapter.get_tf_dataset())
    check_rows(runtime, whole)
    whole = whole.rebatch(batch * factor) if batch else whole
    dataset = untuned(map_elements(whole, lambda element: divide(element, rank, size))).prefetch(tf.data.AUTOTUNE)
    batches = None if adapter.num_batches is None else -(-adapter.num_batches // factor)
    return PartAdapter(adapter, dataset, batches, factor)


class PartAdapter(DataAdapter):
    """Hands out one rank's batches, in the place of the adapter `source` that they come from."""

    batch_size = None
    has_partial_batch = None
    partial_batch_size = None

    def __init__(self, source: Any, dataset: tf.data.Dataset | None, batches: int | None, factor: int = 1) -> None:
        self.source = source
        self._dataset = dataset
        self._batches = batches
        self.harness_factor = factor

    @property
    def num_batches(self) -> int | None:
        return self._batches

    def get_tf_dataset(self) -> tf.data.Dataset:
        return self._dataset

    def on_epoch_begin(self) -> None:
        self.source.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.source.on_epoch_end()


def array_sources(adapter: ArrayDataAdapter) -> Any:
    """Return the adapter's arrays as tensors, in the structure of a batch; a sparse one in Keras's wrapper.

    NumPy's are copied once, for single steps and the compiled loop alike: otherwise each execution would copy them.
    """
    sources = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")

    def as_tensor(source: Any) -> Any:
        if not isinstance(source, np.ndarray):
            return source
        with tf.device("CPU:0"):
            return tf.convert_to_tensor(source)

    return tree.map_structure(as_tensor, tree.lists_to_tuples(sources))


class ArrayPartAdapter(PartAdapter):
    """Hands out one rank's part of `batch` rows of arrays at a time, in Keras's own order.

    The row numbers of each batch are divided before any row is copied. A single rank gets all of them.
    `row_numbers`, if set, are an order in the place of Keras's: a data set of each batch's row numbers, int64 [rows].
    """

    def __init__(
        self, source: ArrayDataAdapter, batch: int, rank: int, size: int, *, even: bool, factor: int = 1
    ) -> None:
        super().__init__(source, None, -(-source._num_samples // batch), factor)
        self.batch = batch
        self.rank = rank
        self.ranks = size
        self.even = even
        self.arrays = array_sources(source)
        self.row_numbers: tf.data.Dataset | None = None

    @classmethod
    def alone(cls, source: ArrayDataAdapter) -> "ArrayPartAdapter":
        """Return what hands out all rows of `source`, as Keras does."""
        batch = source._batch_size
        return cls(source, batch, 0, 1, even=source._num_samples % batch == 0)

    def get_tf_dataset(self) -> tf.data.Dataset:
        """Return the data set of single steps."""
        numbers = self.row_numbers
        if numbers is None:
            samples, shuffle = self.source._num_samples, self.source._shuffle
            numbers = ArrayDataAdapter(np.arange(samples), batch_size=self.batch, shuffle=shuffle).get_tf_dataset()
        return _picked(self.arrays, map_elements(numbers, self._own))

    def _own(self, element: Any) -> Any:
        """Return this rank's part of the row numbers of a batch."""
        indices = tree.flatten(element)[0]
        if self.even:
            numbers = tf.ensure_shape(indices, [self.batch])
        else:
            numbers = tf.compat.v1.placeholder_with_default(indices, [None])  # hides the length from the graph
        return divide(numbers, self.rank, self.ranks) if self.ranks > 1 else numbers


def _picked(sources: Any, parts: tf.data.Dataset) -> tf.data.Dataset:
    """Return the rows of the arrays `sources` whose numbers are the elements of `parts`, or shares of them."""

    @tf.autograph.experimental.do_not_convert  # it would take long, and nothing here branches by a tensor
    def pick(part: Any, data: Any) -> Any:
        indices = part.data if isinstance(part, BatchShare) else part

        def gather(leaf: Any) -> Any:
            if isinstance(leaf, array_slicing.TensorflowSparseWrapper):
                return array_slicing.slice_tensorflow_sparse_wrapper(leaf, indices)
            if isinstance(leaf, (list, tuple, dict)):
                return None
            return tf.gather(leaf, indices, axis=0) if tf.is_tensor(leaf) else leaf

        rows = tree.traverse(gather, data)
        return part._replace(data=rows) if isinstance(part, BatchShare) else rows

    together = tf.data.Dataset.zip((parts, tf.data.Dataset.from_tensors(sources).repeat()))
    picked = together.map(pick, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # as Keras does for arrays
    return untuned(picked.with_options(options)).prefetch(tf.data.AUTOTUNE)


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return `dataset` without tf.data's tuner where the script does not ask for it.

    The tuner's threads would take turns with the training on a rank's only core. Without it `AUTOTUNE` is the number of
    cores.
    """
    options = tf.data.Options()
    if dataset.options().autotune.enabled is None:
        options.autotune.enabled = False
    return dataset.with_options(options)


def map_elements(dataset: tf.data.Dataset, change: Callable[[Any], Any]) -> tf.data.Dataset:
    """Return `dataset` with ``change(element)`` for every element; a tuple is one element."""

    @tf.autograph.experimental.do_not_convert  # it would take long, and nothing here branches by a tensor
    def call(*element: Any) -> Any:
        return change(element if isinstance(dataset.element_spec, tuple) else element[0])

    return dataset.map(call, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def rows_per_batch(adapter: Any) -> int | None:
    """Return the rows of the batches of `adapter`, None where only running it would tell."""
    if isinstance(adapter, ArrayDataAdapter):
        return int(adapter._batch_size)
    if isinstance(adapter, GeneratorDataAdapter):
        return _rows_of(adapter._first_batches[0])
    if isinstance(adapter, PyDatasetAdapter):
        return _rows_of(adapter.py_dataset[0])
    return batch_size_of(adapter.get_tf_dataset())


def batch_size_of(dataset: tf.data.Dataset | None) -> int | None:
    """Return the argument of the last `batch` call that made `dataset`, or its static batch size, or None."""
    while dataset is not None:
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            value = tf.get_static_value(size)
            return None if value is None else int(value)
        dataset = getattr(dataset, "_input_dataset", None) or getattr(dataset, "_dataset", None)
    return None


def _rows_of(batch: Any) -> int | None:
    for leaf in tree.flatten(batch):
        shape = np.shape(leaf)
        if shape:
            return int(shape[0])
    return None


def _counted(batches: tf.data.Dataset, counts: int, place: tuple[int, int] = (0, 0)) -> tf.data.Dataset:
    """Return `batches` that every rank has whole; each row counts as `counts` rows.

    `place`: how many such batches of others there are before, and in all; 0 where all ranks have the same one.
    """

    def share(data: Any) -> BatchShare:
        rows = tf.cast(length(leading(data)), tf.int64)
        return BatchShare(data, tf.cast(counts, tf.float32) * tf.cast(rows, tf.float32), rows * place)

    return map_elements(batches, share)


def _own_adapter(adapter: Any, runtime: Runtime, steps_per_epoch: int | None) -> Any:
    """Return an adapter of this rank's own batches, as many as the rank with the most has; spare ones have no rows.

    Raises:
        UserError: the number of batches is unknown and the script does not give it.
    """
    rank_batches = adapter.num_batches
    counts = runtime.collectives.gather(rank_batches, "comparison of steps")
    if None in counts and steps_per_epoch is None:
        raise UserError("the number of batches of every rank's own rows is not known: give fit steps_per_epoch")
    is_counted = isinstance(adapter, (ArrayDataAdapter, TFDatasetAdapter)) and None not in counts
    most = max(counts) if is_counted else rank_batches
    batches = adapter.get_tf_dataset()
    place = (runtime.world.rank, runtime.world.size)
    parts = _counted(batches, 1, place)
    if is_counted and most > rank_batches:
        spare = _counted(batches.take(1), 0, place)
        parts = parts.concatenate(spare.repeat(most - rank_batches))
    return PartAdapter(adapter, untuned(parts).prefetch(tf.data.AUTOTUNE), most)
