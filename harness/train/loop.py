"""An epoch as one compiled graph: all steps, the optimizer and the synchronisation; no Python per step."""

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from harness.train.batch import resident_batch
from harness.train.load import RankData
from harness.train.step import TrainState, train_step


class Epoch(Protocol):
    """Trains an epoch, or without `last` steps that others follow: its partial batch, if any, is made in the last call.

    Taken are the order of an epoch (`Shards.order`: int32 [steps, batch] and int32 [partial]) and its `flip_salt`
    (uint32); returned is float32 [steps, and one for the partial batch]: the rank's summed row losses of every step.
    """

    def __call__(self, order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor, *, last: bool = True) -> tf.Tensor:
        """Make the steps of `order`."""


def compile_epoch(state: TrainState, data: RankData, *, rank: int, drop_remainder: bool) -> Epoch:
    """Return a function that trains one epoch on the rank's rows, which it keeps resident on the device."""
    lanes, last = data.shards.lanes(rank), data.shards.partial(rank)
    partial_rows = 0 if drop_remainder else data.shards.remainder
    batch = resident_batch(data, first=data.shards.own_rows(rank).start, mirror=state.mirror)

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
                return train_step(state, *batch(order, index, salt), lanes, data.shards.batch)

            def partial_step() -> tf.Tensor:
                return train_step(state, *batch(partial[tf.newaxis], tf.constant(0), salt), last, partial_rows)

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
    variables = state.model.trainable_variables
    period = state.synchroniser.policy.period

    def make(begin: tf.Tensor, end: tf.Tensor, results: tf.TensorArray) -> tf.TensorArray:
        def one(index: tf.Tensor, results: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            return index + 1, results.write(index, whole_step(index))

        return tf.while_loop(lambda index, _: index < end, one, (begin, results))[1]

    def average() -> tf.Tensor:
        state.synchroniser.average(variables)
        return tf.constant(True)

    def block(number: tf.Tensor, results: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        results = make(number * period, (number + 1) * period, results)
        average()
        return number + 1, results

    results, whole = tf.TensorArray(tf.float32, size=steps), tf.constant(0)
    if period:
        blocks = steps // period
        results = tf.while_loop(lambda number, _: number < blocks, block, (tf.constant(0), results))[1]
        whole = blocks * period
    result = make(whole, steps, results).stack()
    if partial_step is not None:
        with tf.control_dependencies([result]):  # behind the others, whose end it does not otherwise wait for
            last = partial_step()
        result = tf.concat([result, [last]], axis=0)
    if period is None or (period and partial_step is not None):
        average()
    elif period:  # a condition of the graph, not of Python: the steps are not known when it is built
        tf.cond(whole < steps, average, lambda: tf.constant(False))
    return result
