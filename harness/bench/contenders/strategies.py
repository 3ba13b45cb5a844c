"""Contenders: TensorFlow's own MultiWorkerMirroredStrategy and ParameterServerStrategy, with a custom training loop.

python -m harness.bench.contenders.strategies TASK ADDRESSES mirrored|served
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.base.first_epoch import note_first_epoch
from harness.base.turns import join_turns
from harness.bench.contenders import Task
from harness.bench.contenders.script import (
    bench_network,
    one_thread,
    read_addresses,
    read_rank,
    read_task,
    replica_step,
    shuffled_batches,
    standardised,
)
from harness.datasets.shards import split_evenly

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_TOGETHER = 10  # steps


def mirrored() -> None:
    """Train in step with the other workers, one on each core, until the block ends.

    Keras 3's ``fit`` fails under this strategy, so this is the loop of TensorFlow's guide "Custom training loop with
    Keras and MultiWorkerMirroredStrategy": one compiled step that takes its batch from the distributed iterator.
    """
    task = read_task()
    addresses = read_addresses()
    rank = read_rank()
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    one_thread()
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    if workers != len(addresses):
        raise RuntimeError(f"{workers} workers instead of {len(addresses)} joined")
    x, y = map(tf.constant, standardised(task, split_evenly(task.rows, workers, rank)))
    batches = iter(
        strategy.distribute_datasets_from_function(lambda _: shuffled_batches(x, y, len(x), task.batch_per_rank))
    )
    with strategy.scope():
        model = bench_network(task)
    on_replica = replica_step(strategy, task, model, task.batch_per_rank * workers)

    @tf.function
    def step(batches: "tf.distribute.DistributedIterator") -> tf.Tensor:
        """Make a step: gradients of the mean over the global batch, summed over workers."""
        return strategy.run(on_replica, args=next(batches))

    steps = task.rows // (task.batch_per_rank * workers)
    turns = join_turns(rank, workers)
    losses: list[float] = []
    while True:
        loss = step(batches)
        if len(losses) < steps:
            losses.append(workers * float(loss))
            if len(losses) == steps and rank == 0:
                note_first_epoch(sum(losses) / steps)
        if turns:
            turns.step()


def served() -> None:
    """Be what the rank says: the first is the coordinator, the second the server, the others work, each on a core.

    As in TensorFlow's guide "Parameter server training with ParameterServerStrategy", with a custom training loop:
    workers that fetch weights from a server and send it gradients, and a coordinator, which schedules steps, ten in one
    function as the guide advises. Each worker draws from all rows, shuffled, and makes its steps at its own pace: the
    updates are asynchronous, a gradient is applied to weights that other workers have changed since. The coordinator
    takes the turns: where it schedules nothing, the others have nothing to do.
    """
    task = read_task()
    rank = read_rank()
    coordinator, server, *workers = read_addresses()
    cluster = {"chief": [coordinator], "ps": [server], "worker": workers}
    role, number = (("chief", 0), ("ps", 0), ("worker", rank - 2))[min(rank, 2)]
    if role == "worker":
        os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[number]])
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type=role, task_id=number, rpc_layer="grpc"
    )
    if role == "chief":
        with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
            _coordinate(resolver, task, Path(folder), len(workers))
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    # Workers need some threads between operations to work properly, says the guide; one computes.
    threads = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=len(workers) + 1)
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=role, task_index=number, protocol="grpc", config=threads
    ).join()


def _coordinate(
    resolver: "tf.distribute.cluster_resolver.ClusterResolver", task: Task, folder: Path, workers: int
) -> None:
    """Train until the block ends; a step of a turn is one of every worker."""
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    batches = iter(coordinator.create_per_worker_dataset(_rows_of(task, folder)))
    with strategy.scope():
        model = bench_network(task)
    make_steps = _compile_steps(strategy, task, model)
    turns = join_turns(0, 1)
    epoch = task.rows // task.batch_per_rank // workers  # steps of every worker
    done = 0
    total = 0.0
    while True:
        most = epoch - done if done < epoch else 2**20
        count = turns.ahead(most) if turns else most
        parts = [min(_TOGETHER, count - first) for first in range(0, count, _TOGETHER) for _ in range(workers)]
        summed = [coordinator.schedule(make_steps, args=(batches, tf.constant(part))) for part in parts]
        coordinator.join()
        done += count
        if done <= epoch:
            total += sum(float(value.fetch()) for value in summed)
        if done == epoch:
            note_first_epoch(total / epoch / workers)
        if turns:
            turns.step(count)


def _rows_of(task: Task, folder: Path) -> "Callable[[], tf.data.Dataset]":
    """Return what makes a worker's batches: all rows in memory, shuffled as indices, prefetched."""
    import tensorflow as tf

    x, y = standardised(task)
    x.astype(np.float32).tofile(folder / "rows")  # a worker reads its copy: constants would go through the coordinator
    y.astype(np.int32).tofile(folder / "labels")

    def build() -> "tf.data.Dataset":
        inputs = tf.reshape(tf.io.decode_raw(tf.io.read_file(str(folder / "rows")), tf.float32), x.shape)
        labels = tf.reshape(tf.io.decode_raw(tf.io.read_file(str(folder / "labels")), tf.int32), y.shape)
        return shuffled_batches(inputs, labels, len(x), task.batch_per_rank)

    return build


def _compile_steps(
    strategy: "tf.distribute.Strategy", task: Task, model: "keras.Model"
) -> "Callable[[tf.data.Iterator, tf.Tensor], tf.Tensor]":
    """Return a function that makes some steps on a worker: gradients of a batch's mean loss, plain SGD.

    It returns the sum of the batches' losses.
    """
    import tensorflow as tf

    step = replica_step(strategy, task, model, task.batch_per_rank)

    @tf.function
    def make_steps(batches: "tf.data.Iterator", count: "tf.Tensor") -> "tf.Tensor":
        total = tf.constant(0.0)
        for _ in tf.range(count):
            losses = strategy.run(step, args=next(batches))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return total

    return make_steps  # type: ignore[no-any-return]


if __name__ == "__main__":
    {"mirrored": mirrored, "served": served}[sys.argv[3]]()
