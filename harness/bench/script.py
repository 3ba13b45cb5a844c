"""What the contenders' own scripts share: their command line, data, network and answer.

A script is run as ``python -m harness.bench.NAME TASK PLACE``, both arguments in JSON, by the bench or by hand.
TensorFlow is imported by the functions that need it, after the process has been bound to its core.
"""

import os
import signal
import sys
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from harness import datasets, models
from harness.bench.plan import ContenderOutput, ProcessPlace, Task
from harness.datasets.shards import split_evenly

if TYPE_CHECKING:
    import keras


T = TypeVar("T")


def begin() -> tuple[Task, ProcessPlace]:
    """Read the command line, bind this process to its core and let the kernel end it after its time limit."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} TASK PLACE, both in JSON")
    task, place = _parse(sys.argv[1], Task), _parse(sys.argv[2], ProcessPlace)
    signal.alarm(place.limit_s)  # also when the bench that started it has been killed
    if place.cpus:
        os.sched_setaffinity(0, place.cpus)
    return task, place


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


def answer(*, seconds: list[float], losses: list[float], model: "keras.Model") -> None:
    """Print the script's answer as one JSON line; `seconds` and `losses` of all epochs, warm-up first."""
    from harness.comm.policies import hash_weights

    given = ContenderOutput(seconds=tuple(seconds), losses=tuple(losses), weights=hash_weights(model.weights))
    print(msgspec.json.encode(given).decode(), flush=True)


def _parse(text: str, kind: type[T]) -> T:
    return msgspec.json.decode(text, type=kind)


Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]


def own_rows(task: Task, place: ProcessPlace) -> tuple[Floats, Labels]:
    """Return this process's part of the training rows, as the network takes them, and their labels."""
    return standardised(task, split_evenly(task.rows, max(1, len(place.addresses)), place.index))


def standardised(task: Task, part: range | None = None) -> tuple[Floats, Labels]:
    """Return the training rows in `part`, by default all, as the network takes them, and their labels."""
    prepared = datasets.prepare(datasets.locate(task.workload(), None))
    part = range(task.rows) if part is None else part
    x = (prepared.train_x[part.start : part.stop].astype(np.float32) - prepared.shift) * prepared.factor
    return x, np.array(prepared.train_y[part.start : part.stop])
