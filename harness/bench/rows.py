"""The rows that every contender trains on. Imports no TensorFlow."""

import numpy as np
import numpy.typing as npt

from harness import datasets
from harness.bench.plan import Place, Task
from harness.datasets.shards import split_evenly

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]


def own_rows(task: Task, place: Place) -> tuple[Floats, Labels]:
    """Return this process's part of the training rows, as the network takes them, and their labels."""
    return standardised(task, split_evenly(task.rows, max(1, len(place.addresses)), place.index))


def standardised(task: Task, part: range | None = None) -> tuple[Floats, Labels]:
    """Return the training rows in `part`, by default all, as the network takes them, and their labels."""
    prepared = datasets.prepare(datasets.locate(task.workload(), None))
    part = range(task.rows) if part is None else part
    x = (prepared.train_x[part.start : part.stop].astype(np.float32) - prepared.shift) * prepared.factor
    return x, np.array(prepared.train_y[part.start : part.stop])
