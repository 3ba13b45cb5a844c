"""A bare training step: what any layer above TensorFlow is compared with. This script imports nothing of the harness.

    mpirun -n 2 --bind-to core python bare.py FOLDER EPOCHS BATCH SEED RATE

FOLDER has rows.npy, float32 [rows, features] or [rows, height, width, channels], standardised, labels.npy, int32
[rows], network.json, a Keras model with logits as output, and recipe.json: `optimizer` and `schedule`, "sgd" without
momentum at a "constant" rate, or "adam" (Kingma and Ba 2015, section 2) at a rate that falls to 0 over all steps,
"cosine"; `weight_decay`, the factor of L2 on kernels; `augment`, "none" or "flip". Every rank trains on an equal part
of the rows, BATCH at a time and in the order in which they are, in one compiled loop on one thread. The ranks begin
every epoch together and do not communicate otherwise.

Rank 0 prints one line of JSON: `seconds` of every epoch, those of the slowest rank, and the mean `losses` over the
epoch's rows. The first epoch includes compilation.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Update = Callable[[list[tf.Tensor]], None]
"""Makes a step of the weights by their gradients."""


def compile_epoch(
    model: keras.Model, inputs: tf.Tensor, targets: tf.Tensor, recipe: dict[str, Any], rate: float, epochs: int
) -> Callable[[], tf.Tensor]:
    """Return a function that makes one step of each batch and returns the mean loss, without weight decay.

    `inputs` float32 [steps, batch, *features], `targets` int32 [steps, batch].
    """
    weights = [variable.value for variable in model.trainable_variables]
    kernels = [weight for weight in weights if len(weight.shape) > 1]
    flips = {"none": False, "flip": True}[recipe["augment"]]
    update = build_update(weights, recipe, rate, epochs * len(inputs))

    @tf.function
    def train_epoch() -> tf.Tensor:
        total = tf.constant(0.0)
        for step in tf.range(len(inputs)):
            rows = tf.image.random_flip_left_right(inputs[step]) if flips else inputs[step]
            with tf.GradientTape() as tape:
                logits = model(rows, training=True)
                loss = objective = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets[step], logits))
                if recipe["weight_decay"]:
                    objective += recipe["weight_decay"] * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
            update(tape.gradient(objective, weights))
            total += loss
        return total / len(inputs)

    return train_epoch  # type: ignore[no-any-return]


def build_update(weights: list[tf.Variable], recipe: dict[str, Any], rate: float, steps: int) -> Update:
    """Return what makes a step of `weights`; `steps` is how many there will be."""
    made = tf.Variable(0.0)
    moments = [(tf.Variable(tf.zeros(weight.shape)), tf.Variable(tf.zeros(weight.shape))) for weight in weights]

    def descend(gradients: list[tf.Tensor]) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient)

    def adapt(gradients: list[tf.Tensor]) -> None:
        now = rate * 0.5 * (1 + tf.cos(math.pi * made / steps))
        done = made.assign_add(1)
        powers = tf.pow(0.9, done), tf.pow(0.999, done)
        for weight, gradient, (first, second) in zip(weights, gradients, moments, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=first.handle,
                v=second.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=now,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-7,
                grad=gradient,
            )

    return {"sgd, constant": descend, "adam, cosine": adapt}[f"{recipe['optimizer']}, {recipe['schedule']}"]


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
    recipe = json.loads((folder / "recipe.json").read_text())
    train_epoch = compile_epoch(model, inputs, targets, recipe, rate, epochs)
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
