"""A bare training step: what any layer above TensorFlow is compared with. This script imports nothing of the harness.

    mpirun -n 2 --bind-to core python bare.py FOLDER BATCH SEED RATE [allreduce]

FOLDER has rows.npy, float32 [rows, features] or [rows, height, width, channels], standardised, labels.npy, int32
[rows], and network.json, a Keras model with logits as output. Every rank trains on an equal part of the rows by plain
gradient descent, BATCH rows at a time and in their order. It repeats one compiled loop on one thread. The ranks do not
communicate. With ``allreduce`` as many bytes as the gradients have are summed by MPI_Allreduce, in place, once for
every step, after the steps of each turn: the bound for synchronous training.

Rank 0 notes the mean loss of the first epoch (first_epoch.py). What lies beside this script as turns.py (harness/base)
lets it train in turns; without a block it trains without end.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from first_epoch import note_first_epoch  # standard library only, as the next
from turns import join_turns


def compile_steps(
    model: keras.Model, inputs: tf.Tensor, targets: tf.Tensor, rate: float
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a function of the number of the first step and how many to make, int32, which returns their summed losses.

    `inputs` float32 [steps, batch, *features], `targets` int32 [steps, batch].
    """
    weights = [variable.value for variable in model.trainable_variables]

    @tf.function
    def train(first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for number in tf.range(first, first + count):
            step = number % len(inputs)
            with tf.GradientTape() as tape:
                logits = model(inputs[step], training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets[step], logits))
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient)
            total += loss
        return total

    return train  # type: ignore[no-any-return]


def main() -> None:
    """Train as the command line asks."""
    from mpi4py import MPI  # starts MPI

    folder = Path(sys.argv[1])
    batch = int(sys.argv[2])
    seed = int(sys.argv[3])
    rate = float(sys.argv[4])
    sums_gradients = sys.argv[5:] == ["allreduce"]
    world = MPI.COMM_WORLD
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(seed)
    rows, labels = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("rows", "labels"))
    steps = len(rows) // world.size // batch
    share = slice(world.rank * steps * batch, (world.rank + 1) * steps * batch)
    inputs = tf.constant(rows[share].reshape(steps, batch, *rows.shape[1:]))
    targets = tf.constant(labels[share].reshape(steps, batch))
    model = keras.models.model_from_json((folder / "network.json").read_text())
    gradients = np.zeros(sum(variable.shape.num_elements() for variable in model.trainable_variables), np.float32)
    train = compile_steps(model, inputs, targets, rate)
    turns = join_turns(world.rank, world.size)
    done = 0
    total = 0.0
    while True:
        most = steps - done if done < steps else 2**20
        count = turns.ahead(most) if turns else most
        total += float(train(tf.constant(done % steps), tf.constant(count)))
        for _ in range(count if sums_gradients else 0):
            world.Allreduce(MPI.IN_PLACE, gradients)
        done += count
        if done == steps:
            loss = world.allreduce(total / steps) / world.size
            if world.rank == 0:
                note_first_epoch(loss)
        if turns:
            turns.step(count)


if __name__ == "__main__":
    main()
