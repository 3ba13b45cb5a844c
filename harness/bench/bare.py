"""A bare training step: what any layer above TensorFlow is held against. This script imports nothing of the harness.

    mpirun -n 2 --bind-to core python bare.py FOLDER EPOCHS BATCH SEED RATE

FOLDER has rows.npy, float32 [rows, features] or [rows, height, width, channels], standardised, labels.npy, int32
[rows], and network.json, a Keras model with logits as output. Every rank trains on an equal part of the rows, BATCH at
a time and in the order in which they are, by plain gradient descent in one compiled loop on one thread. The ranks
begin every epoch together and else know nothing of each other.

Rank 0 prints one line of JSON: `seconds` of every epoch, those of the slowest rank, and the mean `losses` over the
epoch's rows. The first epoch includes compilation.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


def compile_epoch(model: keras.Model, inputs: tf.Tensor, targets: tf.Tensor, rate: float) -> Callable[[], tf.Tensor]:
    """Return a function that makes one step of each batch and returns the mean loss.

    `inputs` float32 [steps, batch, *features], `targets` int32 [steps, batch].
    """
    weights = [variable.value for variable in model.trainable_variables]

    @tf.function
    def train_epoch() -> tf.Tensor:
        total = tf.constant(0.0)
        for step in tf.range(len(inputs)):
            with tf.GradientTape() as tape:
                logits = model(inputs[step], training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets[step], logits))
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient)
            total += loss
        return total / len(inputs)

    return train_epoch  # type: ignore[no-any-return]


def main() -> None:
    """Train as the command line asks."""
    from mpi4py import MPI  # starts MPI

    folder, rate = Path(sys.argv[1]), float(sys.argv[5])
    epochs, batch, seed = map(int, sys.argv[2:5])
    world = MPI.COMM_WORLD
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(seed)
    rows, labels = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("rows", "labels"))
    steps = len(rows) // world.size // batch
    own = slice(world.rank * steps * batch, (world.rank + 1) * steps * batch)
    inputs = tf.constant(rows[own].reshape(steps, batch, *rows.shape[1:]))
    targets = tf.constant(labels[own].reshape(steps, batch))
    model = keras.models.model_from_json((folder / "network.json").read_text())
    train_epoch = compile_epoch(model, inputs, targets, rate)
    seconds, losses = [], []
    for _ in range(epochs):
        world.Barrier()
        begin = time.perf_counter()
        loss = float(train_epoch())
        seconds.append(world.allreduce(time.perf_counter() - begin, op=MPI.MAX))
        losses.append(world.allreduce(loss) / world.size)
    if world.rank == 0:
        print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
