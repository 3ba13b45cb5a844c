"""An epoch as one compiled graph whose batches are decoded from image files while it runs."""

import time
from typing import Any

import numpy as np
import tensorflow as tf

from harness.train.images import ImageFiles, image_dataset
from harness.train.load import RankData
from harness.train.loop import run_steps
from harness.train.loss import prepare_input
from harness.train.step import Trainee, train_step

_MEASURED_STEPS = 3


class StreamedEpoch:
    """Trains one epoch on the rank's images; called like the epoch on resident rows (`loop.compile_epoch`).

    It returns float32 [steps, 2]: the rank's summed row losses, and the seconds each step waited for its batch.
    """

    def __init__(self, trainee: Trainee, data: RankData, *, rank: int, threads: int, drop_remainder: bool) -> None:
        assert data.files is not None
        self._data, self._threads, self._random = data, threads, trainee.mirror
        self._files = ImageFiles(data.files)
        self._first = data.shards.own_rows(rank).start
        self._batch = len(data.shards.lanes(rank))
        partial_rows = 0 if drop_remainder else data.shards.remainder
        self._partial = data.partial(rank) if partial_rows else 0
        self._loop = _compile(trainee, data, batch=self._batch, partial=self._partial, partial_rows=partial_rows)

    def __call__(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
        """Train on the rows in the given order (`Shards.order`), each cropped and mirrored by `salt`."""
        return self._loop(iter(self._batches(order, partial, salt)), tf.shape(order)[0])

    def without_input(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> float:
        """Return the seconds of a step that gets the same decoded batch again and again: input costs nothing.

        The steps do train: the caller restores the variables.
        """
        steps = min(_MEASURED_STEPS, len(order))
        decoded = list(self._batches(order[:1], partial, salt))
        given = [*decoded[:1] * steps, *decoded[1:]] if steps else decoded
        batches = tf.data.Dataset.from_generator(lambda: iter(given), output_signature=_specs(self._data))
        begin = time.perf_counter()
        self._loop(iter(batches), tf.constant(steps)).numpy()
        return (time.perf_counter() - begin) / len(given)

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


def _compile(trainee: Trainee, data: RankData, *, batch: int, partial: int, partial_rows: int) -> Any:
    """Return the compiled loop over an iterator of batches; `partial_rows` are those of all ranks' last batch."""

    @tf.function(input_signature=[tf.data.IteratorSpec(_specs(data)), tf.TensorSpec([], tf.int32)])
    def loop(batches: tf.data.Iterator, steps: tf.Tensor) -> tf.Tensor:
        def step(local_rows: int, global_rows: int) -> tf.Tensor:
            begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                images, labels = next(batches)
            with tf.control_dependencies([images]):
                waited = tf.timestamp() - begin
            images = tf.ensure_shape(images, [local_rows, *data.record.features])
            inputs = prepare_input(images, data.shift, data.factor)
            loss = train_step(trainee, inputs, tf.ensure_shape(labels, [local_rows]), local_rows, global_rows)
            return tf.stack([loss, tf.cast(waited, tf.float32)])

        def whole_step(index: tf.Tensor) -> tf.Tensor:
            return step(batch, data.shards.batch)

        def partial_step() -> tf.Tensor:
            return step(partial, partial_rows)

        return run_steps(trainee, steps, whole_step, partial_step if partial_rows else None)

    return loop
