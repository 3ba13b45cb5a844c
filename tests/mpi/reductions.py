"""Rank program: sums of random tensors by every reduction, and the weights after 100 steps; rank 0 prints both."""

import json
import os

import numpy as np
import tensorflow as tf

from harness.comm.autotune import CHOICES, select
from harness.comm.policies import hash_weights, verify_replicas
from harness.comm.world import start
from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.sweep import Point
from harness.train.replica import prepare_replica
from harness.train.shard_data import load
from harness.train.training import configure_tensorflow, train_epoch

# Small ones that are packed, large ones that are not, none at all, and all of several cache lines but a bit.
SHAPES = ([3], [1], [200, 100], [0], [70_001], [5, 5, 1, 32])
TOO_LARGE = 1000  # bytes of shared memory that no call fits into: the operation must fall back on messages

NO_ROOM = 2**50  # bytes: more than any shared memory

os.environ["HARNESS_SYNC_ALONE"] = "1"  # one rank sums too
world = start()
configure_tensorflow(1)
found: dict[str, dict[str, object]] = {}
for choice in (*CHOICES, "too large", "no room"):
    os.environ["HARNESS_REDUCTION"] = choice if choice in CHOICES else "native"
    reduction = select(world, [{"too large": TOO_LARGE, "no room": NO_ROOM}.get(choice, 4 * 2**20)])
    errors = []
    for dtype, scale in ((np.float32, 1.0), (np.float64, 1.0), (np.float32, 0.25)):
        for _ in range(3):  # buffers are used in turns
            values = [np.random.default_rng(world.rank).normal(size=shape).astype(dtype) for shape in SHAPES]
            totals = tf.function(reduction.sum)([tf.constant(value) for value in values], scale)
            for value, total in zip(values, totals, strict=True):
                expected = sum(world.comm.allgather(value.astype(np.float64))) * scale
                errors.append(float(np.abs(total.numpy() - expected).max(initial=0.0)))
    calls = reduction.take_calls()
    found[choice] = {
        "name": reduction.name,
        "note": reduction.note,
        "error": max(errors),
        "calls": len(calls),
        "ordered": bool((np.diff(calls.ravel()) > 0).all()),
    }
for optimizer in ("sgd", "momentum", "adam"):  # made inside the sums, or by operations of their own
    workload = resolve(
        dataset="adult",
        model="dnn",
        batch_per_rank=16,
        samples=1600 * world.size,
        data="synthetic",
        optimizer=optimizer,
    )
    point = Point(workload=workload, layout=Layout(nodes=1, ranks_per_node=world.size))
    for choice in CHOICES:
        os.environ["HARNESS_REDUCTION"] = choice
        replica = prepare_replica(world, point, load(world, point, None))
        losses, *_ = train_epoch(replica, 0)
        found[choice][optimizer] = verify_replicas(world, replica.state.model.weights)
        found[choice][f"{optimizer} steps"] = int(replica.state.optimizer.iterations.numpy())
del os.environ["HARNESS_SYNC_ALONE"]
alone = resolve(
    dataset="adult", model="dnn", batch_per_rank=16, samples=160 * world.size, data="synthetic", sync="none"
)
for choice in ("native", "bridge"):  # ranks that sum nothing update their weights as those that do
    os.environ["HARNESS_REDUCTION"] = choice
    point = Point(workload=alone, layout=Layout(nodes=1, ranks_per_node=world.size))
    replica = prepare_replica(world, point, load(world, point, None))
    _, columns, *_ = train_epoch(replica, 0)
    found[choice]["alone"] = hash_weights(replica.state.model.weights)
    found[choice]["fused alone"] = replica.state.synchroniser.updater is not None
    found[choice]["calls alone"] = int(np.isfinite(columns["entry_s"]).sum())
if world.rank == 0:
    print("RESULT " + json.dumps(found))
