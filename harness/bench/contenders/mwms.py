"""Contender: TensorFlow's own MultiWorkerMirroredStrategy with a custom training loop, one worker on each core.

Keras 3's ``fit`` fails under this strategy, so this is the loop of TensorFlow's guide "Custom training loop with
Keras and MultiWorkerMirroredStrategy": one compiled step that takes its batch from the distributed iterator.
"""

import json
import os

from harness.base.turns import join
from harness.bench.contenders.script import (
    build_network,
    one_thread,
    read_addresses,
    read_rank,
    read_task,
    replica_step,
    shuffled_batches,
    standardised,
)
from harness.datasets.shards import split_evenly


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
    x, y = map(tf.constant, standardised(task, split_evenly(task.rows, workers, rank)))
    batches = iter(
        strategy.distribute_datasets_from_function(lambda _: shuffled_batches(x, y, len(x), task.batch_per_rank))
    )
    with strategy.scope():
        model = build_network(task)
    on_replica = replica_step(strategy, task, model, task.batch_per_rank * workers)

    @tf.function
    def step(batches: "tf.distribute.DistributedIterator") -> tf.Tensor:
        """Make a step: gradients of the mean over the global batch, summed over workers."""
        return strategy.run(on_replica, args=next(batches))

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


if __name__ == "__main__":
    main()
