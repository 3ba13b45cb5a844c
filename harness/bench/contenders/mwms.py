"""Contender: TensorFlow's own MultiWorkerMirroredStrategy with a custom training loop, one worker on each core.

Keras 3's ``fit`` fails under this strategy, so this is the loop of TensorFlow's guide "Custom training loop with
Keras and MultiWorkerMirroredStrategy": one compiled step that takes its batch from the distributed iterator.
"""

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.base.turns import join
from harness.bench.bench_record import Task
from harness.bench.contenders.script import (
    build_network,
    one_thread,
    read_addresses,
    read_rank,
    read_task,
    standardised,
)
from harness.datasets.shards import split_evenly

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def main() -> None:
    """Train as the command line asks, in step with the other workers, until the block ends."""
    task, addresses, rank = read_task(), read_addresses(), read_rank()
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    one_thread()
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    if workers != len(addresses):
        raise RuntimeError(f"{workers} workers instead of {len(addresses)} joined")
    batches = iter(_distribute(strategy, task, split_evenly(task.rows, workers, rank)))
    with strategy.scope():
        model = build_network(task)
    step = _compile_step(strategy, task, model)
    steps = task.rows // (task.batch_per_rank * workers)
    turns = join(rank, workers)
    losses: list[float] = []
    while True:
        loss = step(batches)
        if len(losses) < steps:
            losses.append(workers * float(loss))
            if len(losses) == steps and rank == 0:
                print(f"epoch 1  train loss {sum(losses) / steps:.4f}", flush=True)
        if turns:
            turns.step()


def _distribute(strategy: "tf.distribute.Strategy", task: Task, part: range) -> "tf.distribute.DistributedDataset":
    """Return this worker's rows: in memory, shuffled as indices (as Keras's own data adapter does), prefetched."""
    import tensorflow as tf

    x, y = map(tf.constant, standardised(task, part))

    def build(context: "tf.distribute.InputContext") -> "tf.data.Dataset":
        indices = tf.data.Dataset.range(len(x)).shuffle(len(x)).batch(task.batch_per_rank, drop_remainder=True)
        batches = indices.map(lambda batch: (tf.gather(x, batch), tf.gather(y, batch)))
        return batches.repeat().prefetch(tf.data.AUTOTUNE)

    return strategy.distribute_datasets_from_function(build)


def _compile_step(
    strategy: "tf.distribute.Strategy", task: Task, model: "keras.Model"
) -> "Callable[[tf.distribute.DistributedIterator], tf.Tensor]":
    """Return the compiled step: gradients of the mean over the global batch, summed over workers, plain SGD."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        optimizer = keras.optimizers.SGD(task.learning_rate)
        optimizer.build(model.trainable_variables)
    global_batch = task.batch_per_rank * strategy.num_replicas_in_sync

    def replica_step(batch: "tuple[tf.Tensor, tf.Tensor]") -> "tf.Tensor":
        inputs, labels = batch
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(inputs, training=True))
            loss = tf.reduce_sum(losses) / global_batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batches: "tf.distribute.DistributedIterator") -> "tf.Tensor":
        return strategy.run(replica_step, args=(next(batches),))

    return step  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
