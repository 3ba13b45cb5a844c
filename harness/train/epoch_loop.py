"""An epoch as one compiled graph, on rows that are held in memory."""

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from harness.train.batch_input import Batch
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
