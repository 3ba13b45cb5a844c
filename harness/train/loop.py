"""An epoch as one compiled graph: all steps, the optimizer and the synchronisation; no Python per step."""

from collections.abc import Callable
from typing import cast

import tensorflow as tf

from harness.train.load import RankData
from harness.train.step import TrainState, prepare_input, train_step

_MASK = 0xFFFFFFFF
# Odd constants of xxHash32 (Collet): their products spread close numbers over all 32 bits.
_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)


def flip_salt(seed: int, epoch: int) -> int:
    """Return the 32-bit number that tells the mirrored rows of one epoch from those of another."""
    return (seed * _PRIMES[1] + (epoch + 1) * _PRIMES[2]) & _MASK


def flip(images: tf.Tensor, rows: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
    """Return `images` [rows, height, width, channels] with about every second one mirrored left to right.

    Which ones is a function of the row's number in the whole data set (`rows`, int32 [rows]) and of `salt`
    (uint32, `flip_salt`) alone.
    """
    mixed = tf.cast(rows, tf.uint32) * tf.constant(_PRIMES[0], tf.uint32) + salt
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, tf.constant(15, tf.uint32)))
    mixed *= tf.constant(_PRIMES[1], tf.uint32)
    mirrored = tf.bitwise.right_shift(mixed, tf.constant(31, tf.uint32)) == 1
    return tf.where(mirrored[:, tf.newaxis, tf.newaxis, tf.newaxis], tf.reverse(images, axis=[2]), images)


Epoch = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def compile_epoch(state: TrainState, data: RankData, *, rank: int, drop_remainder: bool) -> Epoch:
    """Return a function that trains one epoch on the rank's rows, which it keeps resident on the device.

    The function takes the order of an epoch (`Shards.order`: int32 [steps, batch] and int32 [partial]) and its
    `flip_salt` (uint32), and returns float32 [steps + 1 if there is a partial batch]: the rank's summed row
    losses of every step.
    """
    x, y = tf.constant(data.train_x), tf.constant(data.train_y)
    lanes, last = data.shards.lanes(rank), data.shards.partial(rank)
    first = data.shards.own_rows(rank).start
    partial_rows = 0 if drop_remainder else data.shards.remainder

    def step(rows: tf.Tensor, salt: tf.Tensor, local: range, global_rows: int) -> tf.Tensor:
        values = tf.gather(x, rows)
        if state.mirror:
            values = flip(values, rows + first, salt)
        inputs = prepare_input(values, data.shift, data.factor)
        return train_step(state, inputs, tf.gather(y, rows), local, global_rows)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, len(lanes)], tf.int32),
            tf.TensorSpec([len(last)], tf.int32),
            tf.TensorSpec([], tf.uint32),
        ]
    )
    def epoch(order: tf.Tensor, partial: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
        def whole_step(index: tf.Tensor) -> tf.Tensor:
            return step(order[index], salt, lanes, data.shards.batch)

        def partial_step() -> tf.Tensor:
            return step(partial, salt, last, partial_rows)

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
    results = tf.TensorArray(tf.float32, size=steps)
    variables = state.model.trainable_variables
    period = state.synchroniser.policy.period
    whole = tf.constant(0)
    if period:
        whole = steps // period * period
        for block in tf.range(steps // period):
            for index in tf.range(block * period, (block + 1) * period):
                results = results.write(index, whole_step(index))
            state.synchroniser.average(variables)
    for index in tf.range(whole, steps):
        results = results.write(index, whole_step(index))
    result = results.stack()
    if partial_step is not None:
        with tf.control_dependencies([result]):  # behind the others, whose end it does not otherwise wait for
            last = partial_step()
        result = tf.concat([result, [last]], axis=0)
    if period is None or (period and partial_step is not None):
        state.synchroniser.average(variables)
    elif period:
        if whole < steps:  # a condition of the graph, not of Python: the steps are not known when it is built
            state.synchroniser.average(variables)
    return result
