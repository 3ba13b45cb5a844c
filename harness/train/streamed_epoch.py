"""An epoch on images whose batches are decoded while it runs."""

import time
from typing import Any

import numpy as np
import tensorflow as tf

from harness.train.batch_input import prepare_input
from harness.train.epoch_loop import run_steps
from harness.train.image_batches import ImageFiles, image_dataset
from harness.train.shard_data import RankData
from harness.train.step import TrainState, train_step


class StreamedEpoch:
    """Trains one epoch on the rank's images; called like the epoch on resident rows (`compile_epoch`).

    It returns float32 [steps, 2]: the rank's summed row losses, and the seconds each step waited for its batch.
    """

    def __init__(self, state: TrainState, data: RankData, *, rank: int, threads: int, drop_remainder: bool) -> None:
        assert data.files is not None
        self._data = data
        self._threads = threads
        self._random = state.mirror
        self._files = ImageFiles(data.files)
        self._first = data.shards.own_rows(rank).start
        self._batch = len(data.shards.lanes(rank))
        partial_rows = 0 if drop_remainder else data.shards.remainder
        self._partial = len(data.shards.partial(rank)) if partial_rows else 0
        self._loop = _compile_stream(state, data, rank=rank, partial_rows=partial_rows)
        self._part = _compile_stream(state, data, rank=rank, partial_rows=0) if partial_rows else self._loop

    def __call__(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
        """Train on the rows in the given order (`Shards.order`), each cropped and mirrored by `salt`."""
        batches = iter(self._batches(order, partial if last else partial[:0], salt))
        return (self._loop if last else self._part)(batches, tf.shape(order)[0])

    def without_input(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> float:
        """Return the seconds of a step that gets the same decoded batch again and again: input costs nothing.

        The steps do train: the caller restores the variables.
        """
        steps = min(3, len(order))
        decoded = list(self._batches(order[:1], partial, salt))
        repeated = [*decoded[:1] * steps, *decoded[1:]] if steps else decoded
        batches = tf.data.Dataset.from_generator(lambda: iter(repeated), output_signature=_specs(self._data))
        begin = time.perf_counter()
        self._loop(iter(batches), tf.constant(steps)).numpy()
        return (time.perf_counter() - begin) / max(1, len(repeated))

    def _batches(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> tf.data.Dataset:
        last = partial.numpy()[: self._partial]
        visits = np.concatenate([order.numpy().ravel(), last]).astype(np.int64)
        return image_dataset(
            self._files,
            self._data.train_x[visits],
            self._data.train_y[visits],
            visits + self._first,
            batch=self._batch,
            size=self._data.record.features[0],
            threads=self._threads,
            salt=int(salt) if self._random else None,
        )


def _specs(data: RankData) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    return tf.TensorSpec([None, *data.record.features], tf.uint8), tf.TensorSpec([None], tf.int32)


def _compile_stream(state: TrainState, data: RankData, *, rank: int, partial_rows: int) -> Any:
    """Return the compiled loop over an iterator of batches; `partial_rows` are those of all ranks' last batch."""

    @tf.function(input_signature=[tf.data.IteratorSpec(_specs(data)), tf.TensorSpec([], tf.int32)], autograph=False)
    def loop(batches: tf.data.Iterator, steps: tf.Tensor) -> tf.Tensor:
        def step(local: range, global_rows: int) -> tf.Tensor:
            begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                none = tf.zeros([0, *data.record.features], tf.uint8), tf.zeros([0], tf.int32)
                images, labels = batches.get_next() if local else none
            with tf.control_dependencies([images]):
                waited = tf.timestamp() - begin
            images = tf.ensure_shape(images, [len(local), *data.record.features])
            labels = tf.ensure_shape(labels, [len(local)])
            loss = train_step(
                state, lambda: (prepare_input(images, data.shift, data.factor), labels), local, global_rows
            )
            return tf.stack([loss, tf.cast(waited, tf.float32)])

        def whole_step(index: tf.Tensor) -> tf.Tensor:
            return step(data.shards.lanes(rank), data.shards.batch)

        def partial_step() -> tf.Tensor:
            return step(data.shards.partial(rank), partial_rows)

        return run_steps(state, steps, whole_step, partial_step if partial_rows else None)

    return loop
