"""What the contenders' scripts share: their command line, data, network and answer, and files for other packages.

A script is run as ``python -m harness.bench.contenders.NAME TASK PLACE``, both arguments in JSON, by the bench or by
hand; ``... .script TASK FOLDER`` writes what the scripts read that import nothing of the harness. TensorFlow is
imported by the functions that need it, after the process has been bound to its core.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from harness import datasets, models
from harness.bench.bench_record import ContenderOutput, ProcessPlace, Task
from harness.datasets.shards import split_evenly

if TYPE_CHECKING:
    import keras


Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]


def begin() -> tuple[Task, ProcessPlace]:
    """Read the command line, bind this process to its core and let the kernel end it after its time limit."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} TASK PLACE, both in JSON")
    task, place = read_task(), msgspec.json.decode(sys.argv[2], type=ProcessPlace)
    signal.alarm(place.limit_s)  # also when the bench that started it has been killed
    if place.cpus:
        os.sched_setaffinity(0, place.cpus)
    return task, place


def read_task() -> Task:
    """Return the task of the command line."""
    return msgspec.json.decode(sys.argv[1], type=Task)


def build_network(task: Task) -> "keras.Model":
    """Return the same network that the harness trains, with logits as output."""
    import keras

    keras.utils.set_random_seed(task.seed)
    info = datasets.info(task.dataset)
    return models.build(task.model, dataset=task.dataset, features=info.features, classes=info.classes, init="glorot")


def one_thread() -> None:
    """Give TensorFlow one thread, as a rank of one core has it. Call before its first operation."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def print_answer(*, seconds: list[float], losses: list[float], model: "keras.Model") -> None:
    """Print the script's answer as one JSON line; `seconds` and `losses` of all epochs, warm-up first."""
    from harness.comm.policies import hash_weights

    print_output(ContenderOutput(seconds=tuple(seconds), losses=tuple(losses), weights=hash_weights(model.weights)))


def print_output(output: ContenderOutput) -> None:
    """Print the script's answer as one JSON line."""
    print(msgspec.json.encode(output).decode(), flush=True)


def own_rows(task: Task, place: ProcessPlace) -> tuple[Floats, Labels]:
    """Return this process's part of the training rows, as the network takes them, and their labels."""
    return standardised(task, split_evenly(task.rows, max(1, len(place.addresses)), place.index))


def standardised(task: Task, part: range | None = None) -> tuple[Floats, Labels]:
    """Return the training rows in `part`, by default all, as the network takes them, and their labels."""
    prepared = datasets.prepare(datasets.locate(task.workload(), None))
    part = range(task.rows) if part is None else part
    x = (prepared.train_x[part.start : part.stop].astype(np.float32) - prepared.shift) * prepared.factor
    return x, np.array(prepared.train_y[part.start : part.stop])


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
            size, activation = layer.kernel_size[0], layer.activation.__name__
            return {"kind": "convolution", "units": layer.filters, "size": size, "activation": activation}
        case keras.layers.MaxPooling2D():
            return {"kind": "pooling", "size": layer.pool_size[0]}
        case keras.layers.Reshape() | keras.layers.Flatten():
            return {"kind": "flatten"}
    raise TypeError(f"no description of {type(layer).__name__}")


def write_input_files(task: Task, folder: Path) -> None:
    """Write rows.npy, labels.npy, network.json (Keras's), recipe.json and layers.json (without Keras) into `folder`."""
    rows, labels = standardised(task)
    np.save(folder / "rows.npy", rows)
    np.save(folder / "labels.npy", labels)
    network = build_network(task)
    (folder / "network.json").write_text(network.to_json())
    workload = task.workload()
    recipe = {name: getattr(workload, name) for name in ("optimizer", "schedule", "weight_decay", "augment")}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "layers.json").write_text(json.dumps([describe_layer(layer) for layer in network.layers]))


if __name__ == "__main__":
    write_input_files(read_task(), Path(sys.argv[2]))
