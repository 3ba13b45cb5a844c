"""An epoch as one compiled graph, on rows that are held in memory."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from harness.train.batch_input import Batch, ImageFiles, image_dataset, prepare_input
from harness.train.shard_data import RankData
from harness.train.step import TrainState, train_step


class Epoch(Protocol):
    """Trains an epoch, or without `last` steps that others follow: its partial batch, if any, is made in the last call.

    Taken are the order of an epoch (`Shards.order`: int32 [steps, batch] and int32 [partial]) and its `flip_salt`
    (uint32); returned is float32 [steps, and one for the partial batch]: the rank's summed row losses of every step.
    """

    def __call__(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
        """Make the steps of `order`."""


def compile_epoch(state: TrainState, data: RankData, batch: Batch, *, rank: int, drop_remainder: bool) -> Epoch:
    """Return a function that trains one epoch on the rank's rows, which `batch` (`resident_batch`) has."""
    lanes = data.shards.lanes(rank)
    last = data.shards.partial(rank)
    partial_rows = 0 if drop_remainder else data.shards.remainder

    def compiled(*, ending: bool) -> Any:
        @tf.function(
            input_signature=[
                tf.TensorSpec([None, len(lanes)], tf.int32),
                tf.TensorSpec([len(last)], tf.int32),
                tf.TensorSpec([], tf.uint32),
            ],
            autograph=False,  # which would rewrite all that is called from here: a second of every launch
        )
        def epoch(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
            def whole_step(index: tf.Tensor) -> tf.Tensor:
                if not state.xla_draw:
                    return train_step(state, lambda: batch(order, index, salt), lanes, data.shards.batch)
                rows = tf.gather(order, index)[tf.newaxis]  # XLA compiles for a shape, whatever steps there are
                return train_step(state, lambda: batch(rows, first, salt), lanes, data.shards.batch)

            def partial_step() -> tf.Tensor:
                return train_step(state, lambda: batch(partial[tf.newaxis], first, salt), last, partial_rows)

            first = tf.constant(0)

            return run_steps(state, tf.shape(order)[0], whole_step, partial_step if ending else None)

        return epoch

    whole = compiled(ending=bool(partial_rows))
    whole.get_concrete_function()  # traced now: where ranks were lost, no other waits for that in a step
    part = compiled(ending=False) if partial_rows else whole  # traced when it is first called

    def train(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
        losses: tf.Tensor = (whole if last else part)(order, partial, salt)
        return losses

    return train


def run_steps(
    state: TrainState,
    steps: tf.Tensor,
    whole_step: Callable[[tf.Tensor], tf.Tensor],
    partial_step: Callable[[], tf.Tensor] | None,
) -> tf.Tensor:
    """Make `steps` steps, and one on the partial batch where there is one, with the averages due; for a graph.

    `whole_step` takes the step's number. Both return float32 of one shape, [] or [k]: the result is [steps] or
    [steps, k].
    """
    period = state.synchroniser.policy.period
    losses = tf.TensorArray(tf.float32, size=steps)
    steps_before = tf.constant(0)
    if period:
        periods = steps // period
        losses = _make_periods(state, periods, period, whole_step, losses)
        steps_before = periods * period
    result = _make_steps(steps_before, steps, whole_step, losses).stack()
    if partial_step is not None:
        with tf.control_dependencies([result]):  # after the others, whose end it does not otherwise wait for
            last = partial_step()
        result = tf.concat([result, [last]], axis=0)
    if period is None or (period and partial_step is not None):
        _average(state)
    elif period:  # a condition of the graph, not of Python: the steps are not known when it is built
        tf.cond(steps_before < steps, lambda: _average(state), lambda: tf.constant(False))
    return result


def _make_steps(
    begin: tf.Tensor, end: tf.Tensor, step: Callable[[tf.Tensor], tf.Tensor], losses: tf.TensorArray
) -> tf.TensorArray:
    """Make steps `begin` to `end`; return `losses` with what they return."""

    def make_step(index: tf.Tensor, losses: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        return index + 1, losses.write(index, step(index))

    return tf.while_loop(lambda index, _: index < end, make_step, (begin, losses))[1]


def _make_periods(
    state: TrainState,
    periods: tf.Tensor,
    period: int,
    step: Callable[[tf.Tensor], tf.Tensor],
    losses: tf.TensorArray,
) -> tf.TensorArray:
    """Make `periods` times `period` steps, with the average that is due after each; return as `_make_steps`."""

    def make_period(number: tf.Tensor, losses: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        losses = _make_steps(number * period, (number + 1) * period, step, losses)
        _average(state)
        return number + 1, losses

    return tf.while_loop(lambda number, _: number < periods, make_period, (tf.constant(0), losses))[1]


def _average(state: TrainState) -> tf.Tensor:
    """Make the average that is due; return True, for a condition of the graph."""
    state.synchroniser.average(state.model.trainable_variables)
    return tf.constant(True)


# An epoch on images whose batches are decoded while it runs.


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
