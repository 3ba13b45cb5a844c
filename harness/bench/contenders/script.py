"""What the contenders' scripts share: their command line, data and network, and files for other packages.

A script is run as ``python -m harness.bench.contenders.NAME TASK ADDRESSES``, the task in JSON; ``... .script TASK
FOLDER`` writes what the scripts read that import nothing of the harness.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from harness import datasets, models
from harness.bench.contenders import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras
    import tensorflow as tf


Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]


def read_task() -> Task:
    """Return the task of the command line."""
    return msgspec.json.decode(sys.argv[1], type=Task)


def read_addresses() -> list[str]:
    """Return the ``host:port`` of all processes, which the command line has after the task."""
    return sys.argv[2].split(",")


def read_rank() -> int:
    """Return what Open MPI's or MPICH's launcher says of this process."""
    return int(next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ))


def bench_network(task: Task) -> "keras.Model":
    """Return the same network that the harness trains, with logits as output."""
    import keras

    keras.utils.set_random_seed(task.seed)
    info = datasets.dataset_info(task.dataset)
    return models.build_network(
        task.model, dataset=task.dataset, features=info.features, classes=info.classes, init="glorot"
    )


def one_thread() -> None:
    """Give TensorFlow one thread, as a rank of one core has it. Call before its first operation."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def standardised(task: Task, part: range | None = None) -> tuple[Floats, Labels]:
    """Return the training rows in `part`, by default all, as the network takes them, and their labels."""
    prepared = datasets.prepare(datasets.locate(task.workload(), None))
    part = range(task.rows) if part is None else part
    x = (prepared.train_x[part.start : part.stop].astype(np.float32) - prepared.shift) * prepared.factor
    return x, np.array(prepared.train_y[part.start : part.stop])


def shuffled_batches(inputs: Any, labels: Any, rows: int, batch: int) -> "tf.data.Dataset":
    """Return batches of `rows` rows without end: shuffled as indices (as Keras's own data adapter does), prefetched."""
    import tensorflow as tf

    indices = tf.data.Dataset.range(rows).shuffle(rows).batch(batch, drop_remainder=True)
    batches = indices.map(lambda chosen: (tf.gather(inputs, chosen), tf.gather(labels, chosen)))
    return batches.repeat().prefetch(tf.data.AUTOTUNE)


def replica_step(
    strategy: "tf.distribute.Strategy", task: Task, model: "keras.Model", over: int
) -> "Callable[[tf.Tensor, tf.Tensor], tf.Tensor]":
    """Return a replica's step: the loss summed over its rows and divided by `over`, its gradients, plain SGD."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        optimizer = keras.optimizers.SGD(task.learning_rate)
        optimizer.build(model.trainable_variables)

    def step(inputs: "tf.Tensor", labels: "tf.Tensor") -> "tf.Tensor":
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(inputs, training=True))
            loss = tf.reduce_sum(losses) / over
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def describe_layer(layer: "keras.Layer") -> dict[str, Any]:
    """Return a layer of paper A's networks in a form that needs no Keras.

    Raises:
        TypeError: they have no such layer.
    """
    import keras

    match layer:
        case keras.layers.Dense():
            return {"kind": "dense", "units": layer.units, "activation": layer.activation.__name__}
        case keras.layers.Conv2D(padding="same", strides=(1, 1)):
            return {
                "kind": "convolution",
                "units": layer.filters,
                "size": layer.kernel_size[0],
                "activation": layer.activation.__name__,
            }
        case keras.layers.MaxPooling2D():
            return {"kind": "pooling", "size": layer.pool_size[0]}
        case keras.layers.Reshape() | keras.layers.Flatten():
            return {"kind": "flatten"}
    raise TypeError(f"no description of {type(layer).__name__}")


def write_input_files(task: Task, folder: Path) -> None:
    """Write rows.npy, labels.npy, network.json (Keras's) and layers.json (without Keras) into `folder`."""
    rows, labels = standardised(task)
    np.save(folder / "rows.npy", rows)
    np.save(folder / "labels.npy", labels)
    network = bench_network(task)
    (folder / "network.json").write_text(network.to_json())
    (folder / "layers.json").write_text(json.dumps([describe_layer(layer) for layer in network.layers]))


if __name__ == "__main__":
    from harness.comm.native_library import find_library

    find_library()  # once, and not while contenders wait for each other
    write_input_files(read_task(), Path(sys.argv[2]))
