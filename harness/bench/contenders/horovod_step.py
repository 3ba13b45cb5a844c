"""Horovod's training step. This script imports nothing of the harness: Horovod 0.28 needs TensorFlow 2.12; under
``harness run`` the harness's own Horovod takes it as it is, with today's.

    mpirun -n 2 --bind-to core python horovod_step.py FOLDER BATCH SEED RATE

FOLDER has rows.npy, float32 [rows, features] or [rows, height, width, channels], standardised, labels.npy, int32
[rows], and layers.json, a description of the network's layers. Every rank trains on an equal part of the rows, BATCH
rows at a time and in their order. It repeats one compiled loop on one thread. Horovod's tape averages all gradients of
a step in one group, and plain gradient descent follows.

Rank 0 notes the versions, and the mean loss of the first epoch (first_epoch.py), after which all ranks must have the
same weights. What lies beside this script as turns.py (harness/base) lets it train in turns; without a block, or where
``harness run`` passes them, it trains without end.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import horovod
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from first_epoch import note_first_epoch  # standard library only, as the next
from turns import join_turns


def build(layers: "list[dict[str, Any]]", shape: "tuple[int, ...]") -> tf.keras.Model:
    """Return the network, with logits as output, that `layers` describe, for rows of that shape."""
    keras_layers: list[tf.keras.layers.Layer] = []
    for layer in layers:
        kind = layer["kind"]
        if kind == "dense":
            keras_layers.append(tf.keras.layers.Dense(layer["units"], activation=layer["activation"]))
        elif kind == "convolution":
            words = {"padding": "same", "activation": layer["activation"]}
            keras_layers.append(tf.keras.layers.Conv2D(layer["units"], layer["size"], **words))
        elif kind == "pooling":
            keras_layers.append(tf.keras.layers.MaxPooling2D(layer["size"]))
        else:
            keras_layers.append(tf.keras.layers.Flatten())
    return tf.keras.Sequential([tf.keras.Input(shape), *keras_layers])


def main() -> None:
    """Train as the command line asks."""
    folder = Path(sys.argv[1])
    batch = int(sys.argv[2])
    seed = int(sys.argv[3])
    rate = float(sys.argv[4])
    hvd.init()
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(seed)
    rows, labels = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("rows", "labels"))
    steps = len(rows) // hvd.size() // batch
    share = slice(hvd.rank() * steps * batch, (hvd.rank() + 1) * steps * batch)
    inputs = tf.constant(rows[share].reshape(steps, batch, *rows.shape[1:]))
    targets = tf.constant(labels[share].reshape(steps, batch))
    model = build(json.loads((folder / "layers.json").read_text()), rows.shape[1:])
    hvd.broadcast_variables(model.variables, root_rank=0)
    weights = model.trainable_variables

    @tf.function
    def train(first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for number in tf.range(first, first + count):
            step = number % steps
            with tf.GradientTape() as tape:
                logits = model(inputs[step], training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets[step], logits))
            gradients = hvd.DistributedGradientTape(tape, groups=1).gradient(loss, weights)
            for place, weight in enumerate(weights):
                tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradients[place])
            total += loss
        return total

    turns = join_turns(hvd.rank(), hvd.size())
    done = 0
    total = 0.0
    while True:
        most = steps - done if done < steps else 2**20
        count = turns.ahead(most) if turns else most
        total += float(train(tf.constant(done % steps), tf.constant(count)))
        done += count
        if done == steps:
            report_epoch(weights, total / steps)
        if turns:
            turns.step(count)


def report_epoch(weights: "list[tf.Variable]", loss: float) -> None:
    """Compare all ranks' weights, and note the loss, which each has of its own rows."""
    digest = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).digest()
    digests = hvd.allgather(tf.constant([list(digest)], tf.int32))
    losses = hvd.allgather(tf.constant([loss], tf.float64))
    if bool(tf.reduce_any(digests != digests[0])):
        sys.exit("ranks have different weights: they were not synchronised")
    if hvd.rank() == 0:
        note_first_epoch(float(tf.reduce_mean(losses)), f"Horovod {horovod.__version__}, TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
