"""Horovod's training step. This script imports nothing of the harness: Horovod 0.28 needs TensorFlow 2.12.

    mpirun -n 2 --bind-to core python horovod_step.py FOLDER EPOCHS BATCH SEED RATE

FOLDER has rows.npy, float32 [rows, features] or [rows, height, width, channels], standardised, labels.npy, int32
[rows], and layers.json, a description of the network's layers. Every rank trains on an equal part of the rows, BATCH at
a time and in the order in which they are, in one compiled loop on one thread; Horovod averages all gradients of a step
in one call, as its guide has it, and plain gradient descent follows.

Rank 0 prints one line of JSON: `seconds` of every epoch, those of the slowest rank, the mean `losses` over the epoch's
rows, the SHA-256 of the `weights`, which must be that of all ranks, and the `versions`. The first epoch includes
compilation.
"""

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import horovod
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


def build(layers: "list[dict[str, Any]]", shape: "tuple[int, ...]") -> tf.keras.Model:
    """Return the network, with logits as output, that `layers` describe, for rows of that shape."""
    made: list[tf.keras.layers.Layer] = []
    for layer in layers:
        kind = layer["kind"]
        if kind == "dense":
            made.append(tf.keras.layers.Dense(layer["units"], activation=layer["activation"]))
        elif kind == "convolution":
            words = {"padding": "same", "activation": layer["activation"]}
            made.append(tf.keras.layers.Conv2D(layer["units"], layer["size"], **words))
        elif kind == "pooling":
            made.append(tf.keras.layers.MaxPooling2D(layer["size"]))
        else:
            made.append(tf.keras.layers.Flatten())
    return tf.keras.Sequential([tf.keras.Input(shape), *made])


def main() -> None:
    """Train as the command line asks."""
    folder, rate = Path(sys.argv[1]), float(sys.argv[5])
    epochs, batch, seed = map(int, sys.argv[2:5])
    hvd.init()
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(seed)
    rows, labels = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("rows", "labels"))
    steps = len(rows) // hvd.size() // batch
    own = slice(hvd.rank() * steps * batch, (hvd.rank() + 1) * steps * batch)
    inputs = tf.constant(rows[own].reshape(steps, batch, *rows.shape[1:]))
    targets = tf.constant(labels[own].reshape(steps, batch))
    model = build(json.loads((folder / "layers.json").read_text()), rows.shape[1:])
    hvd.broadcast_variables(model.variables, root_rank=0)
    weights = model.trainable_variables

    @tf.function
    def train_epoch() -> tf.Tensor:
        total = tf.constant(0.0)
        for step in tf.range(steps):
            with tf.GradientTape() as tape:
                logits = model(inputs[step], training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets[step], logits))
            gradients = hvd.grouped_allreduce(tape.gradient(loss, weights), op=hvd.Average)
            for number, weight in enumerate(weights):
                tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradients[number])
            total += loss
        return total / tf.cast(steps, tf.float32)

    seconds, losses = [], []
    for _ in range(epochs):
        hvd.allreduce(tf.zeros(1), name="barrier")
        begin = time.perf_counter()
        loss = train_epoch().numpy()
        mine = [time.perf_counter() - begin, float(loss)]
        every = hvd.allgather(tf.constant([mine], tf.float64), name="epoch").numpy()
        seconds.append(float(every[:, 0].max()))
        losses.append(float(every[:, 1].mean()))
    digest = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).hexdigest()
    if len(set(hvd.allgather_object(digest))) > 1:
        sys.exit("ranks ended with different weights: they were not synchronised")
    if hvd.rank() == 0:
        versions = f"Horovod {horovod.__version__}, TensorFlow {tf.__version__}"
        print(json.dumps({"seconds": seconds, "losses": losses, "weights": digest, "versions": versions}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
