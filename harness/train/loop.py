"""An epoch as one compiled graph: all steps, the optimizer and the synchronisation; no Python per step."""

from collections.abc import Callable
from typing import cast

import tensorflow as tf

from harness.train.batch import resident_batch
from harness.train.load import RankData
from harness.train.step import TrainState, train_step

Epoch = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def compile_epoch(state: TrainState, data: RankData, *, rank: int, drop_remainder: bool) -> Epoch:
    """Return a function that trains one epoch on the rank's rows, which it keeps resident on the device.

    The function takes the order of an epoch (`Shards.order`: int32 [steps, batch] and int32 [partial]) and its
    `flip_salt` (uint32), and returns float32 [steps + 1 if there is a partial batch]: the rank's summed row
    losses of every step.
    """
    lanes, last = data.shards.lanes(rank), data.shards.partial(rank)
    partial_rows = 0 if drop_remainder else data.shards.remainder
    batch = resident_batch(data, first=data.shards.own_rows(rank).start, mirror=state.mirror)

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

        return run_steps(state, tf.shape(order)[0], whole_step, partial_step if partial_rows else None)

    return cast(Epoch, epoch)


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
