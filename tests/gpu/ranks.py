"""Rank program of `make gpu-check`: python ranks.py TASK [cpu]; rank 0 prints what came out, as JSON.

With `cpu` ranks sum as processors do: so that the program itself is tested without a GPU.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from harness.comm.gpus import own_gpu, start_gpu
from harness.comm.world import World, start_mpi

SHAPES = ([784, 200], [200], [200, 100], [1], [0], [1_000_003])
ON_CPU = sys.argv[2:] == ["cpu"]
_LOOPS = 30


def sums(world: World, reduction: Any) -> dict[str, Any]:
    """Compare sums of four types with MPI's of the same values, in units in the last place, and time a call."""
    import numpy as np
    import tensorflow as tf

    worst = {}
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
        values = [tf.cast(np.random.default_rng(world.rank).normal(size=shape), dtype) for shape in SHAPES]
        for scale in (1.0, 0.5):
            totals = tf.function(reduction.sum)(values, scale)
            name = f"{dtype.name} x {scale:g}"
            worst[name] = max(map(distance, totals, [expected(world, value, scale) for value in values]))
    add = tf.function(lambda: reduction.sum(values))
    add()[0].numpy()
    world.comm.Barrier()
    begin = time.perf_counter()
    for _ in range(_LOOPS):
        last = add()
    last[0].numpy()
    return {"units": worst, "ms": 1e3 * (time.perf_counter() - begin) / _LOOPS}


def expected(world: World, value: Any, scale: float) -> Any:
    """Return the sum that MPI makes of all ranks' scaled values, in float64."""
    import numpy as np
    import tensorflow as tf

    scaled = tf.cast(value, tf.float64) * scale  # exact: the scales are powers of two
    return np.sum(world.comm.allgather(scaled.numpy()), axis=0)


def distance(total: Any, truth: Any) -> float:
    """Return how far `total` is from `truth` where that is most, in units in the last place of `total`'s type."""
    import numpy as np
    import tensorflow as tf

    digits = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}[total.dtype.name]
    rounded = tf.cast(truth, total.dtype)  # what the best sum of that type would be
    difference = np.abs(tf.cast(total, tf.float64).numpy() - tf.cast(rounded, tf.float64).numpy())
    unit = np.maximum(np.abs(truth), 2.0**-14) * 2.0**-digits
    return float(np.max(difference / unit, initial=0.0))


def order(world: World, reduction: Any) -> dict[str, Any]:
    """Sum on the device and through MPI in turn, in a loop: ranks that differ in the order would never end."""
    import tensorflow as tf

    from harness.comm.reduction import BridgeReduction

    bridge = BridgeReduction(world.comm)

    @tf.function
    def step(value: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(_LOOPS):
            on_device = reduction.sum([value])[0] / world.size
            on_host = bridge.sum([value])[0] / world.size
            value = (on_device + on_host) / 2
        return value

    result = step(tf.ones([1000]) * (1.0 + world.rank))
    mean = (world.size + 1) / 2
    return {"error": float(tf.reduce_max(tf.abs(result - mean)))}


def words(world: World, reduction: Any) -> dict[str, Any]:
    """Return how far Horovod's words are off in a graph and at once, and the ways of the sums in the graph."""
    import numpy as np
    import tensorflow as tf

    from harness.horovod import operations as hvd
    from harness.horovod import ranks

    ranks.init()
    size = world.size
    first = np.arange(4.0 * size, dtype=np.float32).reshape(2 * size, 2)
    of_ranks = [first * (rank + 1) for rank in range(size)]
    total = np.sum(of_ranks, axis=0)
    own = tf.constant(of_ranks[world.rank])
    expected = {
        "allreduce": total / size,
        "sum": total,
        "grouped allreduce": total / size,
        "broadcast": of_ranks[-1],
        "allgather": np.concatenate(of_ranks),
    }

    def call() -> dict[str, Any]:
        return {
            "allreduce": hvd.allreduce(own),
            "sum": hvd.allreduce(own, op=hvd.Sum),
            "grouped allreduce": hvd.grouped_allreduce([own, 2 * own])[1] / 2,
            "broadcast": hvd.broadcast(own, size - 1),
            "allgather": hvd.allgather(own),
        }

    errors = {}
    for place, results in (("at once", call()), ("in a graph", tf.function(call)())):
        for name, result in results.items():
            errors[f"{name} {place}"] = float(np.max(np.abs(result.numpy() - expected[name])))
    reductions = ranks.current_ranks().sums.reductions
    return {"errors": errors, "ways": [str(group.algorithm) for group in reductions]}


def loss(world: World, reduction: Any) -> dict[str, Any]:
    """Sum until the last rank is killed: the launcher is to end the others."""
    import tensorflow as tf

    add = tf.function(lambda: reduction.sum([tf.ones([1000])]))
    for number in range(10**9):
        add()[0].numpy()
        if number == _LOOPS and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return {}


TASKS: dict[str, Callable[[World, Any], dict[str, Any]]] = {
    "sums": sums,
    "order": order,
    "words": words,
    "loss": loss,
}


def main() -> None:
    """Run the task of the command line."""
    os.environ["HARNESS_SYNC_ALONE"] = "1"  # one rank sums too
    os.environ["HARNESS_REDUCTION"] = "nccl"
    world = start_mpi()
    gpu = own_gpu(world, 0 if ON_CPU else 1, shared=True)
    start_gpu(gpu)
    from harness.comm.reduction_choice import select

    reduction = select(world, [4 * 2**20])
    outcome = TASKS[sys.argv[1]](world, reduction)
    outcome |= {"way": reduction.algorithm, "name": reduction.name, "notes": [str(note) for note in reduction.notes]}
    if world.rank == 0:
        print("RESULT " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
