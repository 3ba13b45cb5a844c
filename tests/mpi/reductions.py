"""Rank program: sums of random tensors by every reduction, and the weights after 100 steps; rank 0 prints both.

Arguments: the optimizers to train with.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

from harness.comm.reduction import Descent, Reduction, Updater
from harness.comm.reduction_choice import select
from harness.comm.replicas import hash_weights, verify_replicas
from harness.comm.world import start_mpi
from harness.schema.layout import Layout
from harness.schema.message_cost import Algorithm
from harness.schema.point import Point
from harness.schema.presets import resolve
from harness.train.replica import prepare_replica
from harness.train.shard_data import load_shard
from harness.train.training import configure_tensorflow, train_epoch

# Small ones that are packed, large ones that are not, none at all, and all of several cache lines but a bit.
SHAPES = ([3], [1], [200, 100], [0], [70_001], [5, 5, 1, 32])
TOO_LARGE = 1000  # bytes of shared memory that no call fits into: the operation must fall back on messages

WAYS = (Algorithm.NATIVE, Algorithm.MESSAGES, Algorithm.NODE_AWARE, Algorithm.BRIDGE)
NO_ROOM = 2**50  # bytes: more than any shared memory


def one_nan(reduction: Reduction) -> bool:
    """Tell whether all ranks get the same bits from numbers that are none, other ones on each rank."""
    nans = [tf.constant(np.full(shape, 0x7FC00001 + world.rank, np.uint32).view(np.float32)) for shape in SHAPES]
    results = [total.numpy().tobytes() for total in reduction.sum(nans)]
    for rule, moments in (("sgd", 0), ("momentum", 1), ("adam", 2)) if isinstance(reduction, Updater) else ():
        first, second, variables = ([keras.Variable(np.ones(shape, np.float32)) for shape in SHAPES] for _ in range(3))
        step = Descent(
            rule=rule,
            rate=tf.constant(0.1),
            steps=tf.constant(0, tf.int64),
            decay1=0.9,
            decay2=0.999,
            epsilon=1e-7,
            first=first if moments else (),
            second=second if moments > 1 else (),
        )
        reduction.update(step, variables, nans, "numbers that are none")
        results += [variable.numpy().tobytes() for variable in (*variables, *first, *second)]
    reduction.take_calls()
    return len(set(world.comm.allgather(b"".join(results)))) == 1


os.environ["HARNESS_SYNC_ALONE"] = "1"  # one rank sums too
world = start_mpi()
configure_tensorflow(1)
found: dict[str, dict[str, object]] = {}
for choice in (*WAYS, "nccl", "too large", "no room"):
    os.environ["HARNESS_REDUCTION"] = choice if choice in list(Algorithm) else "native"
    reduction = select(world, [{"too large": TOO_LARGE, "no room": NO_ROOM}.get(choice, 4 * 2**20)])
    errors = dict.fromkeys((np.float32, np.float64), 0.0)
    for dtype, scale in ((np.float32, 1.0), (np.float64, 1.0), (np.float32, 0.25), (np.float64, 0.3)):
        for _ in range(20 if choice == "native" else 3):  # buffers are used in turns, and both kinds of stores
            values = [np.random.default_rng(world.rank).normal(size=shape).astype(dtype) for shape in SHAPES]
            totals = tf.function(reduction.sum)([tf.constant(value) for value in values], scale)
            for value, total in zip(values, totals, strict=True):
                expected = sum(world.comm.allgather(value.astype(np.float64))) * scale
                errors[dtype] = max(errors[dtype], float(np.abs(total.numpy() - expected).max(initial=0.0)))
    calls = reduction.take_calls()
    found[choice] = {
        "name": reduction.name,
        "notes": [note.code for note in reduction.notes],
        "error": errors[np.float32],
        "error of float64": errors[np.float64],
        "one NaN": one_nan(reduction),
        "calls": len(calls),
        "ordered": bool((np.diff(calls.ravel()) > 0).all()),
    }
for optimizer in sys.argv[1:]:  # made inside the sums, or by operations of their own
    workload = resolve(
        dataset="adult",
        model="dnn",
        batch_per_rank=16,
        samples=1600 * world.size,
        data="synthetic",
        optimizer=optimizer,
    )
    point = Point(workload=workload, layout=Layout(nodes=1, ranks_per_node=world.size))
    for choice in WAYS:
        os.environ["HARNESS_REDUCTION"] = choice
        replica = prepare_replica(world, point, load_shard(world, point, None))
        losses = train_epoch(replica, 0).losses
        found[choice][optimizer] = verify_replicas(world, replica.state.model.weights)
        found[choice][f"{optimizer} steps"] = int(replica.state.optimizer.iterations.numpy())
del os.environ["HARNESS_SYNC_ALONE"]
alone = resolve(
    dataset="adult", model="dnn", batch_per_rank=16, samples=160 * world.size, data="synthetic", sync="none"
)
for choice in ("native", "bridge"):  # ranks that sum nothing update their weights as those that do
    os.environ["HARNESS_REDUCTION"] = choice
    point = Point(workload=alone, layout=Layout(nodes=1, ranks_per_node=world.size))
    replica = prepare_replica(world, point, load_shard(world, point, None))
    columns = train_epoch(replica, 0).columns
    found[choice]["alone"] = hash_weights(replica.state.model.weights)
    found[choice]["fused alone"] = replica.state.synchroniser.updater is not None
    found[choice]["calls alone"] = int(np.isfinite(columns["entry_s"]).sum())
if world.rank == 0:
    print("RESULT " + json.dumps(found))
